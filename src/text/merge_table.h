// Byte-pair merges: which two neighbouring symbols become one, and in which order.
#pragma once

#include <cstdint>
#include <vector>

#include "text/subword_model.h"

namespace reprise {

/// What a pair of symbols becomes; lower ranks merge first.
struct Merge {
  uint32_t rank = 0;
  int32_t id = 0;
};

/// A hash table from pairs of symbols to merges (open addressing, at most half full).
class MergeTable {
 public:
  /// capacity: pairs that will be added at most.
  explicit MergeTable(size_t capacity);

  /// The first merge of a pair counts.
  void add(int32_t left, int32_t right, Merge merge);
  /// nullptr when the pair does not merge.
  const Merge* find(int32_t left, int32_t right) const {
    const uint64_t key = key_of(left, right);
    for (size_t at = slot_of(key);; at = (at + 1) & mask_) {
      if (slots_[at].key == key) return &slots_[at].merge;
      if (slots_[at].key == kEmpty) return nullptr;
    }
  }

  /// Merges scratch.ids until no pair is left: always the lowest rank, leftmost first. Takes
  /// O(n log n) for n symbols.
  void apply(SubwordScratch& scratch) const;

 private:
  static constexpr uint64_t kEmpty = UINT64_MAX;
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge;
  };

  static uint64_t key_of(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  size_t slot_of(uint64_t key) const {
    return static_cast<size_t>((key * 0x9E3779B97F4A7C15u) >> shift_) & mask_;
  }
  void push(SubwordScratch& scratch, uint32_t at) const;

  std::vector<Slot> slots_;
  size_t mask_ = 0;
  int shift_ = 0;
};

}  // namespace reprise
