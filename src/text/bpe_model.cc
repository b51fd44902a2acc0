#include "text/bpe_model.h"

#include <algorithm>

#include "text/utf8.h"

namespace reprise {

void BpeModel::start_bytes(std::string_view piece, std::vector<int32_t>& symbols) const {
  for (const char byte : piece) {
    // The unknown token of byte-level models is a control token, which no text may become.
    const int32_t id = parts_.alphabet.byte(static_cast<uint8_t>(byte));
    if (id != BpeAlphabet::kNone) symbols.push_back(id);
  }
}

bool BpeModel::has_bytes(std::string_view bytes) const {
  if (!parts_.byte_level) return parts_.fallback.has(bytes);
  return std::ranges::none_of(bytes, [&](char byte) {
    return parts_.alphabet.byte(static_cast<uint8_t>(byte)) == BpeAlphabet::kNone;
  });
}

void BpeModel::start_characters(std::string_view piece, std::vector<int32_t>& symbols) const {
  while (!piece.empty()) {
    const Utf8Unit unit = utf8_unit(piece);
    const int32_t id = unit.valid ? parts_.alphabet.character(unit.code_point) : BpeAlphabet::kNone;
    if (id != BpeAlphabet::kNone) {
      symbols.push_back(id);
    } else {
      parts_.fallback.append(piece.substr(0, unit.bytes), symbols);
    }
    piece.remove_prefix(unit.bytes);
  }
}

void BpeModel::encode(std::string_view piece, SubwordScratch& scratch,
                      std::vector<int32_t>& ids) const {
  if (!parts_.whole_pieces.empty()) {
    const auto found = parts_.whole_pieces.find(std::string(piece));
    if (found != parts_.whole_pieces.end()) {
      ids.push_back(found->second);
      return;
    }
  }
  scratch.ids.clear();
  if (parts_.byte_level) {
    start_bytes(piece, scratch.ids);
  } else {
    start_characters(piece, scratch.ids);
  }
  parts_.merges.apply(scratch);
  const size_t first = ids.size();
  for (const int32_t id : scratch.ids) {
    const size_t before = ids.size();
    if (id < parts_.first_virtual) {
      ids.push_back(id);
    } else {
      parts_.fallback.append(parts_.virtual_texts[static_cast<size_t>(id - parts_.first_virtual)],
                             ids);
    }
    const bool repeated =
        before > first && ids.size() == before + 1 && ids.back() == ids[before - 1];
    if (parts_.fuse_unknown && repeated && ids.back() == parts_.unknown) ids.pop_back();
  }
}

}  // namespace reprise
