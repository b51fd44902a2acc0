// AttentionPredictor on a CUDA device, with the exponential average; see
// methods/attention_predictor/attention_predictor.h. What is known of a sequence begins anew with
// the last rows of every prompt.
#pragma once

#include <vector>

#include "attention/cuda/device_policy.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/page_shares.h"
#include "methods/attention_predictor/attention_predictor.h"

namespace reprise {

class DeviceAttentionPredictor : public DevicePolicy {
 public:
  DeviceAttentionPredictor(const AttentionPredictorPolicy& policy, const ModelConfig& config);
  /// kUnsupported: options that devices do not have.
  static Status check(const AttentionPredictorPolicy& policy);

  Status reserve(const DeviceRoom& room) override;
  Status plan(const DevicePlan& plan, cudaStream_t stream) override;
  Status after_prefill(const DevicePrompt& prompt, cudaStream_t stream) override;
  Status select(const DeviceQueries& queries, DeviceRead& read, cudaStream_t stream) override;
  bool chooses_pages() const override { return true; }
  bool learns() const override { return true; }
  Status observe(const DeviceQueries& queries, const DeviceRead& read, const float* lse,
                 cudaStream_t stream) override;
  Status learn(const DeviceQueries& queries, cudaStream_t stream) override;
  Status predict(const DeviceQueries& queries, DeviceRead& read, cudaStream_t stream) override;
  uint64_t keys_read(const DeviceRow& row) const override;
  uint64_t index_bytes_read(const DeviceRow& row) const override;

 private:
  /// Rows of a prefill step that belong to the history.
  struct History {
    uint32_t slot = 0, first_row = 0, rows = 0;
    bool first = false;  // nothing before them counts
  };
  uint32_t slot_of(const Policy* owner);
  History history_of(const SequenceStep& step, int32_t position) const;
  Status grow(const DeviceRoom& room);
  float* averages_of(uint32_t layer, uint32_t slot) const;
  size_t lists_of(uint32_t layer) const;
  kernels::cuda::ShareTurns turns_of(uint32_t layer) const;
  /// Scores every key for the rows that have their turn.
  Status calibrate(const DeviceQueries& queries, cudaStream_t stream) const;
  /// Chooses for rows at the positions; scored: those that had their turn by what they scored.
  Status choose(const DeviceQueries& queries, const int32_t* positions, bool scored,
                uint32_t* lists, uint32_t* numbers, int32_t* keys, cudaStream_t stream) const;

  const ModelConfig& config_;
  AttentionPredictorOptions options_;
  float fade_;
  uint32_t sequences_ = 0, capacity_ = 0, list_capacity_ = 0;
  uint64_t tile_bytes_ = 0;
  uint64_t pass_ = 0;
  std::vector<const Policy*> owners_;   // [sequences] of slots
  std::vector<uint64_t> used_;          // [sequences] the last pass
  std::vector<History> histories_;      // [steps] of the pass
  std::vector<uint32_t> slots_, sent_;  // of decode rows
  kernels::cuda::PinnedBuffer<uint32_t> staged_[2];
  kernels::cuda::DeviceBuffer<uint32_t> device_slots_;  // [sequences]
  // [n_layer, sequences, n_kv_head, capacity], then what rows scored in a layer, [sequences, ...]
  kernels::cuda::DeviceBuffer<float> averages_;
  kernels::cuda::DeviceBuffer<float> logs_;           // [sequences, n_head, capacity] of a layer
  kernels::cuda::DeviceBuffer<uint32_t> score_rows_;  // [sequences] of averages_, in a layer
  kernels::cuda::DeviceBuffer<uint32_t> arrived_;     // [sequences, n_kv_head]
  // [n_layer, sequences, n_kv_head, list_capacity]
  kernels::cuda::DeviceBuffer<uint32_t> numbers_;
  kernels::cuda::DeviceBuffer<float> shares_;
  // [sequences, n_kv_head, list_capacity or 1] of one layer
  kernels::cuda::DeviceBuffer<uint32_t> lists_, next_lists_;
  kernels::cuda::DeviceBuffer<int32_t> keys_, next_keys_;
  kernels::cuda::DeviceBuffer<float> votes_;    // [n_head, 16 capacity]
  kernels::cuda::DeviceBuffer<float> weighed_;  // [history, n_head]
};

}  // namespace reprise
