#include "formats/tokenizer_check.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/try.h"
#include "formats/printable.h"

namespace reprise {
namespace {

// Texts of control tokens that end an answer, in the chat formats of the supported model families.
constexpr std::array<std::string_view, 9> kEndTexts{
    "<|im_end|>",      "<|eot_id|>",    "<|eom_id|>",
    "<|end|>",         "<end_of_turn>", "<|endoftext|>",
    "<|end_of_text|>", "<|return|>",    "<｜end▁of▁sentence｜>",
};

bool is_end_text(std::string_view text) {
  return std::ranges::find(kEndTexts, text) != kEndTexts.end();
}

Status check_id(const TokenizerData& data, std::string_view name, std::string_view what,
                std::optional<int32_t> id) {
  if (!id || (*id >= 0 && static_cast<size_t>(*id) < data.tokens.size())) return {};
  return fail(ErrorCode::kBadValue, "{}: {} token id {} is outside the vocabulary of {}", name,
              what, *id, data.tokens.size());
}

Status check_ids(const TokenizerData& data, std::string_view name) {
  REPRISE_CHECK(check_id(data, name, "bos", data.bos));
  REPRISE_CHECK(check_id(data, name, "eos", data.eos));
  REPRISE_CHECK(check_id(data, name, "unknown", data.unknown));
  REPRISE_CHECK(check_id(data, name, "pad", data.pad));
  for (const int32_t id : data.end_of_turn) REPRISE_CHECK(check_id(data, name, "end-of-turn", id));
  for (const AddedToken& token : data.added) {
    REPRISE_CHECK(check_id(data, name, "added", token.id));
    if (token.text.empty()) {
      return fail(ErrorCode::kBadValue, "{}: added token {} has no text", name, token.id);
    }
  }
  return {};
}

}  // namespace

std::optional<uint8_t> byte_of_piece(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece.back() != '>') return {};
  uint8_t byte = 0;
  const char* end = piece.data() + 5;
  const auto [parsed, error] = std::from_chars(piece.data() + 3, end, byte, 16);
  if (error != std::errc{} || parsed != end) return {};
  return byte;
}

std::optional<int32_t> find_token(const TokenizerData& data, std::string_view text) {
  const auto found = std::ranges::find(data.tokens, text);
  if (found == data.tokens.end()) return {};
  return static_cast<int32_t>(found - data.tokens.begin());
}

void mark_end_tokens(TokenizerData& data) {
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    if (is_end_text(data.tokens[id])) data.kinds[id] = TokenKind::kControl;
  }
}

void add_special_tokens(TokenizerData& data) {
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    const TokenKind kind = data.kinds[id];
    if (kind != TokenKind::kControl && kind != TokenKind::kUserDefined) continue;
    if (data.tokens[id].empty()) continue;
    AddedToken token;
    token.text = data.tokens[id];
    token.id = static_cast<int32_t>(id);
    token.special = kind == TokenKind::kControl;
    data.added.push_back(std::move(token));
  }
}

Status finish_tokenizer(TokenizerData& data, std::string_view name) {
  const size_t vocab = data.tokens.size();
  if (vocab == 0 || vocab > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return fail(ErrorCode::kBadCount, "{}: the vocabulary has {} tokens", name, vocab);
  }
  if (data.kinds.size() != vocab || (!data.scores.empty() && data.scores.size() != vocab)) {
    return fail(ErrorCode::kBadCount, "{}: {} tokens, but {} token types and {} scores", name,
                vocab, data.kinds.size(), data.scores.size());
  }
  for (size_t id = 0; id < vocab; ++id) {
    if (!data.scores.empty() && !std::isfinite(data.scores[id])) {
      return fail(ErrorCode::kBadValue, "{}: the score of token {} is not finite", name, id);
    }
    if (data.kinds[id] == TokenKind::kByte && !byte_of_piece(data.tokens[id])) {
      return fail(ErrorCode::kBadValue, "{}: byte token {} is {}, not <0x00> to <0xFF>", name, id,
                  printable(data.tokens[id]));
    }
  }
  REPRISE_CHECK(check_ids(data, name));
  for (size_t id = 0; id < vocab; ++id) {
    if (data.kinds[id] == TokenKind::kControl && is_end_text(data.tokens[id])) {
      data.end_of_turn.push_back(static_cast<int32_t>(id));
    }
  }
  std::ranges::sort(data.end_of_turn);
  const auto repeated = std::unique(data.end_of_turn.begin(), data.end_of_turn.end());
  data.end_of_turn.erase(repeated, data.end_of_turn.end());
  if (data.eos) std::erase(data.end_of_turn, *data.eos);
  return {};
}

}  // namespace reprise
