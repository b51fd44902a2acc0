// Attention of a fused prompt's rows on a CUDA device where some read part of the keys before them.
#pragma once

#include <span>
#include <vector>

#include "fusion/cuda/layer_rows.h"
#include "fusion/few_keys.h"
#include "kernels/cuda/packed_keys.h"

namespace reprise {

/// Kept from one prompt to the next.
struct FewBuffers {
  kernels::cuda::DeviceBuffer<int32_t> keys;       // positions
  kernels::cuda::DeviceBuffer<uint32_t> packed;    // [packed pages]
  kernels::cuda::DeviceBuffer<int32_t> positions;  // [rows] among the keys that a row reads
  kernels::cuda::DeviceBuffer<kernels::cuda::PrefillRows> steps;   // of all blocks
  kernels::cuda::DeviceBuffer<kernels::cuda::PackedTable> tables;  // of the same
  kernels::cuda::DeviceBuffer<uint32_t> pages;                     // [steps of a block, capacity]
};

/// A step reads a page table of its own: packed keys, then pages of the sequence. Queries and keys
/// are rotated by where they stand in the prompt; where they stand in that table only says what is
/// before a row.
class FewAttention : public DeviceAttentionOp {
 public:
  /// Everything outlives it.
  FewAttention(const DeviceParts& parts, FewBuffers& buffers, const LayerRows& rows)
      : parts_(parts), b_(buffers), rows_(rows) {}

  /// For the rows as they are now. frames: of pages for the packed keys, of any layer.
  Status begin(const FusedPrompt& prompt, const FewReads& few, const PackedKeys& packed,
               const std::vector<uint32_t>& frames);
  /// The rows that attend() is called with.
  void set_block(LayerRows::Block block);
  Status attend(const LayerHeads& heads, cudaStream_t stream) override;

 private:
  struct BlockSteps {
    uint32_t first = 0, count = 0;        // steps
    uint32_t first_key = 0, end_key = 0;  // that are packed before it is read
  };

  const DeviceParts& parts_;
  FewBuffers& b_;
  const LayerRows& rows_;
  std::vector<BlockSteps> blocks_;
  uint32_t capacity_ = 0;  // pages of the longest table
  LayerRows::Block block_;
  BlockSteps steps_;
};

}  // namespace reprise
