// Byte-pair encoding over bytes or characters; the two kinds differ in their merges only.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/merge_table.h"
#include "text/subword_model.h"

namespace reprise {

/// What a BPE model starts from: the ids of single bytes or characters. Characters that have no
/// token of their own but take part in merges get ids from the vocabulary's size on.
class BpeAlphabet {
 public:
  static constexpr int32_t kNone = -1;

  BpeAlphabet() { bytes_.fill(kNone); }
  void set_byte(uint8_t byte, int32_t id) { bytes_[byte] = id; }
  int32_t byte(uint8_t byte) const { return bytes_[byte]; }
  void set_character(uint32_t character, int32_t id) { characters_[character] = id; }
  int32_t character(uint32_t character) const {
    const auto found = characters_.find(character);
    return found == characters_.end() ? kNone : found->second;
  }

 private:
  std::array<int32_t, 256> bytes_;
  std::unordered_map<uint32_t, int32_t> characters_;
};

struct BpeParts {
  BpeAlphabet alphabet;
  MergeTable merges;
  ByteFallback fallback;
  bool byte_level = false;    ///< the alphabet's bytes are meant, not its characters
  bool fuse_unknown = false;  ///< neighbouring unknown tokens become one
  int32_t unknown = BpeAlphabet::kNone;
  /// Texts of the ids from the vocabulary's size on.
  int32_t first_virtual = 0;
  std::vector<std::string> virtual_texts;
  /// Tokens that a whole piece becomes without merging (ignore_merges); texts as in the input.
  std::unordered_map<std::string, int32_t> whole_pieces;
};

class BpeModel : public SubwordModel {
 public:
  explicit BpeModel(BpeParts parts) : parts_(std::move(parts)) {}
  void encode(std::string_view piece, SubwordScratch& scratch,
              std::vector<int32_t>& ids) const override;
  bool has_bytes(std::string_view bytes) const override;

 private:
  void start_bytes(std::string_view piece, std::vector<int32_t>& symbols) const;
  void start_characters(std::string_view piece, std::vector<int32_t>& symbols) const;

  BpeParts parts_;
};

}  // namespace reprise
