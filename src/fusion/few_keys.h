// Rows of a fused prompt that read part of the keys before them.
#pragma once

#include <span>
#include <vector>

#include "attention/plan.h"
#include "fusion/fused_pass.h"
#include "fusion/fused_prompt.h"
#include "kv/side_kv.h"

namespace reprise {

/// Consecutive rows of a pass that read the same keys, as far as these are before each: `packed`
/// of FewReads::keys, which fill pages, and every key from `first` on, the beginning of a page.
/// Rows that read everything have 0 and 0.
struct ReadStep {
  uint32_t first_row = 0, rows = 0;
  int32_t packed = 0, first = 0;
};

/// What rows at ascending positions read.
std::vector<ReadStep> read_steps(const FusedPrompt& prompt, const FewReads& few,
                                 std::span<const int32_t> positions);

/// Of the keys before a position as many as fill pages: up to 15 fewer than there are.
int32_t packed_before(std::span<const int32_t> keys, int32_t position);

/// FewReads::keys that rows at some positions read, of one layer at a time, side by side in pages
/// of their own, so that reading them costs what they are and not the pages that they lie in.
class PackedKeys {
 public:
  PackedKeys(const FusedPrompt& prompt, const FewReads& few, std::span<const int32_t> positions);

  std::span<const int32_t> keys() const { return keys_; }
  /// The memory of the layer before serves this one. end: what pack() copies is before this
  /// position. kOutOfMemory.
  Status begin(PagePool& pool, uint32_t layer, int32_t end);
  /// Copies the keys of the layer, once.
  void pack(const SequenceKv& kv, ThreadPool& pool);
  const SequenceKv* pages() const { return side_.pages(); }

 private:
  std::span<const int32_t> keys_;  // fill pages
  SideKv side_;
  int32_t end_ = 0;
  uint32_t layer_ = 0;
  bool packed_ = false;
};

/// Rows of a step.
class ReadsFew : public Policy {
 public:
  ReadsFew(PackedKeys& packed, const ReadStep& step) : packed_(packed), step_(step) {}
  std::unique_ptr<Policy> fork() const override { return std::make_unique<ReadsFew>(*this); }
  void select(const QueryRows& rows, Selection& selection) override;

 private:
  PackedKeys& packed_;
  ReadStep step_;
};

}  // namespace reprise
