// BPE whose merges are listed in the order they are done (GPT-2, Llama 3, Qwen, Mistral, Gemma).
#include "text/bpe_model.h"
#include "text/byte_level.h"
#include "text/utf8.h"

namespace reprise {
namespace {

using TokenIds = std::unordered_map<std::string_view, int32_t>;

TokenIds text_token_ids(const TokenizerData& data) {
  TokenIds ids;
  ids.reserve(data.tokens.size());
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    if (is_text_token(data.kinds[id])) ids.emplace(data.tokens[id], static_cast<int32_t>(id));
  }
  return ids;
}

// Merges whose parts or result are no tokens cannot happen in training; they are left out.
MergeTable ranked_merges(const TokenizerData& data, const TokenIds& ids) {
  MergeTable table(data.merges.size());
  std::string joined;
  for (size_t rank = 0; rank < data.merges.size(); ++rank) {
    const auto& [left, right] = data.merges[rank];
    joined.assign(left).append(right);
    const auto a = ids.find(left), b = ids.find(right), both = ids.find(joined);
    if (a == ids.end() || b == ids.end() || both == ids.end()) continue;
    table.add(a->second, b->second, {static_cast<uint32_t>(rank), both->second});
  }
  return table;
}

BpeAlphabet byte_alphabet(const TokenIds& ids) {
  BpeAlphabet alphabet;
  for (int byte = 0; byte < 256; ++byte) {
    std::string character;
    append_utf8(byte_level_character(static_cast<uint8_t>(byte)), character);
    const auto found = ids.find(character);
    if (found != ids.end()) alphabet.set_byte(static_cast<uint8_t>(byte), found->second);
  }
  return alphabet;
}

BpeAlphabet character_alphabet(const TokenIds& ids) {
  BpeAlphabet alphabet;
  for (const auto& [text, id] : ids) {
    const Utf8Unit unit = utf8_unit(text);
    if (unit.valid && unit.bytes == text.size()) alphabet.set_character(unit.code_point, id);
  }
  return alphabet;
}

std::unordered_map<std::string, int32_t> piece_ids(const TokenIds& ids, bool byte_level) {
  std::unordered_map<std::string, int32_t> pieces;
  pieces.reserve(ids.size());
  for (const auto& [text, id] : ids) {
    if (!byte_level) {
      pieces.emplace(text, id);
    } else if (auto bytes = from_byte_level(text)) {
      pieces.emplace(std::move(*bytes), id);
    }
  }
  return pieces;
}

}  // namespace

std::unique_ptr<SubwordModel> make_ranked_bpe(const TokenizerData& data, bool byte_level) {
  const TokenIds ids = text_token_ids(data);
  BpeParts parts{.alphabet = byte_level ? byte_alphabet(ids) : character_alphabet(ids),
                 .merges = ranked_merges(data, ids),
                 .fallback = ByteFallback(data, data.byte_fallback),
                 .byte_level = byte_level,
                 .fuse_unknown = data.fuse_unknown,
                 .unknown = data.unknown.value_or(BpeAlphabet::kNone),
                 .first_virtual = static_cast<int32_t>(data.tokens.size()),
                 .virtual_texts = {},
                 .whole_pieces = {}};
  if (data.ignore_merges) parts.whole_pieces = piece_ids(ids, byte_level);
  return std::make_unique<BpeModel>(std::move(parts));
}

}  // namespace reprise
