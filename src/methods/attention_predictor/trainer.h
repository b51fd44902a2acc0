// Trains the network on recorded attention: plain Adam over 4,833 weights.
#pragma once

#include <functional>
#include <random>
#include <string>

#include "kernels/score_net_gradient.h"
#include "methods/attention_predictor/network.h"
#include "methods/attention_predictor/recovery.h"

namespace reprise {

struct TrainingOptions {
  bool published = false;  // the form: see ForecastNet and Trainer
  uint32_t rows = 16;      // of history
  uint32_t steps = 100;    // of an epoch
  uint32_t batch = 64;     // crops of a step
  uint32_t epochs = 20;    // at most
  uint32_t patience = 5;   // epochs without a gain after which it ends
  float rate = 2e-3f;      // largest step width
  float factor = 0.7f;     // of the average that the network adds to
  uint64_t seed = 1;
  uint32_t first_layer = 2;  // layers before it stay dense and are not learned from
  RecoveryCase validation;
};

struct EpochReport {
  uint32_t epoch = 0;
  double loss = 0.0, recovery = 0.0;
  bool best = false;
};

/// The network predicts square roots of the next row's shares, as what is to be added to those of
/// the average; its last layer starts at zero, that is at the average. As published (arXiv
/// 2502.04077, appendix B) it predicts the next row's shares of blocks' best keys, from nothing but
/// such rows, and starts at random. Both learn by mean squared error. The same recordings and seed
/// give the same bits, whatever the number of threads on one machine.
class Trainer {
 public:
  Trainer(const TrainingOptions& options, std::span<const Recording> training,
          std::span<const Recording> validation, ThreadPool& pool);

  /// The network of the best epoch by closed-loop recovery; recordings hold blocks' best keys if it
  /// is to be as published. told after each; progress before each step: stage "train", in steps.
  /// Errors: kCancelled; kUnsupported where no layer can be learned from: see check_layers().
  Result<ForecastNet> train(const std::function<void(const EpochReport&)>& told,
                            const ProgressFn& progress);

 private:
  struct Crop {
    std::vector<float> window;   // [rows, columns] square roots, or shares, in units_
    std::vector<float> average;  // [columns] square roots of the average, or zeros
    std::vector<float> target;   // [columns]
    size_t first = 0, last = 0;  // columns that count
    size_t columns = 0;
  };

  Crop draw();
  /// One step of Adam; returns the loss.
  double step(float rate);
  double learn(const Crop& crop, kernels::ScoreNet& gradient,
               kernels::ScoreNetScratch& scratch) const;
  /// The network so far, as it takes what is in no units.
  ForecastNet learnt() const;

  TrainingOptions options_;
  std::span<const Recording> training_, validation_;
  std::vector<size_t> layers_;  // that are learned from: those with a window have no rows
  ThreadPool& pool_;
  std::mt19937_64 random_;
  ForecastNet net_;
  float units_ = 1.0f;                // inputs and targets are multiplied by it
  std::vector<float> mean_, square_;  // of gradients
  uint32_t steps_done_ = 0;
};

/// kUnsupported for a model of which no layer from first_layer on reads every key.
Status check_layers(const ModelConfig& config, uint32_t first_layer);

/// Slopes of a loss by the weights, and the weights, as one array each.
std::vector<float> flat(const kernels::ScoreNet& net);

}  // namespace reprise
