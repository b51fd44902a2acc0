// Keys and values of a chunk that is read on a CUDA device, as they are stored.
#pragma once

#include <cuda_bf16.h>

#include <vector>

#include "fusion/cuda/layer_rows.h"

namespace reprise {

/// Copies keys and values of a chunk's rows to the host, and passes them on.
class ChunkCapture : public DeviceAttentionOp {
 public:
  /// buffer: [block, n_kv_head, head_dim]. first: rows of the context before the chunk.
  ChunkCapture(const DeviceParts& parts, kernels::cuda::DeviceBuffer<__nv_bfloat16>& buffer,
               size_t first, size_t rows)
      : parts_(parts),
        buffer_(buffer),
        first_(first),
        rows_(rows),
        width_(size_t{parts.kv.n_kv_head} * parts.kv.head_dim),
        blocks_(size_t{parts.computes.config().n_layer} * 2 * rows * width_ * sizeof(uint16_t)) {}

  /// The rows that attend() is called with.
  void set_block(LayerRows::Block block) { block_ = block; }
  Status attend(const LayerHeads& heads, cudaStream_t stream) override;
  /// [n_layer][K, V]; waits for the stream.
  Result<std::vector<std::byte>> finish();

 private:
  Status take(size_t index, cudaStream_t stream);

  const DeviceParts& parts_;
  kernels::cuda::DeviceBuffer<__nv_bfloat16>& buffer_;
  const size_t first_, rows_, width_;
  LayerRows::Block block_;
  std::vector<std::byte> blocks_;
};

}  // namespace reprise
