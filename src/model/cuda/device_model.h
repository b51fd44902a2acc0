// A model on a CUDA device: weights in their quantised form, and one forward pass over rows.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cuda/communicator.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/device_matrix.h"
#include "kernels/cuda/gemm.h"
#include "model/model.h"
#include "model/shard.h"

namespace reprise {

struct Linear;

/// Rows of a pass; pointers are of the device. Decode rows come first.
struct DevicePass {
  uint32_t rows = 0, decode_rows = 0;
  const int32_t* tokens = nullptr;  // [rows]
  // Rows whose logits are wanted: all decode rows, then these others.
  const uint32_t* prefill_results =
      nullptr;  // [results - decode_rows], counted from decode_rows on
  uint32_t results = 0;
  float* logits = nullptr;  // [results, vocab] out, in logits_room() elements
};

/// A layer's projections of every row; pointers are of the device.
struct LayerHeads {
  uint32_t layer = 0;
  // [rows, heads, head_dim], not rotated; no q: only k and v are stored
  const float *q = nullptr, *k = nullptr, *v = nullptr;
  const float *q_norm = nullptr, *k_norm = nullptr;  // [head_dim] or null: norms still to apply
  float* decode_out = nullptr;           // [decode_rows, n_head, head_dim] out; in float, all rows
  __nv_bfloat16* prefill_out = nullptr;  // [other rows, n_head, head_dim] out
};

/// Rows of prompts that go through layers apart from others; pointers are of the device.
struct DeviceLayerRows {
  uint32_t rows = 0;
  float* x = nullptr;  // [rows, hidden] the residual stream
};

/// What a forward pass asks of attention; implemented by the executor in attention/cuda.
class DeviceAttentionOp {
 public:
  virtual ~DeviceAttentionOp() = default;
  /// Enqueues: stores k and v of every row, and writes the attention output of every row.
  virtual Status attend(const LayerHeads& heads, cudaStream_t stream) = 0;
};

/// Decode rows are computed by products of few rows that read weights as they are stored, prefill
/// rows (and decode rows of wide batches) with weights and activations rounded to bf16; or all rows
/// in float.
///
/// With a communicator it is one of the devices that share the model: q, k, v, gate, up and the
/// head are cut by rows, o and down by columns, whose products are summed over the devices. Every
/// device has the whole residual stream and all logits, the same bits as the others.
class DeviceModel {
 public:
  struct Limits {
    uint32_t rows = 0, results = 0;  // of a pass; the latter bounds decode rows too
    bool in_float = false;           // weights are F32 and every row is computed as decode rows are
  };
  /// Copies the model's weights, or this rank's share (check_shards()), to the current device.
  /// communicator: null, or outlives the result. Errors: kOutOfMemory, kDeviceUnavailable,
  /// kCancelled; kUnsupported: in_float where the device has no products of few rows, or none of
  /// rows as long as the model's.
  static Result<std::unique_ptr<DeviceModel>> create(
      const Model& model, const kernels::cuda::Communicator* communicator, ThreadPool& pool,
      const Limits& limits, const ProgressFn& progress);
  ~DeviceModel();

  /// Of what this device computes.
  const ModelConfig& config() const { return config_; }
  size_t logits_room(uint32_t results) const;
  /// Enqueues the pass; nothing is waited for or allocated, so it may be captured.
  Status forward(const DevicePass& pass, DeviceAttentionOp& attention, cudaStream_t stream);

  // A pass in steps, for rows of prompts that are more than a pass takes, or of which some end
  // earlier: no more than Limits::rows at a time, with attention that calls them prefill rows.

  Status embed(const int32_t* tokens, const DeviceLayerRows& rows, cudaStream_t stream);
  /// Keys and values of the layer alone: attention has no queries.
  Status store(uint32_t layer, const DeviceLayerRows& rows, DeviceAttentionOp& attention,
               cudaStream_t stream);
  /// The layer up to its attention, which need not write anything; x stays as it is.
  Status attend(uint32_t layer, const DeviceLayerRows& rows, DeviceAttentionOp& attention,
                cudaStream_t stream);
  Status forward_layer(uint32_t layer, const DeviceLayerRows& rows, DeviceAttentionOp& attention,
                       cudaStream_t stream);
  /// The last layer, and logits [rows, vocab] in logits_room() elements, of no more rows than
  /// Limits::results, which attention calls decode rows.
  Status finish(const DeviceLayerRows& rows, DeviceAttentionOp& attention, float* logits,
                cudaStream_t stream);

 private:
  struct Linear {
    kernels::cuda::DeviceMatrix weight;
    kernels::cuda::DeviceBuffer<float> bias;
  };
  struct Layer {
    kernels::cuda::DeviceBuffer<float> attn_norm, q_norm, k_norm, attn_post_norm;
    kernels::cuda::DeviceBuffer<float> mlp_norm, mlp_post_norm;
    Linear q, k, v, o, gate, up, down;
  };
  struct Buffers;  // of one pass
  class Pass;

  enum class Cut : uint8_t { kNone, kRows, kColumns };

  DeviceModel(const ModelConfig& config, const kernels::cuda::Communicator* communicator);
  Status upload(const ModelWeights& weights, ThreadPool& pool, const ProgressFn& progress);
  Status upload(const reprise::Linear& from, Cut cut, ThreadPool& pool,
                kernels::cuda::UploadRoom& room, Linear& to);
  /// Whether products of few rows take all matrices.
  bool has_short_rows() const;
  const Linear& head() const { return lm_head_.weight.rows() > 0 ? lm_head_ : embedding_; }

  const kernels::cuda::Communicator* communicator_;  // null: not shared
  Shard shard_;
  ModelConfig config_;
  uint32_t narrow_rows_ = 0;  // decode rows that products of few rows compute
  bool in_float_ = false;
  Linear embedding_, lm_head_;
  std::vector<Layer> layers_;
  kernels::cuda::DeviceBuffer<float> final_norm_;
  std::unique_ptr<kernels::cuda::Gemm> gemm_;
  std::unique_ptr<Buffers> buffers_;
};

}  // namespace reprise
