// Where the codes of a KV head's keys lie: plane by plane, in blocks of 256 keys, which grow, and
// in runs of 4096, in which each plane is one page of memory that prefetching follows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/code_sums.h"

namespace reprise {

/// Copies share blocks and runs.
class CodeBlocks {
 public:
  static constexpr size_t kBlock = kernels::kCodeBlock;
  static constexpr size_t kRun = 4096, kRunBlocks = kRun / kBlock;

  explicit CodeBlocks(size_t planes = 0) : planes_(planes) {}

  /// Where the first plane's code of a key lies, and bytes from a plane to the next.
  struct Place {
    const uint8_t* codes;
    size_t stride;
  };
  Place place(size_t key) const {
    if (key < run_keys()) return {runs_[key / kRun].get() + key % kRun, kRun};
    const size_t own = key - run_keys();
    return {blocks_[own / kBlock].get() + own % kBlock, kBlock};
  }
  size_t run_keys() const { return runs_.size() * kRun; }
  size_t blocks() const { return runs_.size() * kRunBlocks + blocks_.size(); }

  /// Makes blocks for keys [first, end) that no copy shares; first is not in a run.
  void own(size_t first, size_t end);
  /// [planes, 256] codes of the block that holds a key that is in no run.
  std::span<uint8_t> block(size_t key) {
    return {blocks_[(key - run_keys()) / kBlock].get(), planes_ * kBlock};
  }
  /// Makes runs of the keys before end, whose codes do not change.
  void join(size_t end);
  /// Forgets the keys from length on.
  void truncate(size_t length);
  uint64_t bytes() const { return planes_ * (run_keys() + blocks_.size() * kBlock); }

 private:
  using Codes = std::shared_ptr<uint8_t[]>;

  size_t planes_;
  std::vector<Codes> runs_;    // [planes, 4096]
  std::vector<Codes> blocks_;  // [planes, 256] of the keys behind the runs
};

}  // namespace reprise
