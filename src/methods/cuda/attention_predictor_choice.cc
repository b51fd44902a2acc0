// Which pages the device's attention_predictor chooses, and when it looks at all of them.
#include <algorithm>
#include <bit>

#include "base/try.h"
#include "methods/cuda/attention_predictor.h"

namespace reprise {

using namespace kernels::cuda;

namespace {

constexpr std::string_view kWhat = "choosing pages";
constexpr uint32_t kTokens = kernels::cuda::kPageTokens;
constexpr uint32_t kMostTurns = 16;  // for which steps are captured

}  // namespace

RowTurns DeviceAttentionPredictor::turns_of(uint32_t layer) const {
  return {options_.period, layer, static_cast<uint32_t>(budgets_[layer].budget)};
}

uint64_t DeviceAttentionPredictor::captured_turn(uint32_t layer) const {
  const uint32_t turns = std::min(options_.period, kMostTurns);
  return uint64_t{1} << uint64_t{layer % options_.period} * turns / options_.period;
}

uint64_t DeviceAttentionPredictor::captured_turn_at(int32_t position) const {
  if (options_.period == 0) return 0;
  const auto end = static_cast<uint32_t>(position) + 1;
  const uint32_t layer = (options_.period - end % options_.period) % options_.period;
  return layer < config_.n_layer ? captured_turn(layer) : 0;
}

// Rows that are at different turns let all layers look whether one is due, so that steps are
// captured for a few cases only.
uint64_t DeviceAttentionPredictor::variant(const DeviceGroup& group) const {
  uint64_t due = 0;
  for (uint32_t i = group.first; i < group.first + group.count; ++i) due |= due_[i];
  return std::popcount(due) > 1 ? ~uint64_t{0} : due;
}

std::vector<DeviceAttentionPredictor::LayerRange> DeviceAttentionPredictor::layers(
    uint32_t first, uint32_t count) const {
  std::vector<LayerRange> made;
  for (uint32_t layer = first; layer < first + count; ++layer) {
    if (leaves_alone(layer) || config_.window[layer] > 0) continue;
    const bool joins = !made.empty() && made.back().first + made.back().count == layer &&
                       budgets_[layer] == budgets_[layer - 1];
    if (!joins) made.push_back({layer, 0});
    ++made.back().count;
  }
  return made;
}

DeviceAttentionPredictor::Lists DeviceAttentionPredictor::lists(const DeviceQueries& queries,
                                                                bool next) const {
  if (next) {
    const uint32_t layer = queries.layer % kPredictedLayers;
    const size_t row = size_t{queries.first} * config_.n_kv_head;
    return {next_lists_.data() + lists_of(layer, 0) + row * list_capacity(queries.layer), nullptr,
            next_keys_.data() + keys_of(layer, queries.first)};
  }
  const size_t list = lists_of(queries.layer, queries.first);
  return {lists_.data() + list, numbers_.data() + list,
          keys_.data() + keys_of(queries.layer, queries.first)};
}

TopPagesArgs DeviceAttentionPredictor::choice(const DeviceQueries& queries,
                                              const Lists& lists) const {
  const BlockBudget& budget = budgets_[queries.layer];
  TopPagesArgs top;
  top.rows = {queries.positions, queries.pages, queries.count, queries.capacity,
              static_cast<uint32_t>(budget.budget) / kTokens};
  top.n_kv_head = config_.n_kv_head;
  top.sink_pages = static_cast<uint32_t>(budget.sink) / kTokens;
  top.recent_tokens = static_cast<uint32_t>(budget.window);
  top.scores = scores_of(queries.layer, 0);
  top.score_rows = sent_slots_.device() + queries.first;
  top.lists = lists.pages;
  top.numbers = lists.numbers;
  top.keys = lists.keys;
  top.list_capacity = list_capacity(queries.layer);
  return top;
}

KeyLists DeviceAttentionPredictor::key_lists(const DeviceQueries& queries,
                                             const Lists& lists) const {
  return {lists.pages, nullptr, lists.keys, config_.n_kv_head, list_capacity(queries.layer)};
}

// What averages say is known before any query is, so that one launch chooses for all layers.
Status DeviceAttentionPredictor::begin(const DeviceRows& rows, const PagedKv&,
                                       cudaStream_t stream) {
  for (const DeviceGroup& group : rows.groups) {
    if (group.policy != this || group.first >= rows.decode_rows) continue;
    for (const LayerRange& range : layers(0, config_.n_layer)) {
      DeviceQueries queries;
      queries.layer = range.first;
      queries.first = group.first;
      queries.count = group.count;
      queries.positions = rows.positions + group.first;
      queries.pages = rows.table(range.first) + size_t{group.first} * rows.capacity;
      queries.capacity = rows.capacity;
      TopPagesArgs top = choice(queries, lists(queries, false));
      top.layers = range.count;
      top.page_stride = size_t{rows.table_rows} * rows.capacity;
      top.score_stride = layer_averages();
      top.list_stride = lists_of(1, 0);
      top.key_stride = keys_of(1, 0);
      REPRISE_CUDA(top_pages(top, stream), kWhat);
    }
  }
  return {};
}

Status DeviceAttentionPredictor::select(const DeviceQueries& queries, DeviceRead& read,
                                        cudaStream_t stream) {
  const Lists own = lists(queries, false);
  read.lists = key_lists(queries, own);
  read.numbers = own.numbers;
  read.page_logs = page_logs(own);
  read.page_peaks = largest_;
  // A guess has no queries of its own.
  read.known = chooses_early({queries.first, queries.count}, queries.layer);
  if (queries.guess || read.known) return {};
  TopPagesArgs top = choice(queries, own);
  top.turns = turns_of(queries.layer);
  if (scores_) return calibrate(queries, top, stream);
  top.whole = true;
  REPRISE_CUDA(top_pages(top, stream), kWhat);
  return {};
}

Status DeviceAttentionPredictor::predict(const DeviceQueries& queries, std::span<DeviceRead> layers,
                                         cudaStream_t stream) {
  const uint32_t first = queries.layer;
  for (const LayerRange& range : this->layers(first, static_cast<uint32_t>(layers.size()))) {
    DeviceQueries own = queries;
    own.layer = range.first;
    own.pages += (range.first - first) * queries.page_stride;
    TopPagesArgs top = choice(own, lists(own, true));
    top.rows.positions = queries.keys;  // that a row reads are the next row's position
    top.layers = range.count;
    top.page_stride = queries.page_stride;
    top.score_stride = layer_averages();
    top.list_stride = lists_of(1, 0);
    top.key_stride = keys_of(1, 0);
    REPRISE_CUDA(top_pages(top, stream), kWhat);
    for (; own.layer < range.first + range.count; ++own.layer) {
      layers[own.layer - first].lists = key_lists(own, lists(own, true));
    }
  }
  return {};
}

}  // namespace reprise
