// The host's side of the page tables on a device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/plan.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/page_table.h"

namespace reprise {

/// Row i of every layer's table names the pages of step i of the pass; only what changed since the
/// pass before is sent.
class PassTables {
 public:
  explicit PassTables(uint32_t n_layer) : n_layer_(n_layer) {}

  /// Enqueues what brings the tables up to date. turn: 0 and 1 in turns; the pass that had the same
  /// turn before must be finished. Memory only grows where nothing is computed: idle waits.
  /// After an error comes shrink().
  Status update(std::span<const SequenceStep> steps, uint32_t turn, cudaStream_t stream);
  /// Goes back to rows of so many pages, which are sent anew.
  void shrink(uint32_t capacity);

  const uint32_t* data() const { return tables_.data(); }
  uint32_t rows() const { return rows_; }
  uint32_t capacity() const { return capacity_; }

 private:
  struct Known {                      // what a row of the tables holds
    uint64_t version = 0, moves = 0;  // of the sequence, of its pool
    std::vector<size_t> pages;        // [n_layer]
  };
  Status grow(std::span<const SequenceStep> steps, cudaStream_t stream);
  void collect(const SequenceStep& step, uint32_t row);

  uint32_t n_layer_, rows_ = 0, capacity_ = 0;
  kernels::cuda::DeviceBuffer<uint32_t> tables_;  // [n_layer, rows, capacity]
  std::vector<Known> known_;                      // [rows]
  std::vector<kernels::cuda::PageUpdate> changes_;
  kernels::cuda::PinnedBuffer<kernels::cuda::PageUpdate> staged_[2];
};

}  // namespace reprise
