#include "methods/baselines/h2o.h"

#include <algorithm>
#include <cmath>

namespace reprise {
namespace {

int32_t recent_tokens(const H2oOptions& options) {
  const double share = std::round(static_cast<double>(options.recent) * options.budget);
  return static_cast<int32_t>(std::clamp(share, 1.0, static_cast<double>(options.budget)));
}

}  // namespace

H2oPolicy::H2oPolicy(const H2oOptions& options, const ModelConfig& config)
    : EvictingPolicy(config, options.budget - static_cast<uint32_t>(recent_tokens(options))),
      options_(options),
      heavy_(static_cast<int32_t>(options.budget) - recent_tokens(options)),
      recent_(recent_tokens(options)),
      observe_(options.observe == 0 ? std::numeric_limits<int32_t>::max()
                                    : static_cast<int32_t>(options.observe)),
      per_row_(options.normalise == "count"),
      layers_(config.n_layer) {
  for (Layer& layer : layers_) layer.heads.resize(config.n_kv_head);
}

void H2oPolicy::select(const QueryRows& rows, Selection& selection) {
  Layer& layer = layers_[rows.layer];
  if (!layer.reading) shrink(rows);
  const size_t count = keys(rows.layer, rows.end()).count();
  for (Head& head : layer.heads) head.sums.resize(count);
  layer.end = kept_[rows.layer].until = rows.end();
  if (rows.phase == kernels::Phase::kPrefill) {
    read_kept(rows, selection);
    sum_votes(rows, std::max(rows.first(), rows.prompt_end - std::min(rows.prompt_end, observe_)));
    layer.reading = rows.end() < rows.prompt_end;
    return;
  }
  layer.reading = false;
  sum_votes(rows, rows.first());
  selection.index_bytes_read = scores(rows).bytes_read() * shape_.n_kv_head;
  shrink(rows);
  read_kept(rows, selection);
}

void H2oPolicy::sum_votes(const QueryRows& rows, int32_t first) {
  if (first >= rows.end()) return;
  Layer& layer = layers_[rows.layer];
  if (!layer.observed.empty() && layer.observed.back().end == first)
    layer.observed.back().end = rows.end();
  else
    layer.observed.push_back({first, rows.end()});
  const size_t width = shape_.n_head * shape_.head_dim;
  const float* q = rows.q_rotated + static_cast<size_t>(first - rows.first()) * width;
  const auto count = static_cast<size_t>(rows.end() - first);
  const KeptScores scores = this->scores(rows);
  rows.pool->run(shape_.n_kv_head, [&](size_t head, int) {
    std::vector<float>& sums = layer.heads[head].sums;
    const size_t first_head = head * shape_.group;
    scores.for_each(
        {q + first_head * shape_.head_dim, width, count, first, first_head, shape_.group},
        [&](std::span<const float> p) {
          for (size_t i = 0; i < p.size(); ++i) sums[i] += p[i];
        });
  });
}

float H2oPolicy::score(const Layer& layer, float sum, int32_t position) const {
  if (std::isnan(sum)) return -std::numeric_limits<float>::infinity();
  if (!per_row_) return sum;
  int32_t rows = 0;
  for (const KeyRange& range : layer.observed) {
    rows += std::max(0, range.end - std::max(range.begin, position));
  }
  return sum / static_cast<float>(std::max(rows, 1));
}

void H2oPolicy::shrink(const QueryRows& rows) {
  Layer& layer = layers_[rows.layer];
  Kept& kept = kept_[rows.layer];
  const KeptKeys keys = this->keys(rows.layer, layer.end);
  const auto budget = static_cast<size_t>(heavy_) + static_cast<size_t>(recent_);
  if (keys.count() <= budget) return;
  const size_t candidates = keys.count() - static_cast<size_t>(recent_);
  std::vector<Change> changes(shape_.n_kv_head);
  rows.pool->run(shape_.n_kv_head,
                 [&](size_t head, int) { changes[head] = choose(layer, kept, head, candidates); });
  std::vector<int32_t> slots;
  for (const Change& change : changes) {
    slots.insert(slots.end(), change.slots.begin(), change.slots.end());
  }
  if (!side_.own(rows.kv->pool(), rows.layer, slots)) {
    ++fallbacks_;
    return;
  }
  rows.pool->run(shape_.n_kv_head,
                 [&](size_t head, int) { apply(rows, head, changes[head], candidates); });
  kept.begin = layer.end - recent_;
  kept.side = heavy_;
}

H2oPolicy::Change H2oPolicy::choose(const Layer& layer, const Kept& kept, size_t head,
                                    size_t candidates) const {
  const Head& state = layer.heads[head];
  std::vector<Candidate> all(candidates);
  for (size_t i = 0; i < candidates; ++i) {
    const auto key = static_cast<int32_t>(i);
    const int32_t position = key < kept.side ? state.heavy[i] : kept.begin + key - kept.side;
    all[i] = {score(layer, state.sums[i], position), position, key};
  }
  const auto weaker = [](const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score < b.score : a.position > b.position;
  };
  const size_t drops = candidates - static_cast<size_t>(heavy_);
  const auto end = all.begin() + static_cast<std::ptrdiff_t>(drops);
  if (drops == 1)
    std::iter_swap(all.begin(), std::min_element(all.begin(), all.end(), weaker));
  else
    std::nth_element(all.begin(), end - 1, all.end(), weaker);
  Change change;
  for (auto it = all.begin(); it != end; ++it) {
    if (it->key < kept.side) change.slots.push_back(it->key);
  }
  for (int32_t slot = kept.side; slot < heavy_; ++slot) change.slots.push_back(slot);
  std::sort(change.slots.begin(), change.slots.end());
  for (auto it = end; it != all.end(); ++it) {
    if (it->key >= kept.side) change.admitted.push_back(it->key);
  }
  std::sort(change.admitted.begin(), change.admitted.end());
  return change;
}

void H2oPolicy::apply(const QueryRows& rows, size_t head, const Change& change, size_t candidates) {
  Head& state = layers_[rows.layer].heads[head];
  const Kept& kept = kept_[rows.layer];
  const auto side = static_cast<size_t>(heavy_);
  std::vector<float> sums(side);
  std::copy_n(state.sums.begin(), kept.side, sums.begin());
  state.heavy.resize(side);
  for (size_t i = 0; i < change.admitted.size(); ++i) {
    const int32_t token = kept.begin + change.admitted[i] - kept.side;
    const auto slot = static_cast<size_t>(change.slots[i]);
    side_.copy(rows.layer, head, *rows.kv, token, change.slots[i]);
    sums[slot] = state.sums[static_cast<size_t>(change.admitted[i])];
    state.heavy[slot] = token;
  }
  sums.insert(sums.end(), state.sums.begin() + static_cast<std::ptrdiff_t>(candidates),
              state.sums.end());
  state.sums = std::move(sums);
}

void H2oPolicy::truncate(int32_t length) {
  EvictingPolicy::truncate(length);
  for (Layer& layer : layers_) {
    if (layer.end <= length) continue;
    for (Head& head : layer.heads) head = {};
    layer.observed.clear();
    layer.end = 0;
    layer.reading = false;
  }
}

uint64_t H2oPolicy::state_bytes() const {
  uint64_t bytes = side_.bytes();
  for (const Layer& layer : layers_) {
    bytes += layer.observed.size() * sizeof(KeyRange);
    for (const Head& head : layer.heads) {
      bytes += head.sums.size() * sizeof(float) + head.heavy.size() * sizeof(int32_t);
    }
  }
  return bytes;
}

}  // namespace reprise
