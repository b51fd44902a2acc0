// Activations of one forward pass on a device.
#pragma once

#include "kernels/cuda/matvec.h"
#include "model/cuda/device_model.h"

namespace reprise {

/// Up to here products of few rows beat those that expand the weights to bf16 first, and those of
/// weights that are bf16 already.
inline constexpr uint32_t kMaxNarrowRows = 2 * kernels::cuda::kMatvecBatch, kBf16NarrowRows = 4;

/// Rows outermost. Rows of a pass that are computed by products of few rows are float all the way;
/// the others pass through bf16 between operations. In float there are no wide buffers.
struct DeviceModel::Buffers {
  template <class T>
  using DeviceBuffer = kernels::cuda::DeviceBuffer<T>;

  DeviceBuffer<float> x;                           // [rows, hidden] the residual stream
  DeviceBuffer<float> h;                           // [rows, hidden] output before a post norm
  DeviceBuffer<float> q;                           // [rows, n_head * head_dim]
  DeviceBuffer<float> kv;                          // [2][rows, n_kv_head * head_dim]
  DeviceBuffer<float> attn;                        // [results, n_head * head_dim]; in float, rows
  DeviceBuffer<float> gate, up;                    // [few rows, ffn]
  DeviceBuffer<__nv_bfloat16> input;               // [rows, hidden] normalised
  DeviceBuffer<__nv_bfloat16> wide_attn;           // [rows, n_head * head_dim]
  DeviceBuffer<__nv_bfloat16> wide_gate, wide_up;  // [rows, ffn]
  DeviceBuffer<float> result_x;                    // [results, hidden] gathered rows of x
  DeviceBuffer<float> logits;                      // [ranks][results, part of the vocabulary]

  Status reserve(const ModelConfig& config, const Shard& shard, const Limits& limits);
};

}  // namespace reprise
