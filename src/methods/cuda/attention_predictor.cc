#include "methods/cuda/attention_predictor.h"

#include <algorithm>
#include <utility>

#include "base/try.h"
#include "methods/attention_predictor/average.h"

namespace reprise {

using namespace kernels::cuda;

namespace {

constexpr std::string_view kWhat = "attention of pages";
constexpr uint32_t kTokens = kernels::cuda::kPageTokens;

}  // namespace

DeviceAttentionPredictor::DeviceAttentionPredictor(const AttentionPredictorPolicy& policy,
                                                   const ModelConfig& config)
    : config_(config),
      options_(policy.options()),
      budgets_(policy.budgets()),
      scores_(options_.period > 0 && options_.calibrate == "scores"),
      dense_(options_.period > 0 && !scores_),
      largest_(options_.pool == "max"),
      fade_(AveragePredictor(config.n_kv_head, options_.factor, options_.period).fade()) {
  if (policy.network() == nullptr) return;
  net_ = *policy.network();
  options_.history = std::max(options_.history, net_->rows);
}

uint32_t DeviceAttentionPredictor::list_capacity(uint32_t layer) const {
  const auto budget = static_cast<uint32_t>(budgets_[layer].budget) / kTokens;
  return dense_ ? capacity_ : std::min(budget, capacity_);
}

Status DeviceAttentionPredictor::reserve(const DeviceRoom& room) {
  if (room.capacity != capacity_) REPRISE_CHECK(grow(room));
  longest_list_ = 0;
  for (uint32_t layer = 0; layer < config_.n_layer; ++layer) {
    longest_list_ = std::max(longest_list_, list_capacity(layer));
  }
  const size_t rows = size_t{room.sequences} * config_.n_kv_head, lists = rows * longest_list_;
  REPRISE_CHECK(numbers_.reserve(config_.n_layer * lists, kWhat));
  REPRISE_CHECK(shares_.reserve(config_.n_layer * lists, kWhat));
  REPRISE_CHECK(read_logs_.reserve(config_.n_layer * lists * group(), kWhat));
  REPRISE_CHECK(lists_.reserve(config_.n_layer * lists, kWhat));
  REPRISE_CHECK(next_lists_.reserve(kPredictedLayers * lists, kWhat));
  REPRISE_CHECK(keys_.reserve(config_.n_layer * rows, kWhat));
  REPRISE_CHECK(next_keys_.reserve(kPredictedLayers * rows, kWhat));
  REPRISE_CHECK(sent_slots_.reserve(room.sequences, kWhat));
  const uint32_t scored = scored_rows(room);
  const size_t sums = whole_shares_sums(scored, config_.n_head, config_.n_kv_head);
  REPRISE_CHECK(sums_.reserve(sums, kWhat));
  REPRISE_CHECK(
      logs_.reserve((largest_ ? 2 : 1) * size_t{scored} * config_.n_head * room.capacity, kWhat));
  if (scores_rows()) return {};
  REPRISE_CHECK(votes_.reserve(size_t{config_.n_head} * kTokens * room.capacity, kWhat));
  return weighed_.reserve(size_t{options_.history} * config_.n_head, kWhat);
}

/// Rows that are scored over every key at once, at most.
uint32_t DeviceAttentionPredictor::scored_rows(const DeviceRoom& room) const {
  return std::max(scores_ ? room.sequences : 0, scores_rows() ? kScoredRows : 0);
}

/// Keeps what is known of sequences, and everything as it was where there is no memory.
Status DeviceAttentionPredictor::grow(const DeviceRoom& room) {
  const size_t rows = size_t{config_.n_layer} * room.sequences * config_.n_kv_head;
  const size_t scored = size_t{scored_rows(room)} * config_.n_kv_head;
  const size_t width = std::min(room.capacity, capacity_) * sizeof(float);
  const auto widened = [&](const DeviceBuffer<float>& kept, size_t count,
                           size_t more) -> Result<DeviceBuffer<float>> {
    DeviceBuffer<float> wider;
    REPRISE_CHECK(wider.reserve((count + more) * room.capacity, kWhat));
    if (capacity_ > 0) {
      REPRISE_CUDA(cudaMemcpy2D(wider.data(), room.capacity * sizeof(float), kept.data(),
                                capacity_ * sizeof(float), width, count, cudaMemcpyDeviceToDevice),
                   kWhat);
      REPRISE_CUDA(cudaStreamSynchronize(nullptr), kWhat);
    }
    return wider;
  };
  REPRISE_TRY(auto averages, widened(averages_, rows, net_ ? 0 : scored));
  if (net_) {
    REPRISE_TRY(auto forecasts, widened(forecasts_, rows, scored));
    REPRISE_TRY(auto history_rows, widened(history_rows_, rows * net_->rows, 0));
    REPRISE_TRY(auto parts, widened(parts_, rows * net_->rows, 0));
    const ScoreNetImage image = score_net_image(net_->net);
    REPRISE_CHECK(upload(std::span(&image, 1), device_net_, kWhat));
    forecasts_ = std::move(forecasts);
    history_rows_ = std::move(history_rows);
    parts_ = std::move(parts);
  }
  averages_ = std::move(averages);
  capacity_ = room.capacity;
  sequences_ = room.sequences;
  owners_.resize(sequences_);
  used_.resize(sequences_);
  sent_.assign(sequences_, ~0u);  // unlike any
  return {};
}

float* DeviceAttentionPredictor::averages_of(uint32_t layer, uint32_t slot) const {
  return averages_.data() + (size_t{layer} * sequences_ + slot) * config_.n_kv_head * capacity_;
}

float* DeviceAttentionPredictor::scores_of(uint32_t layer, uint32_t slot) const {
  return (net_ ? forecasts_ : averages_).data() + (averages_of(layer, slot) - averages_.data());
}

size_t DeviceAttentionPredictor::lists_of(uint32_t layer, uint32_t row) const {
  return size_t{config_.n_kv_head} *
         (size_t{layer} * sequences_ * longest_list_ + size_t{row} * list_capacity(layer));
}

WholeSharesArgs DeviceAttentionPredictor::whole_args() const {
  WholeSharesArgs args;
  args.n_head = config_.n_head;
  args.scale = kQueryUnit;
  args.soft_cap = config_.attention_soft_cap;
  args.largest = largest_;
  args.capacity = capacity_;
  args.sums = sums_.data();
  return args;
}

Status DeviceAttentionPredictor::calibrate(const DeviceQueries& queries, TopPagesArgs choice,
                                           cudaStream_t stream) const {
  WholeSharesArgs args = whole_args();
  args.kv = queries.kv;
  args.turns = turns_of(queries.layer);
  args.positions = queries.positions;
  args.pages = queries.pages;
  args.rows = queries.count;
  args.q = queries.q;
  args.factor = options_.factor;
  args.slots = sent_slots_.device() + queries.first;
  args.averages = averages_of(queries.layer, 0);
  args.shares = scores_of(config_.n_layer, queries.first);
  args.history = history_of(queries.layer, 0);
  const size_t logs = size_t{queries.first} * config_.n_head * capacity_;
  args.logs = logs_.data() + (largest_ ? 2 : 1) * logs;
  choice.scores = args.shares;
  choice.score_rows = nullptr;
  REPRISE_CUDA(whole_shares(args, &choice, stream), kWhat);
  return {};
}

Status DeviceAttentionPredictor::learn(const DeviceQueries& queries, uint32_t layers,
                                       cudaStream_t stream) {
  for (const LayerRange& range : this->layers(queries.layer, layers)) {
    DeviceQueries own = queries;
    own.layer = range.first;
    own.lse += size_t{range.first - queries.layer} * queries.layer_rows * config_.n_head;
    REPRISE_CHECK(learn_range(own, range.count, stream));
  }
  return {};
}

Status DeviceAttentionPredictor::learn_range(const DeviceQueries& queries, uint32_t layers,
                                             cudaStream_t stream) {
  const Lists read = lists(queries, false);
  AverageSharesArgs args;
  args.numbers = read.numbers;
  args.keys = read.keys;
  args.logs = page_logs(read);
  args.lse = queries.lse;
  args.shares = shares_.data() + (read.numbers - numbers_.data());
  args.rows = queries.count;
  args.n_head = config_.n_head;
  args.n_kv_head = config_.n_kv_head;
  args.list_capacity = list_capacity(queries.layer);
  args.factor = options_.factor;
  args.slots = sent_slots_.device() + queries.first;
  args.averages = averages_of(queries.layer, 0);
  args.capacity = capacity_;
  args.fade = fade_;
  if (scores_) args.turns = turns_of(queries.layer);
  args.positions = queries.positions;
  args.history = history_of(queries.layer, 0);
  args.layers = layers;
  args.list_stride = lists_of(1, 0);
  args.key_stride = keys_of(1, 0);
  args.lse_stride = size_t{queries.layer_rows} * config_.n_head;
  args.average_stride = layer_averages();
  REPRISE_CUDA(average_shares(args, stream), kWhat);
  if (!net_) return {};
  ForecastArgs forecast = forecast_args(queries.layer, 0);
  forecast.positions = queries.positions;
  forecast.slots = args.slots;
  forecast.rows = queries.count;
  forecast.layers = layers;
  forecast.layer_stride = layer_averages();
  REPRISE_CUDA(forecast_shares(forecast, stream), kWhat);
  return {};
}

bool DeviceAttentionPredictor::calibrates(const DeviceRow& row) const {
  const RowTurns turns = turns_of(row.layer);
  const auto end = static_cast<uint32_t>(row.position) + 1;
  return turns.period > 0 && end > turns.beyond && (end + turns.offset) % turns.period == 0;
}

uint64_t DeviceAttentionPredictor::keys_read(const DeviceRow& row) const {
  const auto position = static_cast<uint32_t>(row.position);
  const uint32_t budget = static_cast<uint32_t>(budgets_[row.layer].budget) / kTokens;
  if (dense_ && calibrates(row)) return position + 1;
  const uint64_t others = std::min(position / kTokens, budget - 1);
  return others * kTokens + position % kTokens + 1;
}

// All keys where scores calibrate, and averages, or what the network looks at.
uint64_t DeviceAttentionPredictor::index_bytes_read(const DeviceRow& row) const {
  const uint64_t pages = static_cast<uint32_t>(row.position) / kTokens + 1;
  const uint64_t keys = scores_ && calibrates(row) ? tile_bytes_ : 0;
  const uint64_t floats = net_ ? 2 * net_->rows : 1;
  return config_.n_kv_head * pages * (keys + floats * sizeof(float));
}

}  // namespace reprise
