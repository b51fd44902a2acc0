#include "methods/cuda/attention_predictor.h"

#include <algorithm>

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
      fade_(options_.period == 0
                ? 1.0f
                : AveragePredictor(config.n_kv_head, options_.factor, options_.period).fade()) {
  // As BlockBudget.
  options_.sink = std::min(options_.sink, options_.budget / 4);
  options_.window = std::min(options_.window, options_.budget / 4);
}

Status DeviceAttentionPredictor::check(const AttentionPredictorPolicy& policy) {
  const AttentionPredictorOptions& own = policy.options();
  if (own.file == "none" && own.layers == "none" && own.pool == "sum" &&
      (own.calibrate == "scores" || own.period == 0)) {
    return {};
  }
  return fail(ErrorCode::kUnsupported,
              "policy {}: attention_predictor has the average alone with --device cuda, with "
              "calibrate=scores: give no file, layers and pool; or use --device cpu",
              policy.spec());
}

Status DeviceAttentionPredictor::reserve(const DeviceRoom& room) {
  list_capacity_ = std::min(options_.budget / kTokens, room.capacity);
  if (room.capacity != capacity_) REPRISE_CHECK(grow(room));
  const size_t rows = size_t{room.sequences} * config_.n_kv_head, lists = rows * list_capacity_;
  REPRISE_CHECK(numbers_.reserve(config_.n_layer * lists, kWhat));
  REPRISE_CHECK(shares_.reserve(config_.n_layer * lists, kWhat));
  REPRISE_CHECK(lists_.reserve(lists, kWhat));
  REPRISE_CHECK(next_lists_.reserve(lists, kWhat));
  REPRISE_CHECK(keys_.reserve(rows, kWhat));
  REPRISE_CHECK(next_keys_.reserve(rows, kWhat));
  REPRISE_CHECK(device_slots_.reserve(room.sequences, kWhat));
  if (options_.period > 0) {
    REPRISE_CHECK(logs_.reserve(size_t{room.sequences} * config_.n_head * room.capacity, kWhat));
    REPRISE_CHECK(score_rows_.reserve(room.sequences, kWhat));
    REPRISE_CHECK(arrived_.reserve(rows, kWhat));
  }
  for (auto& staged : staged_) REPRISE_CHECK(staged.reserve(room.sequences, kWhat));
  REPRISE_CHECK(votes_.reserve(size_t{config_.n_head} * kTokens * room.capacity, kWhat));
  return weighed_.reserve(size_t{options_.history} * config_.n_head, kWhat);
}

/// Keeps what is known of sequences.
Status DeviceAttentionPredictor::grow(const DeviceRoom& room) {
  const size_t rows = size_t{config_.n_layer} * room.sequences * config_.n_kv_head;
  DeviceBuffer<float> wider;
  const size_t scored = options_.period > 0 ? size_t{room.sequences} * config_.n_kv_head : 0;
  REPRISE_CHECK(wider.reserve((rows + scored) * room.capacity, kWhat));
  if (capacity_ > 0) {
    REPRISE_CUDA(cudaMemcpy2D(wider.data(), room.capacity * sizeof(float), averages_.data(),
                              capacity_ * sizeof(float), capacity_ * sizeof(float), rows,
                              cudaMemcpyDeviceToDevice),
                 kWhat);
    REPRISE_CUDA(cudaStreamSynchronize(nullptr), kWhat);
  }
  averages_ = std::move(wider);
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

size_t DeviceAttentionPredictor::lists_of(uint32_t layer) const {
  return size_t{layer} * sequences_ * config_.n_kv_head * list_capacity_;
}

ShareTurns DeviceAttentionPredictor::turns_of(uint32_t layer) const {
  return {options_.period, layer, options_.budget};
}

Status DeviceAttentionPredictor::choose(const DeviceQueries& queries, const int32_t* positions,
                                        bool scored, uint32_t* lists, uint32_t* numbers,
                                        int32_t* keys, cudaStream_t stream) const {
  TopPagesArgs top;
  top.rows = {positions, queries.pages, queries.count, queries.capacity, options_.budget / kTokens};
  top.n_kv_head = config_.n_kv_head;
  top.sink_pages = options_.sink / kTokens;
  top.recent_tokens = options_.window;
  top.scores = scored ? averages_.data() : averages_of(queries.layer, 0);
  top.score_rows = (scored ? score_rows_ : device_slots_).data() + queries.first;
  top.lists = lists;
  top.numbers = numbers;
  top.keys = keys;
  top.list_capacity = list_capacity_;
  REPRISE_CUDA(top_pages(top, stream), "choosing pages");
  return {};
}

Status DeviceAttentionPredictor::calibrate(const DeviceQueries& queries,
                                           cudaStream_t stream) const {
  const uint32_t layers = config_.n_layer * sequences_;
  const size_t row = size_t{queries.first} * config_.n_kv_head;
  WholeSharesArgs args;
  args.kv = queries.kv;
  args.turns = turns_of(queries.layer);
  args.positions = queries.positions;
  args.pages = queries.pages;
  args.rows = queries.count;
  args.n_head = config_.n_head;
  args.q = queries.q;
  args.scale = kQueryUnit;
  args.soft_cap = config_.attention_soft_cap;
  args.factor = options_.factor;
  args.slots = device_slots_.data() + queries.first;
  args.averages = averages_of(queries.layer, 0);
  args.shares_row = layers + queries.first;
  args.averages_row = queries.layer * sequences_;
  args.shares = averages_of(config_.n_layer, queries.first);
  args.capacity = capacity_;
  args.score_rows = score_rows_.data() + queries.first;
  args.logs = logs_.data() + size_t{queries.first} * config_.n_head * capacity_;
  args.arrived = arrived_.data() + row;
  REPRISE_CUDA(whole_shares(args, stream), kWhat);
  return {};
}

Status DeviceAttentionPredictor::select(const DeviceQueries& queries, DeviceRead& read,
                                        cudaStream_t stream) {
  const size_t row = size_t{queries.first} * config_.n_kv_head, list = row * list_capacity_;
  read.lists = {lists_.data() + list, nullptr, keys_.data() + row, config_.n_kv_head,
                list_capacity_};
  read.numbers = numbers_.data() + lists_of(queries.layer) + list;
  // A guess has no queries of its own.
  const bool scores = options_.period > 0 && !queries.guess;
  if (scores) REPRISE_CHECK(calibrate(queries, stream));
  return choose(queries, queries.positions, scores, lists_.data() + list,
                numbers_.data() + lists_of(queries.layer) + list, keys_.data() + row, stream);
}

Status DeviceAttentionPredictor::observe(const DeviceQueries& queries, const DeviceRead& read,
                                         const float* lse, cudaStream_t stream) {
  ReadSharesArgs args;
  args.kv = queries.kv;
  args.lists = read.lists;
  args.rows = queries.count;
  args.n_head = config_.n_head;
  args.q = queries.q;
  args.lse = lse;
  args.scale = kQueryUnit;
  args.soft_cap = config_.attention_soft_cap;
  args.shares = shares_.data() + (read.numbers - numbers_.data());
  REPRISE_CUDA(read_shares(args, stream), kWhat);
  return {};
}

Status DeviceAttentionPredictor::learn(const DeviceQueries& queries, cudaStream_t stream) {
  const size_t row = size_t{queries.first} * config_.n_kv_head;
  const size_t list = lists_of(queries.layer) + row * list_capacity_;
  AverageSharesArgs args;
  args.numbers = numbers_.data() + list;
  args.keys = keys_.data() + row;
  args.shares = shares_.data() + list;
  args.rows = queries.count;
  args.n_kv_head = config_.n_kv_head;
  args.list_capacity = list_capacity_;
  args.factor = options_.factor;
  args.slots = device_slots_.data() + queries.first;
  args.averages = averages_of(queries.layer, 0);
  args.capacity = capacity_;
  args.fade = fade_;
  args.turns = turns_of(queries.layer);
  args.positions = queries.positions;
  REPRISE_CUDA(average_shares(args, stream), kWhat);
  return {};
}

Status DeviceAttentionPredictor::predict(const DeviceQueries& queries, DeviceRead& read,
                                         cudaStream_t stream) {
  const size_t row = size_t{queries.first} * config_.n_kv_head, list = row * list_capacity_;
  read.lists = {next_lists_.data() + list, nullptr, next_keys_.data() + row, config_.n_kv_head,
                list_capacity_};
  // Keys that a row reads are the next row's position.
  return choose(queries, queries.keys, false, next_lists_.data() + list, nullptr,
                next_keys_.data() + row, stream);
}

uint64_t DeviceAttentionPredictor::keys_read(const DeviceRow& row) const {
  const auto position = static_cast<uint32_t>(row.position);
  const uint64_t others = std::min(position / kTokens, options_.budget / kTokens - 1);
  return others * kTokens + position % kTokens + 1;
}

// Keys are read once more, all of them to calibrate, and averages.
uint64_t DeviceAttentionPredictor::index_bytes_read(const DeviceRow& row) const {
  const uint64_t pages = static_cast<uint32_t>(row.position) / kTokens + 1;
  const auto end = static_cast<uint32_t>(row.position) + 1;
  const bool calibrates =
      options_.period > 0 && end > options_.budget && (end + row.layer) % options_.period == 0;
  const uint64_t read = calibrates ? pages : (keys_read(row) + kTokens - 1) / kTokens;
  return config_.n_kv_head * (read * tile_bytes_ + pages * sizeof(float));
}

}  // namespace reprise
