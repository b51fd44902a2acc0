// Keys and values of a chunk that is read on a CUDA device, as they are stored.
#pragma once

#include <cuda_bf16.h>

#include <vector>

#include "fusion/cuda/layer_rows.h"

namespace reprise {

/// Keeps keys and values of a chunk's rows in a layer for the host, and passes them on.
class ChunkCapture : public DeviceAttentionOp {
 public:
  /// buffer: [K, V][rows, n_kv_head, head_dim]. first: rows before those of the chunk.
  ChunkCapture(const DeviceParts& parts, kernels::cuda::DeviceBuffer<__nv_bfloat16>& buffer,
               size_t first, size_t rows)
      : parts_(parts),
        buffer_(buffer),
        first_(first),
        rows_(rows),
        width_(size_t{parts.kv.n_kv_head} * parts.kv.head_dim) {}

  /// The rows that attend() is called with.
  void set_block(LayerRows::Block block) { block_ = block; }
  Status attend(const LayerHeads& heads, cudaStream_t stream) override;
  /// Of a layer that is computed: its part of every row, of so many bytes, of a block [K, V].
  Status copy_to(std::byte* block, size_t row_bytes) const;

 private:
  const DeviceParts& parts_;
  kernels::cuda::DeviceBuffer<__nv_bfloat16>& buffer_;
  const size_t first_, rows_, width_;
  LayerRows::Block block_;
};

}  // namespace reprise
