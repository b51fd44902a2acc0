// ReAttention on a CUDA device; see methods/reattention/reattention.h.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "attention/cuda/device_policy.h"
#include "kernels/cuda/device_buffer.h"
#include "methods/cuda/reattention_watch.h"
#include "methods/reattention/reattention.h"

namespace reprise {

class DeviceReAttention : public DevicePolicy {
 public:
  /// kUnsupported: options that devices do not have.
  static Result<std::unique_ptr<DevicePolicy>> create(const ReAttentionPolicy& policy,
                                                      const ModelConfig& config);

  Status reserve(const DeviceRoom& room) override;
  bool position_free() const override { return true; }
  bool packs() const override { return true; }
  uint32_t most_rotated_keys() const override;
  bool reads_plain_queries() const override { return true; }
  Status plan(const DevicePlan& plan, cudaStream_t stream) override;
  Status select(const DeviceQueries& queries, DeviceRead& read, cudaStream_t stream) override;
  Status pack(const DevicePrompt& prompt, PackedPrompt& packed, cudaStream_t stream) override;
  /// At most: spans may overlap.
  uint64_t keys_read(const DeviceRow& row) const override;
  uint64_t index_bytes_read(const DeviceRow& row) const override;

 private:
  using TopKeysArgs = kernels::cuda::TopKeysArgs;
  using KeySpansArgs = kernels::cuda::KeySpansArgs;

  struct Votes {
    kernels::cuda::DeviceBuffer<uint32_t> keys, votes, best, used;  // [batch, slots]
    kernels::cuda::DeviceBuffer<uint32_t> count;                    // [batch]
    uint32_t slots = 0;

    Status reserve(uint32_t batch, uint32_t most);
    kernels::cuda::VoteTables tables() const;
  };

  DeviceReAttention(const ReAttentionPolicy& policy, const ModelConfig& config);
  /// For rows of a layer, from a step on, of whose scan the caller says where its keys and queries
  /// are, and how many keys are looked for (0: none).
  Status choose(uint32_t layer, uint32_t step, TopKeysArgs scan, KeySpansArgs spans,
                kernels::cuda::PackedQueriesArgs queries, cudaStream_t stream) const;
  /// Of rows that stand alone, before their scan: finds which of them make it, and sets what scan
  /// and spans need of what is kept.
  Status begin_row(uint32_t layer, uint32_t step, TopKeysArgs& scan, KeySpansArgs& spans,
                   cudaStream_t stream) const;
  /// After it: finds what heads agree on, where they may.
  Status agree(uint32_t step, const TopKeysArgs& scan, KeySpansArgs& spans,
               cudaStream_t stream) const;
  /// Sets scan.least, where there is one.
  Status find_least(TopKeysArgs& scan, const kernels::cuda::PositionAngles& angles,
                    cudaStream_t stream) const;
  uint32_t stride() const { return static_cast<uint32_t>(std::max(1, settings_.stride)); }
  uint32_t chunk_voters() const;
  /// Spans that a row reads at most.
  uint32_t most_spans() const;

  ReAttentionPolicy::Settings settings_;
  std::vector<LayerRope> layer_rope_;
  uint32_t n_layer_, n_head_, n_kv_head_, head_dim_;
  float query_scale_, attention_scale_;
  kernels::cuda::MiddleKeys middle_, widest_;  // the latter where the gate is closed
  DeviceWatch watch_;
  kernels::cuda::EvidenceRules gate_rules_;
  float gate_open_ = 0.0f;            // weighted sum of heads from which on all of them look far
  double agree_least_ = 0.0;          // votes of a region
  int32_t interval_ = 1;              // decoded rows that share a scan
  std::vector<uint32_t> turns_;       // [n_layer] layers before that scan rows which stand alone
  std::vector<int32_t> prompt_ends_;  // of the pass's steps
  kernels::cuda::StagedArray<int32_t> sent_prompt_ends_;
  kernels::cuda::DeviceBuffer<int32_t> scanning_;  // [sequences] as KeptScansArgs
  kernels::cuda::DeviceBuffer<uint32_t> leaders_;  // [sequences, n_head] as TopKeysArgs
  uint32_t span_tokens_, list_capacity_ = 0;
  uint64_t tile_bytes_ = 0;                       // of keys that are scanned
  kernels::cuda::DeviceBuffer<float> angles_[3];  // as Settings::angles
  kernels::cuda::DeviceBuffer<std::byte> workspace_;
  kernels::cuda::DeviceBuffer<uint32_t> floors_;  // [sequences or voters of a chunk, n_head]
  kernels::cuda::DeviceBuffer<float> least_;      // [sequences, n_head]
  kernels::cuda::DeviceBuffer<uint8_t> voting_;   // as Settings::heads
  Votes votes_, prompt_votes_;
  kernels::cuda::DeviceBuffer<int32_t> keys_;         // [sequences] that are read
  kernels::cuda::DeviceBuffer<uint32_t> list_pages_;  // [sequences, list_capacity]
  kernels::cuda::DeviceBuffer<uint16_t> list_slots_;
  kernels::cuda::DeviceBuffer<uint32_t> list_angles_;
  kernels::cuda::DeviceBuffer<int32_t> list_keys_;                   // [sequences]
  kernels::cuda::DeviceBuffer<int32_t> tokens_;                      // [span_tokens]
  kernels::cuda::DeviceBuffer<kernels::cuda::PrefillRows> prefill_;  // [1]
  kernels::cuda::DeviceBuffer<float> q_exact_;    // [sequences, n_head, head_dim]
  kernels::cuda::DeviceBuffer<__nv_bfloat16> q_;  // [chunk, n_head, head_dim]
};

}  // namespace reprise
