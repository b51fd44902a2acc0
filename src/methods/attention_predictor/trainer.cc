#include "methods/attention_predictor/trainer.h"

#include <bit>
#include <cmath>
#include <numbers>

namespace reprise {
namespace {

constexpr size_t kCropColumns = 64, kWeights = sizeof(kernels::ScoreNet) / sizeof(float);
constexpr size_t kPadded = 2;  // columns at a cut that see zeros which are none
constexpr uint32_t kWarmUp = 50;
// Adam's steps have one width for all weights: beside biases that move by it, shares of a
// thousandth would be lost.
constexpr float kShareUnits = 100.0f;
constexpr float kMeanDecay = 0.9f, kSquareDecay = 0.999f, kEpsilon = 1e-8f;
using Flat = std::array<float, kWeights>;

ForecastNet initial_net(const TrainingOptions& options, std::mt19937_64& random) {
  ForecastNet net;
  net.rows = options.rows;
  net.published = options.published;
  if (options.published) net.pool = BlockPool::kMax;
  const auto fill = [&](auto& weights, double inputs) {  // He et al. 2015
    std::normal_distribution<float> normal(0.0f, static_cast<float>(std::sqrt(2.0 / inputs)));
    for (float& x : weights) x = normal(random);
  };
  fill(net.net.conv1, 9.0);
  fill(net.net.conv2, 9.0 * kernels::kNetInner);
  if (options.published) fill(net.net.conv3, 2.0 * kernels::kNetOuter);  // no ReLU follows
  return net;
}

Status no_layers(uint32_t first_layer) {
  return fail(ErrorCode::kUnsupported,
              "no layer of the model from layer {} on reads every key, so there is nothing to "
              "learn from; attention_predictor needs no network there: leave file= away",
              first_layer);
}

}  // namespace

Status check_layers(const ModelConfig& config, uint32_t first_layer) {
  for (size_t layer = first_layer; layer < config.n_layer; ++layer) {
    if (config.window[layer] == 0) return {};
  }
  return no_layers(first_layer);
}

std::vector<float> flat(const kernels::ScoreNet& net) {
  const auto values = std::bit_cast<Flat>(net);
  return {values.begin(), values.end()};
}

Trainer::Trainer(const TrainingOptions& options, std::span<const Recording> training,
                 std::span<const Recording> validation, ThreadPool& pool)
    : options_(options),
      training_(training),
      validation_(validation),
      pool_(pool),
      random_(options.seed),
      net_(initial_net(options, random_)),
      units_(options.published ? kShareUnits : 1.0f),
      mean_(kWeights),
      square_(kWeights) {
  const Recording::Rows& recorded = validation.front().layers;
  for (size_t layer = options.first_layer; layer < recorded.size(); ++layer) {
    if (!recorded[layer].empty()) layers_.push_back(layer);
  }
}

Trainer::Crop Trainer::draw() {
  const auto below = [&](size_t count) { return static_cast<size_t>(random_() % count); };
  const Recording& text = training_[below(training_.size())];
  const auto& rows = text.of(net_.pool)[layers_[below(layers_.size())]];
  const size_t history = options_.rows, next = history + below(rows.size() - history);
  const size_t head = below(rows[next].heads);
  const auto choice =
      options_.validation.budget.choice(text.first + static_cast<int32_t>(next) + 1);
  const auto shown = [&](float share) {
    return options_.published ? units_ * share : std::sqrt(share);
  };
  Crop crop;
  crop.columns = std::min(kCropColumns, choice.candidates());
  const size_t from = choice.first + below(choice.candidates() - crop.columns + 1);
  crop.first = from == choice.first ? 0 : kPadded;
  crop.last = from + crop.columns == choice.last ? crop.columns : crop.columns - kPadded;
  crop.window.resize(history * crop.columns);
  crop.average.resize(crop.columns);
  crop.target.resize(crop.columns);
  for (size_t c = 0; c < crop.columns; ++c) {
    const auto score = [&](const ScoreRow& row) {
      return from + c < row.blocks ? row.scores[head * row.blocks + from + c] : 0.0f;
    };
    float average = score(rows[next - history]);
    for (size_t r = 0; r < history; ++r) {
      const float value = score(rows[next - history + r]);
      average = options_.factor * average + (1.0f - options_.factor) * value;
      crop.window[r * crop.columns + c] = shown(value);
    }
    crop.average[c] = options_.published ? 0.0f : shown(average);
    crop.target[c] = shown(score(rows[next]));
  }
  return crop;
}

double Trainer::learn(const Crop& crop, kernels::ScoreNet& gradient,
                      kernels::ScoreNetScratch& scratch) const {
  std::vector<float> slope(crop.columns);
  kernels::score_net_forward(net_.net, crop.window.data(), options_.rows, crop.columns, scratch,
                             slope.data());
  const auto counted = static_cast<float>(crop.last - crop.first);
  double loss = 0.0;
  for (size_t c = 0; c < crop.columns; ++c) {
    const float error = slope[c] + crop.average[c] - crop.target[c];
    const bool counts = c >= crop.first && c < crop.last;
    slope[c] = counts ? 2.0f * error / counted : 0.0f;
    loss += counts ? double{error} * error / counted : 0.0;
  }
  kernels::score_net_backward(net_.net, crop.window.data(), options_.rows, crop.columns,
                              slope.data(), scratch, gradient);
  return loss;
}

double Trainer::step(float rate) {
  const size_t batch = options_.batch;
  std::vector<Crop> crops(batch);
  for (Crop& crop : crops) crop = draw();
  std::vector<kernels::ScoreNet> gradients(batch);
  std::vector<double> losses(batch);
  std::vector<kernels::ScoreNetScratch> scratch(static_cast<size_t>(pool_.size()));
  pool_.run(batch, [&](size_t i, int thread) {
    losses[i] = learn(crops[i], gradients[i], scratch[static_cast<size_t>(thread)]);
  });
  std::vector<float> gradient(kWeights);
  double loss = 0.0;
  for (size_t i = 0; i < batch; ++i) {
    const auto one = std::bit_cast<Flat>(gradients[i]);
    for (size_t w = 0; w < kWeights; ++w) gradient[w] += one[w] / static_cast<float>(batch);
    loss += losses[i] / (static_cast<double>(batch) * units_ * units_);
  }
  ++steps_done_;
  const auto done = static_cast<float>(steps_done_);
  const float mean_scale = 1.0f / (1.0f - std::pow(kMeanDecay, done));
  const float square_scale = 1.0f / (1.0f - std::pow(kSquareDecay, done));
  auto weights = std::bit_cast<Flat>(net_.net);
  for (size_t w = 0; w < kWeights; ++w) {
    mean_[w] = kMeanDecay * mean_[w] + (1.0f - kMeanDecay) * gradient[w];
    square_[w] = kSquareDecay * square_[w] + (1.0f - kSquareDecay) * gradient[w] * gradient[w];
    weights[w] -= rate * mean_[w] * mean_scale / (std::sqrt(square_[w] * square_scale) + kEpsilon);
  }
  net_.net = std::bit_cast<kernels::ScoreNet>(weights);
  return loss;
}

// A network without biases gives so many times as much for so many times as much.
ForecastNet Trainer::learnt() const {
  ForecastNet net = net_;
  for (float& bias : net.net.bias1) bias /= units_;
  for (float& bias : net.net.bias2) bias /= units_;
  net.net.bias3 /= units_;
  return net;
}

Result<ForecastNet> Trainer::train(const std::function<void(const EpochReport&)>& told,
                                   const ProgressFn& progress) {
  if (layers_.empty()) return tl::unexpected<Error>(no_layers(options_.first_layer).error());
  ForecastNet best = learnt();
  double best_recovery = -1.0;
  uint32_t without_gain = 0;
  const auto all = static_cast<double>(options_.epochs) * options_.steps;
  for (uint32_t epoch = 1; epoch <= options_.epochs && without_gain < options_.patience; ++epoch) {
    EpochReport report;
    report.epoch = epoch;
    for (uint32_t i = 0; i < options_.steps; ++i) {
      if (!progress({"train", steps_done_, options_.epochs * options_.steps, "steps"})) {
        return fail(ErrorCode::kCancelled, "training was stopped");
      }
      const double cosine = 0.5 * (1.0 + std::cos(std::numbers::pi * steps_done_ / all));
      const double warm = std::min(1.0, (steps_done_ + 1.0) / kWarmUp);
      report.loss += step(static_cast<float>(options_.rate * cosine * warm)) / options_.steps;
    }
    const auto net = std::make_shared<const ForecastNet>(learnt());
    const size_t heads = validation_.front().layers[layers_.front()].front().heads;
    RecoveryCase how = options_.validation;
    how.pool = net->pool;
    report.recovery = closed_loop_recovery(
        validation_, how, options_.first_layer,
        [&] {
          return std::make_unique<NetworkPredictor>(heads, net, options_.factor,
                                                    options_.validation.period);
        },
        pool_);
    report.best = report.recovery > best_recovery;
    without_gain = report.best ? 0 : without_gain + 1;
    if (report.best) {
      best = *net;
      best_recovery = report.recovery;
    }
    told(report);
  }
  return best;
}

}  // namespace reprise
