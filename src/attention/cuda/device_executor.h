// Runs attention on a CUDA device: stores KV, reads what the page tables and the policies name.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attention/cuda/device_policy.h"
#include "attention/cuda/device_ranges.h"
#include "attention/cuda/position_free_keys.h"
#include "attention/pager.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/device_buffer.h"
#include "kv/cuda/device_page_memory.h"
#include "model/cuda/device_model.h"

namespace reprise {

/// Page tables that rows of prompts read instead of their sequences'.
struct PrefillTables {
  const kernels::cuda::PrefillRows* sequences = nullptr;  // [batch]
  const int32_t* positions = nullptr;                     // [rows] among the keys of their table
  const uint32_t* pages = nullptr;                        // [batch, capacity]
  uint32_t batch = 0, capacity = 0;
};

class DeviceExecutor : public DeviceAttentionOp {
 public:
  struct Limits {
    uint32_t rows = 0, sequences = 0;  // of a pass
    Prefetch prefetch = Prefetch::kNone;
  };
  /// kv: pages of every layer, which lie in memory; F32 ones are read in float, without policies.
  /// ropes: [n_layer], outlive it.
  static Result<std::unique_ptr<DeviceExecutor>> create(const ModelConfig& config,
                                                        std::span<const RopeTable* const> ropes,
                                                        const kernels::cuda::PagedKv& kv,
                                                        DevicePageMemory& memory,
                                                        const Limits& limits);

  /// Policies whose groups passes may name from now on, with page tables of so many pages; makes
  /// room for how they read.
  Status set_policies(std::vector<DevicePolicy*> policies, uint32_t capacity);
  /// Makes room in keys for passes that name them as DeviceRows::unrotated, of so many pages.
  Status reserve(PositionFreeKeys& keys, uint32_t pages);
  /// Enqueues copies of a layer's pages with keys that are rotated.
  Status rotate(const PositionFreeKeys& keys, const PositionFreeKeys::Source& source,
                uint32_t layer, cudaStream_t stream) const {
    return keys.rotate(kv_, source, layer_rope_[layer], stream);
  }
  /// Enqueues what the layers of a pass share.
  Status begin(const DeviceRows& rows, cudaStream_t stream);
  Status attend(const LayerHeads& heads, cudaStream_t stream) override;
  /// The part of attend() before anything is read: queries are rotated, keys and values stored.
  Status store(const LayerHeads& heads, cudaStream_t stream);
  /// The other part, of rows that are all of prompts, in a layer without a window.
  Status read_tables(const LayerHeads& heads, const PrefillTables& tables, cudaStream_t stream);
  /// [rows, n_head, head_dim] of the layer that was stored last, rotated and in units of
  /// attention_scale / kQueryUnit.
  const __nv_bfloat16* queries() const { return q_.data(); }
  /// Enqueues what ends the layers of a pass, while positions are still those of its rows.
  Status end(cudaStream_t stream);

 private:
  struct Rope {
    const RopeTable* table = nullptr;
    uint32_t pairs = 0;
    float factor = 1.0f;
    kernels::cuda::DeviceBuffer<double> inv_freq;       // [pairs]
    kernels::cuda::DeviceBuffer<float> cos_sin;         // [rows][pairs][2]
    kernels::cuda::DeviceBuffer<float> cos_sin_capped;  // the same, where policies cap positions
    kernels::cuda::DeviceBuffer<float> cos_sin_keys;    // where some keys are position-free
  };
  struct RowRange {
    uint32_t first, count;
  };

  DeviceExecutor(const ModelConfig& config, DevicePageMemory& memory);
  Status reserve_parts();
  Status reserve(std::span<const RopeTable* const> ropes);
  Status add_rope(const RopeTable& table);
  Status reserve_position_free(uint32_t capacity);
  /// packed: of keys that are packed, so many.
  Status reserve(PositionFreeKeys& keys, uint32_t pages, uint32_t packed);
  RowRange rows_of(const DeviceGroup& group) const;
  Status make_angles(cudaStream_t stream);
  Status make_capped_angles(cudaStream_t stream);
  Status make_key_angles(cudaStream_t stream);
  /// As if no row stood right of cap.
  Status fill_angles(const Rope& rope, RowRange rows, int32_t cap, float factor,
                     kernels::cuda::DeviceBuffer<float>& angles, cudaStream_t stream) const;
  Status attend_rows(const LayerHeads& heads, cudaStream_t stream);
  /// Lets the stream that policies learn on wait for what was enqueued.
  Status follow(cudaStream_t stream);
  /// Lets policies learn of the layers before one that are due.
  Status learn(uint32_t end, cudaStream_t stream);
  /// Decode rows [first, first + count).
  Status read(const LayerHeads& heads, const DeviceRead& what, uint32_t first, uint32_t count,
              cudaStream_t stream);
  Status read_group(const LayerHeads& heads, const DeviceGroup& group, cudaStream_t stream);
  /// All rows, everything.
  Status read_in_float(const LayerHeads& heads, cudaStream_t stream);
  bool in_float() const { return kv_.type == kernels::cuda::KvType::kF32; }
  DeviceQueries queries_of(const LayerHeads& heads, const DeviceGroup& group) const;
  DeviceQueries queries_of(uint32_t layer, const DeviceGroup& group) const;
  /// What policies learn about a layer that was computed, and those after it.
  DeviceQueries read_of(uint32_t layer, const DeviceGroup& group) const;
  // Where pages lie in the host's memory, see HotPages.
  bool has_hot_pages(const DeviceGroup& group, uint32_t layer) const;
  /// Whether the group's pages are known before the layers.
  bool finds_early(const DeviceGroup& group, uint32_t layer) const;
  Status find_early_pages(cudaStream_t stream);
  Status find_hot_pages(const DeviceGroup& group, const DeviceQueries& queries, DeviceRead& what,
                        cudaStream_t stream);
  Status expect_next_layer(const DeviceGroup& group, DeviceQueries queries, cudaStream_t stream);
  /// Of the layers before one that are due.
  Status expect_next_token(uint32_t end, cudaStream_t stream);
  /// Asks for what the next rows of a group read in layers [first, end).
  Status expect_rows(const DeviceGroup& group, uint32_t first, uint32_t end);
  /// Whether pages of the next token are asked for as soon as they are known.
  bool expects_token(const DeviceGroup& group) const;
  Status merge_more(float* out, uint32_t first, uint32_t rows, cudaStream_t stream);
  /// Of steps [step, step + steps), which have so many rows.
  kernels::cuda::PagedPrefillArgs prefill_args(const LayerHeads& heads, uint32_t step,
                                               uint32_t steps, uint32_t rows) const;
  void name_extent(uint32_t step, uint32_t steps, kernels::cuda::PagedPrefillArgs& args) const;
  Status prefill(const LayerHeads& heads, uint32_t step, uint32_t steps, uint32_t rows,
                 cudaStream_t stream);
  /// Lets a step read copies of its pages, once over the bus and not once per block of rows.
  Status bring_pages(uint32_t step, kernels::cuda::PagedPrefillArgs& args, cudaStream_t stream);
  Status reserve_copies(uint32_t capacity);
  Status prefill_step(const LayerHeads& heads, uint32_t step, DevicePolicy* policy,
                      cudaStream_t stream);
  Status prefill_position_free(const LayerHeads& heads, uint32_t step, DevicePolicy& policy,
                               cudaStream_t stream);
  Status read_copies(const PositionFreeKeys& keys, const PositionFreeKeys::Source& source,
                     uint32_t layer, kernels::cuda::PagedPrefillArgs& args,
                     cudaStream_t stream) const;
  DevicePrompt prompt_of(const LayerHeads& heads, uint32_t step) const;
  Status read_prefill_parts(const LayerHeads& heads, uint32_t step,
                            std::span<const PrefillPart> parts, cudaStream_t stream);
  /// [rows, n_head, head_dim] queries before rotation, where policies ask for them.
  const float* plain_queries(const LayerHeads& heads) const {
    return heads.q_norm != nullptr ? q_plain_.data() : heads.q;
  }
  size_t q_width() const { return size_t{config_.n_head} * config_.head_dim; }

  const ModelConfig& config_;
  DevicePageMemory& memory_;
  kernels::cuda::PagedKv kv_;
  Limits limits_;
  std::vector<DevicePolicy*> policies_;
  std::vector<Rope> ropes_;           // distinct ones
  std::vector<uint32_t> layer_rope_;  // [n_layer] index into ropes_
  DeviceRanges windows_;              // of layers with a window
  bool has_windows_;
  DeviceRows rows_;
  bool in_parts_ = false, capped_ = false;  // prefill steps are read one by one; q_capped_ is used
  bool keys_apart_ = false;                 // keys of some rows are not rotated
  bool learning_ = false;                   // there is something on learn_stream_
  kernels::cuda::CudaStream learn_stream_;  // beside the pass
  kernels::cuda::CudaEvent attended_, learned_;
  PositionFreeKeys position_free_;
  kernels::cuda::DeviceBuffer<__nv_bfloat16> q_;  // [rows, n_head, head_dim] rotated
  // [.., n_head] of rows, those of a layer [sequences] after those of the one before: decode rows
  // of a layer are there until the pass ends.
  kernels::cuda::DeviceBuffer<float> lse_;
  float* own_lse_ = nullptr;  // of the layer that was stored last
  // [sequences, n_head, head_dim] of decode rows; [rows, ..] of all where KV is float
  kernels::cuda::DeviceBuffer<float> q_exact_;
  kernels::cuda::DeviceBuffer<float> q_plain_;  // as q_, normed only; empty if nobody asks
  kernels::cuda::DeviceBuffer<int32_t> keys_;   // [sequences] keys that full attention reads
  // Where pages may lie in the host's memory: those of a sequence and layer.
  kernels::cuda::DeviceBuffer<std::byte> copies_;
  kernels::cuda::DeviceBuffer<uint32_t> copy_ids_;  // [capacity] 0, 1, ...
  // Where policies read in parts.
  kernels::cuda::DeviceBuffer<__nv_bfloat16> q_capped_;     // as q_
  kernels::cuda::DeviceBuffer<float> q_capped_exact_;       // as q_exact_
  kernels::cuda::DeviceBuffer<float> part_out_, more_out_;  // [rows, n_head, head_dim]
  kernels::cuda::DeviceBuffer<float> more_lse_;             // [rows, n_head]
  kernels::cuda::DeviceBuffer<std::byte> decode_workspace_, prefill_workspace_;
};

}  // namespace reprise
