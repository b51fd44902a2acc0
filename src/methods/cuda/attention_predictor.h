// AttentionPredictor on a CUDA device; see methods/attention_predictor/attention_predictor.h. What
// is known of a sequence begins anew with the last rows of every prompt.
#pragma once

#include <optional>
#include <vector>

#include "attention/cuda/device_policy.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/page_shares.h"
#include "kernels/cuda/score_net.h"
#include "kernels/cuda/staged_array.h"
#include "methods/attention_predictor/attention_predictor.h"

namespace reprise {

class DeviceAttentionPredictor : public DevicePolicy {
 public:
  DeviceAttentionPredictor(const AttentionPredictorPolicy& policy, const ModelConfig& config);
  Status reserve(const DeviceRoom& room) override;
  Status plan(const DevicePlan& plan, cudaStream_t stream) override;
  uint64_t variant(const DeviceGroup& group) const override;
  Status begin(const DeviceRows& rows, const PagedKv& kv, cudaStream_t stream) override;
  Status after_prefill(const DevicePrompt& prompt, cudaStream_t stream) override;
  Status select(const DeviceQueries& queries, DeviceRead& read, cudaStream_t stream) override;
  bool chooses_pages() const override { return true; }
  /// Unless a row may calibrate.
  bool chooses_early(const DeviceGroup& group, uint32_t layer) const override {
    const uint64_t due = variant(group);
    return due == 0 || (due & captured_turn(layer)) == 0;
  }
  bool learns() const override { return true; }
  /// A network takes longer than what is left of a pass after its layers.
  uint32_t layers_learned_together() const override {
    return net_ ? 8 : DevicePolicy::layers_learned_together();
  }
  Status learn(const DeviceQueries& queries, uint32_t layers, cudaStream_t stream) override;
  Status predict(const DeviceQueries& queries, std::span<DeviceRead> layers,
                 cudaStream_t stream) override;
  uint64_t keys_read(const DeviceRow& row) const override;
  uint64_t index_bytes_read(const DeviceRow& row) const override;

 private:
  static constexpr uint32_t kScoredRows = 8;  // of a prompt at once
  /// Rows of a prefill step that belong to the history.
  struct History {
    uint32_t slot = 0, first_row = 0, rows = 0;
    bool first = false;  // nothing before them counts
  };
  /// Where lists of some rows of a layer go.
  struct Lists {
    uint32_t* pages;
    uint32_t* numbers;  // null: not wanted
    int32_t* keys;
  };
  struct LayerRange {
    uint32_t first, count;
  };
  /// Of layers from first on those in which pages are chosen, side by side where budgets are equal.
  std::vector<LayerRange> layers(uint32_t first, uint32_t count) const;
  /// next: of the rows after them.
  Lists lists(const DeviceQueries& queries, bool next) const;
  Result<uint32_t> slot_of(const Policy* owner, cudaStream_t stream);
  Status clear(uint32_t slot, cudaStream_t stream) const;
  /// Of averages, forecasts and histories of a KV head of a sequence.
  uint64_t head_bytes() const;
  History history_of(const SequenceStep& step, int32_t position) const;
  Status grow(const DeviceRoom& room);
  float* averages_of(uint32_t layer, uint32_t slot) const;
  /// Elements from the averages of a layer to the next one's.
  size_t layer_averages() const { return size_t{sequences_} * config_.n_kv_head * capacity_; }
  /// What pages of a row of a layer are chosen by: forecasts; of layer n_layer: what rows scored.
  float* scores_of(uint32_t layer, uint32_t slot) const;
  kernels::cuda::ShareHistory history_of(uint32_t layer, uint32_t slot) const;
  /// What the network forecasts after rows of a layer; slot: the first that slots name.
  kernels::cuda::ForecastArgs forecast_args(uint32_t layer, uint32_t slot) const;
  /// Pages of a list.
  uint32_t list_capacity(uint32_t layer) const;
  /// Where lists begin of a layer and row, and numbers of their keys.
  size_t lists_of(uint32_t layer, uint32_t row) const;
  size_t keys_of(uint32_t layer, uint32_t row) const {
    return (size_t{layer} * sequences_ + row) * config_.n_kv_head;
  }
  /// Rows that calibrate.
  kernels::cuda::RowTurns turns_of(uint32_t layer) const;
  /// One bit: of the turns that steps are captured for, that of a layer.
  uint64_t captured_turn(uint32_t layer) const;
  /// That of the layers in which a row calibrates; 0: there is none.
  uint64_t captured_turn_at(int32_t position) const;
  bool calibrates(const DeviceRow& row) const;
  /// Scores rows of a prompt over every key, one by one.
  Status score_rows(const DevicePrompt& prompt, const History& own, cudaStream_t stream);
  /// Averages what votes of a prompt's rows say.
  Status count_votes(const DevicePrompt& prompt, const History& own, cudaStream_t stream);
  kernels::cuda::WholeSharesArgs whole_args() const;
  /// Whether rows of prompts are scored, because votes for keys do not tell what is wanted.
  bool scores_rows() const { return largest_ || net_; }
  uint32_t scored_rows(const DeviceRoom& room) const;
  uint32_t group() const { return config_.n_head / config_.n_kv_head; }
  /// What attention says of pages of lists, beside what they name.
  float* page_logs(const Lists& read) const {
    return read_logs_.data() + static_cast<size_t>(read.numbers - numbers_.data()) * group();
  }
  /// Of layers with one budget.
  Status learn_range(const DeviceQueries& queries, uint32_t layers, cudaStream_t stream);
  /// Scores every key for the rows that have their turn, and chooses by that.
  Status calibrate(const DeviceQueries& queries, kernels::cuda::TopPagesArgs choice,
                   cudaStream_t stream) const;
  /// Choices for rows of a layer.
  kernels::cuda::TopPagesArgs choice(const DeviceQueries& queries, const Lists& lists) const;
  kernels::cuda::KeyLists key_lists(const DeviceQueries& queries, const Lists& lists) const;

  const ModelConfig& config_;
  AttentionPredictorOptions options_;
  std::vector<BlockBudget> budgets_;  // [n_layer]
  bool scores_, dense_, largest_;     // calibrates by scores, by dense rows; pool=max
  float fade_;
  std::optional<ForecastNet> net_;
  uint32_t sequences_ = 0, capacity_ = 0;
  uint32_t longest_list_ = 0;  // pages
  uint64_t tile_bytes_ = 0;
  uint64_t pass_ = 0;
  std::vector<const Policy*> owners_;                // [sequences] of slots
  std::vector<uint64_t> used_;                       // [sequences] the last pass
  std::vector<History> histories_;                   // [steps] of the pass
  std::vector<uint32_t> slots_, sent_;               // of decode rows
  std::vector<uint64_t> due_;                        // [decode rows] captured_turn_at() theirs
  kernels::cuda::StagedArray<uint32_t> sent_slots_;  // [sequences]
  // [n_layer, sequences, n_kv_head, capacity]; what scores_of() names is followed by what rows
  // scored in a layer, [scored_rows, n_kv_head, capacity]
  kernels::cuda::DeviceBuffer<float> averages_, forecasts_;
  // [n_layer, sequences, n_kv_head, rows of the network, capacity]
  kernels::cuda::DeviceBuffer<float> history_rows_, parts_;
  kernels::cuda::DeviceBuffer<kernels::cuda::ScoreNetImage> device_net_;
  kernels::cuda::DeviceBuffer<float> logs_;  // as WholeSharesArgs, of a layer
  kernels::cuda::DeviceBuffer<float2> sums_;
  // [n_layer, sequences, n_kv_head, longest_list or 1]; of the next rows: [kPredictedLayers, ...]
  kernels::cuda::DeviceBuffer<uint32_t> numbers_, lists_, next_lists_;
  kernels::cuda::DeviceBuffer<float> shares_, read_logs_;  // logs: of a KV head's query heads
  kernels::cuda::DeviceBuffer<int32_t> keys_, next_keys_;
  kernels::cuda::DeviceBuffer<float> votes_;    // [n_head, 16 capacity]
  kernels::cuda::DeviceBuffer<float> weighed_;  // [history, n_head]
};

}  // namespace reprise
