#include "text/subword_model.h"

#include <algorithm>

#include "formats/tokenizer_check.h"
#include "text/utf8.h"

namespace reprise {
namespace {

constexpr int32_t kNoToken = -1;

}  // namespace

ByteFallback::ByteFallback(const TokenizerData& data, bool use)
    : unknown_(data.unknown.value_or(kNoToken)) {
  ids_.fill(kNoToken);
  for (size_t id = 0; use && id < data.tokens.size(); ++id) {
    const auto byte = byte_of_piece(data.tokens[id]);
    if (byte && data.kinds[id] == TokenKind::kByte) ids_[*byte] = static_cast<int32_t>(id);
  }
}

bool ByteFallback::has(std::string_view bytes) const {
  return std::ranges::none_of(
      bytes, [&](char byte) { return ids_[static_cast<uint8_t>(byte)] == kNoToken; });
}

void ByteFallback::append(std::string_view character, std::vector<int32_t>& ids) const {
  if (has(character)) {
    for (const char byte : character) ids.push_back(ids_[static_cast<uint8_t>(byte)]);
  } else if (unknown_ != kNoToken) {
    ids.push_back(unknown_);
  }
}

bool is_text_token(TokenKind kind) {
  return kind == TokenKind::kNormal || kind == TokenKind::kUserDefined;
}

bool can_cut_before_metaspace(const TokenizerData& data) {
  const auto spans_a_cut = [](const std::string& token) {
    for (size_t at = token.find(kMetaspace); at != token.npos;
         at = token.find(kMetaspace, at + 1)) {
      if (at > 0 && !token.substr(0, at).ends_with(kMetaspace)) return true;
    }
    return false;
  };
  bool has_metaspace = false;
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    if (!is_text_token(data.kinds[id])) continue;
    if (spans_a_cut(data.tokens[id])) return false;
    has_metaspace |= data.tokens[id] == kMetaspace;
  }
  // Else an unknown U+2581 could be joined with other unknown characters around it.
  return has_metaspace && !data.ignore_merges;
}

}  // namespace reprise
