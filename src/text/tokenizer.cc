#include "text/tokenizer.h"

#include <algorithm>
#include <unordered_map>

#include "base/try.h"
#include "text/encoder.h"
#include "text/fingerprint.h"
#include "text/utf8.h"

namespace reprise {
namespace {

bool has_byte_level(const std::vector<TokenizerStep>& steps) {
  return std::ranges::any_of(steps, [](const TokenizerStep& s) { return s.kind == "ByteLevel"; });
}

// Only tokenizer.json has steps; the normalizer of a tokenizer.model is not one of BPE.
bool has_steps(const TokenizerData& data) {
  return !data.pre_tokenizers.empty() || !data.decoders.empty() ||
         (data.model == TokenizerModel::kByteBpe && !data.normalizers.empty());
}

// GGUF's merges are over bytes; tokenizer.json lists ByteLevel among its steps when they are.
bool is_byte_level(const TokenizerData& data) {
  if (data.model != TokenizerModel::kByteBpe) return false;
  if (has_steps(data)) return has_byte_level(data.pre_tokenizers) || has_byte_level(data.decoders);
  return !data.byte_fallback;
}

// GGUF and tokenizer.model leave SentencePiece's handling of spaces to the reader.
bool is_sentencepiece(const TokenizerData& data) {
  return data.model != TokenizerModel::kByteBpe && !has_steps(data);
}

Result<PreTokenizer> make_pre_tokenizer(const TokenizerData& data, bool byte_level) {
  return byte_level && !has_steps(data) ? PreTokenizer::from_gguf(data.gguf_pre)
                                        : PreTokenizer::from_steps(data.pre_tokenizers);
}

Result<std::unique_ptr<SubwordModel>> make_model(const TokenizerData& data, bool byte_level) {
  if (data.model == TokenizerModel::kByteBpe) return make_ranked_bpe(data, byte_level);
  if (data.scores.size() != data.tokens.size()) {
    return fail(ErrorCode::kBadCount, "{} tokens, but {} scores", data.tokens.size(),
                data.scores.size());
  }
  return data.model == TokenizerModel::kUnigram ? make_unigram(data) : make_score_bpe(data);
}

AddedTokens select_added(const TokenizerData& data, const Normalizer& normalizer, bool normalized) {
  RegexState regex;
  std::vector<AddedToken> tokens;
  std::vector<std::string> texts;
  for (const AddedToken& token : data.added) {
    if ((token.normalized && !normalizer.empty()) != normalized) continue;
    tokens.push_back(token);
    texts.push_back(normalized ? normalizer.apply(token.text, {}, regex) : token.text);
  }
  return AddedTokens(std::move(tokens), texts);
}

}  // namespace

struct Tokenizer::Impl {
  TokenizerData data;
  TokenizerParts parts;
  TokenTexts texts;
  std::unordered_map<std::string_view, int32_t> ids;  // views into data.tokens
  uint64_t fingerprint = 0;
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::create(TokenizerData data) {
  const bool byte_level = is_byte_level(data);
  const bool sentencepiece = is_sentencepiece(data);
  REPRISE_TRY(auto normalizer, Normalizer::create(data, sentencepiece));
  REPRISE_TRY(auto pre_tokenizer, make_pre_tokenizer(data, byte_level));
  REPRISE_TRY(auto model, make_model(data, byte_level));
  REPRISE_TRY(auto texts, TokenTexts::create(data, byte_level, sentencepiece));
  auto added = select_added(data, normalizer, false);
  auto added_normalized = select_added(data, normalizer, true);
  TokenizerParts parts{std::move(added),      std::move(added_normalized),
                       std::move(normalizer), std::move(pre_tokenizer),
                       std::move(model),      !byte_level && can_cut_before_metaspace(data)};
  const uint64_t fingerprint = tokenizer_fingerprint(data);
  auto impl = std::make_unique<Impl>(
      Impl{std::move(data), std::move(parts), std::move(texts), {}, fingerprint});
  impl->ids.reserve(impl->data.tokens.size());
  for (size_t id = 0; id < impl->data.tokens.size(); ++id) {
    impl->ids.emplace(impl->data.tokens[id], static_cast<int32_t>(id));
  }
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  const TokenizerData& data = impl_->data;
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 2);
  if (options.add_special && data.add_bos && data.bos) ids.push_back(*data.bos);
  Encoder(impl_->parts, text, options, ids).run();
  if (options.add_special && data.add_eos && data.eos) ids.push_back(*data.eos);
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> tokens, bool keep_special) const {
  std::string text;
  bool first = true;
  for (const int32_t token : tokens) {
    if (is_special(token) && !keep_special) continue;
    text += first ? first_token_bytes(token) : token_bytes(token);
    first = false;
  }
  return text;
}

std::string_view Tokenizer::token_bytes(int32_t token) const { return impl_->texts.of(token); }

std::string_view Tokenizer::first_token_bytes(int32_t token) const {
  std::string_view bytes = token_bytes(token);
  if (impl_->texts.drops_first_space() && bytes.starts_with(' ')) bytes.remove_prefix(1);
  return bytes;
}

size_t Tokenizer::vocab_size() const { return impl_->data.tokens.size(); }

bool Tokenizer::is_special(int32_t token) const {
  if (token < 0 || static_cast<size_t>(token) >= vocab_size()) return false;
  const TokenKind kind = impl_->data.kinds[static_cast<size_t>(token)];
  return kind == TokenKind::kControl || kind == TokenKind::kUnknown;
}

bool Tokenizer::is_end(int32_t token) const {
  const TokenizerData& data = impl_->data;
  return token == data.eos || std::ranges::find(data.end_of_turn, token) != data.end_of_turn.end();
}

std::optional<int32_t> Tokenizer::find(std::string_view token) const {
  const auto found = impl_->ids.find(token);
  if (found == impl_->ids.end()) return {};
  return found->second;
}

const TokenizerData& Tokenizer::data() const { return impl_->data; }
uint64_t Tokenizer::fingerprint() const { return impl_->fingerprint; }

}  // namespace reprise
