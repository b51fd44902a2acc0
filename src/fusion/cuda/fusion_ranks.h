// The devices that compute fused prompts together, and what they keep from one to the next.
#pragma once

#include <cuda_bf16.h>

#include <memory>
#include <vector>

#include "fusion/cuda/device_chunk_loader.h"
#include "fusion/cuda/few_attention.h"
#include "fusion/cuda/layer_rows.h"
#include "fusion/cuda/resident_chunks.h"
#include "fusion/cuda/row_scorer.h"

namespace reprise {

/// What a device keeps from one prompt to the next.
struct FusionBuffers {
  RowBuffers rows;
  LoadBuffers loads;
  ScoreBuffers scores;
  FewBuffers few;
  kernels::cuda::DeviceBuffer<__nv_bfloat16> captured;  // [K, V][rows, n_kv_head, head_dim]
  kernels::cuda::DeviceBuffer<float> logits;            // of a row
  kernels::cuda::CudaEvent computed[2];                 // of layers, in turns
};

/// The devices that share the model, and what they keep.
struct FusionRanks {
  std::vector<DeviceParts> parts;
  RankCalls calls;
  std::vector<FusionBuffers> buffers;
  std::unique_ptr<ResidentChunks> resident;
  LoadSlots slots;
  kernels::cuda::PinnedBuffer<float> host_logits;

  uint32_t count() const { return static_cast<uint32_t>(parts.size()); }
  uint32_t layers() const { return parts.front().computes.config().n_layer; }
  /// Waits for what was enqueued before the last mark() of a turn, and marks what is now.
  Status mark(uint32_t turn);
  /// Waits for everything.
  Status settle();
  void synchronize() const;
};

}  // namespace reprise
