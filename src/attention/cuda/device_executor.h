// Runs attention on a CUDA device: stores KV, reads what the page tables and the policies name.
#pragma once

#include <cuda_bf16.h>

#include <compare>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attention/cuda/device_policy.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/paged_decode.h"
#include "kernels/cuda/paged_prefill.h"
#include "model/cuda/device_model.h"

namespace reprise {

/// Consecutive steps of a pass that share a policy.
struct DeviceGroup {
  uint32_t first = 0, count = 0;   // steps
  DevicePolicy* policy = nullptr;  // null: everything is read

  friend auto operator<=>(const DeviceGroup&, const DeviceGroup&) = default;
};

/// The rows of a pass as the device sees them; decode rows come first, one of a sequence.
struct DeviceRows {
  uint32_t rows = 0, decode_rows = 0;
  const int32_t* positions = nullptr;   // [rows]
  const uint32_t* sequences = nullptr;  // [rows] row of the page tables; of decode row i it is i
  uint32_t prefill_steps = 0;  // sequence i of them has row decode_rows + i of the page tables
  const kernels::cuda::PrefillRows* prefill = nullptr;  // [prefill_steps], rows from decode_rows on
  const uint32_t* tables = nullptr;  // [n_layer, table_rows, capacity] page tables
  uint32_t table_rows = 0, capacity = 0;
  std::span<const DeviceGroup> groups;  // of all steps, decode and prefill ones apart
  std::span<const kernels::cuda::PrefillRows> host_prefill;  // prefill, on the host
};

class DeviceExecutor : public DeviceAttentionOp {
 public:
  struct Limits {
    uint32_t rows = 0, sequences = 0;  // of a pass
  };
  /// kv: pages of every layer. ropes: [n_layer], read before it returns.
  static Result<std::unique_ptr<DeviceExecutor>> create(const ModelConfig& config,
                                                        std::span<const RopeTable* const> ropes,
                                                        const kernels::cuda::PagedKv& kv,
                                                        const Limits& limits);

  /// Policies whose groups passes may name from now on; makes room for reading in parts.
  Status set_policies(std::vector<DevicePolicy*> policies);
  /// Enqueues what the layers of a pass share.
  Status begin(const DeviceRows& rows, cudaStream_t stream);
  Status attend(const LayerHeads& heads, cudaStream_t stream) override;

 private:
  struct Rope {
    const RopeTable* table = nullptr;  // only its address is used
    uint32_t pairs = 0;
    float factor = 1.0f;
    kernels::cuda::DeviceBuffer<double> inv_freq;  // [pairs]
    kernels::cuda::DeviceBuffer<float> cos_sin;    // [rows][pairs][2]
  };

  explicit DeviceExecutor(const ModelConfig& config) : config_(config) {}
  Status reserve_parts();
  Status reserve(std::span<const RopeTable* const> ropes);
  Status add_rope(const RopeTable& table);
  Status store(const LayerHeads& heads, cudaStream_t stream);
  Status tell_policies(uint32_t layer, cudaStream_t stream);
  struct Reading;
  Status read(const LayerHeads& heads, const Reading& reading, cudaStream_t stream);
  Status read_window(const LayerHeads& heads, cudaStream_t stream);
  Status read_group(const LayerHeads& heads, const DeviceGroup& group, cudaStream_t stream);
  Status merge_more(float* out, uint32_t first, uint32_t rows, cudaStream_t stream);
  /// q_capped_ of rows [first, first + rows): as if none stood right of cap.
  Status rotate_capped(uint32_t layer, uint32_t first, uint32_t rows, int32_t cap,
                       cudaStream_t stream);
  /// Of steps [step, step + steps), which have so many rows.
  kernels::cuda::PagedPrefillArgs prefill_args(const LayerHeads& heads, uint32_t step,
                                               uint32_t steps, uint32_t rows) const;
  Status prefill(const LayerHeads& heads, uint32_t step, uint32_t steps, uint32_t rows,
                 cudaStream_t stream);
  Status prefill_step(const LayerHeads& heads, uint32_t step, DevicePolicy* policy,
                      cudaStream_t stream);
  size_t q_width() const { return size_t{config_.n_head} * config_.head_dim; }
  const uint32_t* table(uint32_t layer) const {
    return rows_.tables + size_t{layer} * rows_.table_rows * rows_.capacity;
  }

  const ModelConfig& config_;
  kernels::cuda::PagedKv kv_;
  Limits limits_;
  std::vector<DevicePolicy*> policies_;
  std::vector<Rope> ropes_;           // distinct ones
  std::vector<uint32_t> layer_rope_;  // [n_layer] index into ropes_
  uint32_t list_capacity_ = 0;        // pages of the widest layer window
  DeviceRows rows_;
  std::vector<DevicePart> parts_;
  bool in_parts_ = false;                         // the pass needs q_plain_ and what follows it
  kernels::cuda::DeviceBuffer<__nv_bfloat16> q_;  // [rows, n_head, head_dim] rotated
  kernels::cuda::DeviceBuffer<float> lse_;        // [rows, n_head]
  // Where policies read in parts.
  kernels::cuda::DeviceBuffer<float> q_plain_;              // [rows, n_head, head_dim] not rotated
  kernels::cuda::DeviceBuffer<__nv_bfloat16> q_capped_;     // [rows, n_head, head_dim]
  kernels::cuda::DeviceBuffer<int32_t> capped_;             // [rows] positions
  kernels::cuda::DeviceBuffer<float> capped_cos_sin_;       // [rows][pairs][2]
  kernels::cuda::DeviceBuffer<float> part_out_, more_out_;  // [rows, n_head, head_dim]
  kernels::cuda::DeviceBuffer<float> more_lse_;             // [rows, n_head]
  kernels::cuda::DeviceBuffer<int32_t> keys_;         // [sequences] keys that full attention reads
  kernels::cuda::DeviceBuffer<uint32_t> list_pages_;  // [sequences, list_capacity]
  kernels::cuda::DeviceBuffer<uint16_t> list_slots_;
  kernels::cuda::DeviceBuffer<int32_t> list_keys_;  // [sequences]
  kernels::cuda::DeviceBuffer<std::byte> decode_workspace_, prefill_workspace_;
};

}  // namespace reprise
