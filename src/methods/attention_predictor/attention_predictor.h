// AttentionPredictor (arXiv 2502.04077): the attention that blocks of keys will get is forecast
// from what they got at past rows, before the query is known; the first keys, the best blocks and a
// recent window are read. Nothing is evicted.
//
// Decided apart from the paper (mode=paper takes its choice where there is an option): scores come
// from the logits that attention computes anyway, over the keys that it reads; query heads of a KV
// head share a choice; blocks are ranked by the sum of their attention; boundaries are those of
// pages, so that a step never reads more than its budget; layers take turns at reading every key.
// Layers are left dense with `dense+attention_predictor`.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "methods/attention_predictor/block_choice.h"
#include "methods/attention_predictor/block_scores.h"
#include "methods/attention_predictor/network.h"
#include "reprise/options.h"

namespace reprise {

struct AttentionPredictorOptions {
  static constexpr uint32_t kLeastBudget = 64, kMostBudget = 1 << 24;

  std::string mode = "default";
  std::string file = "none";
  float factor = 0.7f;
  uint32_t budget = 1024;
  std::string layers = "none";
  uint32_t sink = 16;
  uint32_t window = 32;
  std::string calibrate = "scores";
  uint32_t period = 8;
  uint32_t history = 32;
  std::string pool = "sum";
};

template <class Visitor>
void visit_options(AttentionPredictorOptions& o, Visitor&& visit) {
  visit(OptionSpec{"mode",
                   "paper: as published, that is calibrate=dense, period=5, sink=64, window=64, "
                   "history=64, pool=max and a file of --form published",
                   "", 0, 0, "default|paper"},
        o.mode);
  visit(
      OptionSpec{"file", "a network of `reprise train`; none: an exponential average of past rows"},
      o.file);
  visit(OptionSpec{"factor", "weight of the past in the average; 0 = the last row alone", "", 0, 1},
        o.factor);
  visit(OptionSpec{"budget", "keys read per KV head", "tokens",
                   AttentionPredictorOptions::kLeastBudget, AttentionPredictorOptions::kMostBudget},
        o.budget);
  visit(
      OptionSpec{"layers",
                 "budgets of single layers, LAYER:TOKENS separated by '/'; the others have budget"},
      o.layers);
  visit(OptionSpec{"sink", "first keys that are always read, part of the budget, in whole pages",
                   "tokens", 0, 1 << 20},
        o.sink);
  visit(OptionSpec{"window", "recent keys that are always read, part of the budget", "tokens", 1,
                   1 << 20},
        o.window);
  visit(OptionSpec{"calibrate",
                   "what finds blocks that were not read: dense: a step over every key; scores: "
                   "all keys are scored, without values, and the best are read",
                   "", 0, 0, "dense|scores"},
        o.calibrate);
  visit(OptionSpec{"period",
                   "decode steps of a layer from one calibration to the next; 0 = none; 1 with "
                   "scores: nothing is forecast, which bounds what any predictor can find",
                   "tokens", 0, 1 << 20},
        o.period);
  visit(OptionSpec{"history", "last prompt rows whose attention is taken", "tokens", 1, 4096},
        o.history);
  visit(OptionSpec{"pool", "what stands for the keys of a block", "", 0, 0, "sum|max"}, o.pool);
}

class AttentionPredictorPolicy : public Policy {
 public:
  /// net: what forecasts, or null for the average.
  AttentionPredictorPolicy(const AttentionPredictorOptions& options, const ModelConfig& config,
                           const std::shared_ptr<const ForecastNet>& net = {});
  /// Reads the file that the options name. Errors: those of load_forecast_net(); kInvalidArgument
  /// where layers names none of the model's or no budget, or mode=paper has no network as
  /// published.
  static Result<std::unique_ptr<Policy>> create(const AttentionPredictorOptions& options,
                                                const ModelConfig& config);

  /// With what the mode sets.
  const AttentionPredictorOptions& options() const { return options_; }
  /// Of each layer.
  const std::vector<BlockBudget>& budgets() const { return budgets_; }
  /// Null: the average forecasts.
  const ForecastNet* network() const { return net_.get(); }
  /// What devices know of each KV head of the sequence, where they compute: then select() is not
  /// called. All of them may say so at once.
  void set_device_bytes(uint64_t head_bytes) const {
    std::atomic_ref(device_bytes_).store(head_bytes, std::memory_order_relaxed);
  }
  std::unique_ptr<Policy> fork() const override {
    return std::make_unique<AttentionPredictorPolicy>(*this);
  }
  void select(const QueryRows& rows, Selection& selection) override;
  int32_t reads_from(const QueryRows& rows) const override;
  bool predict(const QueryRows& rows, Selection& selection) override;
  bool observes(uint32_t layer, kernels::Phase phase) const override {
    return phase == kernels::Phase::kDecode && !is_left_alone(layer);
  }
  void observe(const QueryRows& rows, const AttentionResult& result) override;
  void truncate(int32_t length) override;
  std::string prefill_key() const override { return std::string(kDensePrefill); }
  int32_t observed_prompt_rows(int32_t prompt_end, int32_t) const override {
    return std::min(prompt_end, history_);
  }
  /// Of a decode step, all layers together: "forecast_us", what pooling of scores, histories and
  /// choices take; "calibrate_us", what scoring every key takes; "calibrated": share of the steps
  /// of layers that looked at every key.
  PolicyStats stats() const override;
  void clear_stats() override { sums_ = {}; }
  uint64_t state_bytes() const override;
  std::string save_state() const override;
  Status restore_state(std::string_view state, int32_t length) override;

 private:
  struct Layer {
    Layer() = default;
    Layer(const Layer& other)
        : predictor(other.predictor->clone()), rows(other.rows), end(other.end) {}

    std::unique_ptr<Predictor> predictor;
    int32_t rows = 0;  // of the history
    int32_t end = 0;   // tokens before the next row of the history
  };
  struct Sums {
    double forecast_us = 0.0, calibrate_us = 0.0, layer_steps = 0.0, calibrated = 0.0;
  };
  void read_prompt(const QueryRows& rows);
  void push(uint32_t layer, const ScoreRow& row, int32_t position);
  bool calibrates(uint32_t layer, int32_t end) const {
    return period_ > 0 && (end + static_cast<int32_t>(layer)) % period_ == 0;
  }
  /// Whether a decode row reads every key: because they are few, or to calibrate.
  bool reads_all(const QueryRows& rows) const;
  void choose(const QueryRows& rows, bool scored, Selection& selection);
  void find_blocks(const QueryRows& rows, const BlockBudget::Choice& choice, bool scored);

  const ModelConfig* config_;
  AttentionPredictorOptions options_;
  std::vector<BlockBudget> budgets_;  // [n_layer]
  int32_t period_, history_;
  bool dense_calibration_;
  std::shared_ptr<const ForecastNet> net_;
  BlockScores scores_;
  std::vector<Layer> layers_;
  ScoreRow row_;
  PageShares shares_;                         // of the step being computed
  std::vector<std::vector<int32_t>> blocks_;  // [n_kv_head] that are read
  Sums sums_;
  mutable uint64_t device_bytes_ = 0;  // of a KV head
};

}  // namespace reprise
