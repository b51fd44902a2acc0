#include <algorithm>
#include <limits>

#include "base/try.h"
#include "formats/printable.h"
#include "formats/tokenizer_check.h"
#include "formats/tokenizer_data.h"

namespace reprise {
namespace {

constexpr int64_t kMaxKind = 6;

// An array of the element type, nullptr when the key is absent, kBadType when it is something else.
template <class Element>
Result<const std::vector<Element>*> find_array(const GgufFile& file, std::string_view key) {
  const GgufValue* value = file.find(key);
  if (value == nullptr) return nullptr;
  const auto* array = std::get_if<std::vector<Element>>(value);
  if (array == nullptr) {
    return fail(ErrorCode::kBadType, "{}: metadata key {} is not an array of the expected type",
                file.name(), printable(key));
  }
  return array;
}

template <class Element>
Result<const std::vector<Element>*> require_array(const GgufFile& file, std::string_view key) {
  REPRISE_TRY(const auto* array, find_array<Element>(file, key));
  if (array == nullptr) {
    return fail(ErrorCode::kMissingKey, "{}: metadata key {} is missing", file.name(),
                printable(key));
  }
  return array;
}

Result<std::string_view> string_or_empty(const GgufFile& file, std::string_view key) {
  return file.find(key) == nullptr ? std::string_view() : file.get_string(key);
}

Result<bool> bool_or(const GgufFile& file, std::string_view key, bool fallback) {
  return file.find(key) == nullptr ? fallback : file.get_bool(key);
}

Result<std::optional<int32_t>> optional_id(const GgufFile& file, std::string_view key) {
  constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();  // -1 stored as unsigned
  const GgufValue* value = file.find(key);
  if (value == nullptr || *value == GgufValue(int64_t{-1})) return std::optional<int32_t>();
  REPRISE_TRY(const uint64_t id, file.get_uint(key));
  if (id == kNone) return std::optional<int32_t>();
  if (id > static_cast<uint64_t>(std::numeric_limits<int32_t>::max())) {
    return fail(ErrorCode::kBadValue, "{}: {} is {}, which is not a token id", file.name(),
                printable(key), id);
  }
  return static_cast<int32_t>(id);
}

Status read_model(const GgufFile& file, TokenizerData& data) {
  if (file.find("tokenizer.ggml.model") == nullptr) {
    return fail(ErrorCode::kTokenizerMissing, "{}: the file carries no tokenizer", file.name());
  }
  REPRISE_TRY(const auto model, file.get_string("tokenizer.ggml.model"));
  if (model == "gpt2") {
    data.model = TokenizerModel::kByteBpe;
  } else if (model == "llama") {
    data.model = TokenizerModel::kSentencePieceBpe;
  } else if (model == "t5") {
    data.model = TokenizerModel::kUnigram;
  } else if (model == "none" || model == "no_vocab") {
    return fail(ErrorCode::kTokenizerMissing, "{}: the file carries no tokenizer", file.name());
  } else {
    return fail(ErrorCode::kUnsupportedTokenizer,
                "{}: tokenizer model {} is not known; gpt2, llama and t5 are", file.name(),
                printable(model));
  }
  return {};
}

Status read_kinds(const GgufFile& file, TokenizerData& data) {
  REPRISE_TRY(const auto* kinds, find_array<int64_t>(file, "tokenizer.ggml.token_type"));
  data.kinds.assign(data.tokens.size(), TokenKind::kNormal);
  if (kinds == nullptr) return {};
  if (kinds->size() != data.tokens.size()) {
    return fail(ErrorCode::kBadCount, "{}: {} token types for {} tokens", file.name(),
                kinds->size(), data.tokens.size());
  }
  for (size_t id = 0; id < kinds->size(); ++id) {
    const int64_t kind = (*kinds)[id];
    if (kind < 0 || kind > kMaxKind) {
      return fail(ErrorCode::kBadValue, "{}: token {} has type {}; 0 to {} are defined",
                  file.name(), id, kind, kMaxKind);
    }
    if (kind > 0) data.kinds[id] = static_cast<TokenKind>(kind - 1);  // 0: undefined
  }
  return {};
}

Status read_merges(const GgufFile& file, TokenizerData& data) {
  REPRISE_TRY(const auto* merges, require_array<std::string_view>(file, "tokenizer.ggml.merges"));
  data.merges.reserve(merges->size());
  for (const std::string_view merge : *merges) {
    const size_t space = merge.find(' ', 1);  // the left half may itself start with a space
    if (space == merge.npos || space + 1 == merge.size()) {
      return fail(ErrorCode::kBadValue, "{}: merge {} is {}, not two tokens", file.name(),
                  data.merges.size(), printable(merge));
    }
    data.merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
  }
  return {};
}

Status read_ids(const GgufFile& file, TokenizerData& data) {
  REPRISE_TRY(data.bos, optional_id(file, "tokenizer.ggml.bos_token_id"));
  REPRISE_TRY(data.eos, optional_id(file, "tokenizer.ggml.eos_token_id"));
  REPRISE_TRY(data.unknown, optional_id(file, "tokenizer.ggml.unknown_token_id"));
  REPRISE_TRY(data.pad, optional_id(file, "tokenizer.ggml.padding_token_id"));
  for (const char* key : {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    REPRISE_TRY(const auto id, optional_id(file, key));
    if (id) data.end_of_turn.push_back(*id);
  }
  return {};
}

// With these llama.cpp looks whole words up before it merges, and begins texts with BOS.
bool has_whole_words(std::string_view pre) {
  static constexpr std::string_view kNames[] = {"llama-bpe", "llama3",    "llama-v3",
                                                "falcon3",   "falcon-h1", "pixtral",
                                                "midm-2.0",  "lfm2",      "tekken"};
  return std::ranges::find(kNames, pre) != std::end(kNames);
}

// Defaults of files that leave the switches out, as their converters assume them.
Status read_switches(const GgufFile& file, TokenizerData& data) {
  const bool byte_bpe = data.model == TokenizerModel::kByteBpe;
  const bool whole_words = byte_bpe && has_whole_words(data.gguf_pre);
  const bool bos = whole_words || data.model == TokenizerModel::kSentencePieceBpe;
  const bool eos = data.model == TokenizerModel::kUnigram;
  data.ignore_merges = whole_words;
  data.byte_fallback = std::ranges::find(data.kinds, TokenKind::kByte) != data.kinds.end();
  REPRISE_TRY(data.add_bos, bool_or(file, "tokenizer.ggml.add_bos_token", bos));
  REPRISE_TRY(data.add_eos, bool_or(file, "tokenizer.ggml.add_eos_token", eos));
  REPRISE_TRY(data.add_space_prefix, bool_or(file, "tokenizer.ggml.add_space_prefix", !byte_bpe));
  REPRISE_TRY(data.remove_extra_whitespaces,
              bool_or(file, "tokenizer.ggml.remove_extra_whitespaces", false));
  data.add_bos = data.add_bos && data.bos.has_value();
  data.add_eos = data.add_eos && data.eos.has_value();
  return {};
}

// Phi-3's markers take the white space behind them, which GGUF has no field for.
Status strip_after_phi3_markers(const GgufFile& file, TokenizerData& data) {
  REPRISE_TRY(const auto architecture, string_or_empty(file, "general.architecture"));
  if (architecture != "phi3" || data.model != TokenizerModel::kSentencePieceBpe) return {};
  for (AddedToken& token : data.added) {
    token.rstrip = token.text != "<unk>" && token.text != "<s>" && token.text != "<|endoftext|>";
  }
  return {};
}

}  // namespace

Result<TokenizerData> read_gguf_tokenizer(const GgufFile& file) {
  TokenizerData data;
  REPRISE_CHECK(read_model(file, data));
  REPRISE_TRY(const auto* tokens, require_array<std::string_view>(file, "tokenizer.ggml.tokens"));
  data.tokens.assign(tokens->begin(), tokens->end());
  REPRISE_CHECK(read_kinds(file, data));
  REPRISE_TRY(data.gguf_pre, string_or_empty(file, "tokenizer.ggml.pre"));
  if (data.model == TokenizerModel::kByteBpe) {
    REPRISE_CHECK(read_merges(file, data));
  } else {
    REPRISE_TRY(const auto* scores, require_array<double>(file, "tokenizer.ggml.scores"));
    data.scores.assign(scores->begin(), scores->end());
  }
  REPRISE_CHECK(read_ids(file, data));
  REPRISE_CHECK(read_switches(file, data));
  REPRISE_TRY(data.chat_template, string_or_empty(file, "tokenizer.chat_template"));
  mark_end_tokens(data);
  add_special_tokens(data);
  REPRISE_CHECK(strip_after_phi3_markers(file, data));
  REPRISE_CHECK(finish_tokenizer(data, file.name()));
  return data;
}

}  // namespace reprise
