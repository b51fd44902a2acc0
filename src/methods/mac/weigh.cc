// What reuse saves, and whether it pays.
#include <algorithm>
#include <cmath>
#include <utility>

#include "methods/mac/mac.h"
#include "methods/mac/parts.h"

namespace reprise {

MacPolicy::Saving MacPolicy::saving(const QueryRows& rows) const {
  Saving saving;
  for (size_t first = 0; first < matches_.size(); first += group_) {
    const auto own = std::span(reused_from_).subspan(first, group_);
    saving.keys += std::max(0, *std::min_element(own.begin(), own.end()) - settings_.cut.sink);
    saving.hits +=
        static_cast<uint64_t>(own.end() - std::count(own.begin(), own.end(), 0) - own.begin());
  }
  const MacRing& from = *layers_[rows.layer].ring;
  const auto compared = static_cast<size_t>(std::count(compares_.begin(), compares_.end(), 1));
  saving.index_bytes = rows.rows.size() * compared * from.query_bytes() / compares_.size() +
                       saving.hits * from.result_bytes();
  return saving;
}

MacPolicy::Saving MacPolicy::count(const QueryRows& rows, MacSums& sums) const {
  const double threshold = std::sqrt(static_cast<double>(settings_.distance2));
  for (size_t i = 0; i < matches_.size(); ++i) {
    if (compares_[i % config_->n_head / group_] == 0) continue;
    ++sums.heads;
    if (matches_[i].found()) ++sums.head_hits;
    if (reused_from_[i] == 0) continue;
    const size_t row = i / config_->n_head;
    sums.lag += rows.rows[row].position - matches_[i].position;
    sums.depth += states_[i].depth;
    sums.distance += matches_[i].distance / threshold;
  }
  for (size_t first = 0; first < matches_.size(); first += group_) {
    ++sums.steps;
    if (compares_[first % config_->n_head / group_] == 0) {
      ++sums.off;
      continue;
    }
    const auto own = std::span(reused_from_).subspan(first, group_);
    ++sums.groups;
    sums.group_hits += std::count(own.begin(), own.end(), 0) == 0 ? 1 : 0;
  }
  const Saving saved = saving(rows);
  for (const Row& row : rows.rows) {
    sums.keys += (row.position + 1.0) * config_->n_kv_head;
  }
  sums.skipped += saved.keys;
  sums.reused_heads += saved.hits;
  return saved;
}

void MacPolicy::count_heads(const QueryRows& rows, Layer& layer) const {
  for (size_t kv_head = 0; kv_head < layer.heads.size(); ++kv_head) {
    HeadSums& sums = layer.heads[kv_head];
    ++sums.steps;
    sums.keys += rows.end();
    if (compares_[kv_head] == 0) {
      ++sums.off;
      continue;
    }
    const auto own = std::span(reused_from_).subspan(kv_head * group_, group_);
    const int32_t from = *std::min_element(own.begin(), own.end());
    sums.skipped += std::max(0, from - settings_.cut.sink);
  }
}

void MacPolicy::weigh(const QueryRows& rows, Selection& selection) {
  Layer& layer = layers_[rows.layer];
  const Saving saved = count(rows, layer.sums);
  count_heads(rows, layer);
  layer.hits.resize(matches_.size());
  for (size_t head = 0; head < matches_.size(); ++head) {
    if (matches_[head].found()) ++layer.hits[head];
  }
  selection.index_bytes_read += saved.index_bytes;
  if (rows.first() >= layer.warm) tell_guard(rows, selection, false);
}

void MacPolicy::choose_heads(Layer& layer, bool layer_rests) {
  for (size_t kv_head = 0; kv_head < compares_.size(); ++kv_head) {
    MacGuard& guard = layer.guard.head(kv_head);
    const bool works = !settings_.guarded || (!layer_rests && guard.pays());
    compares_[kv_head] = works || guard.tries() ? 1 : 0;
  }
}

void MacPolicy::rest(const QueryRows& rows, Selection& selection) {
  inner().select(rows, selection);
  Layer& layer = layers_[rows.layer];
  std::fill(compares_.begin(), compares_.end(), 0);
  count(rows, layer.sums);
  count_heads(rows, layer);
  choose_heads(layer, true);
  if (std::count(compares_.begin(), compares_.end(), 1) > 0) {
    note_inner(rows, selection);
    match(rows, rows.first(), false);
    Selection would;
    const MacRead read = {settings_.cut.sink, settings_.cut.at(rows.first()), rows.end(), group_,
                          reused_from_};
    if (divide_keys(read, selection, would)) tell_guard(rows, would, true);
    selection.index_bytes_read += saving(rows).index_bytes;
  }
  constexpr int32_t kUsualGap = 64;  // most matches are nearer
  layer.warm = rows.end() + std::min(settings_.window, kUsualGap);
  if (!layer.ring->write_query(rows.first(), rows.q)) ++layer.sums.nonfinite;
}

void MacPolicy::note_inner(const QueryRows& rows, const Selection& given) {
  std::vector<int64_t>& keys = layers_[rows.layer].inner_keys;
  keys.resize(compares_.size());
  for (size_t kv_head = 0; kv_head < keys.size(); ++kv_head) {
    keys[kv_head] = keys_read(given, kv_head, group_, rows.first());
  }
}

double MacPolicy::saved_bytes(const QueryRows& rows, const Selection& selection,
                              size_t kv_head) const {
  const int64_t read = keys_read(selection, kv_head, group_, rows.first());
  const int64_t keys = layers_[rows.layer].inner_keys[kv_head] - read;
  return 2.0 * static_cast<double>(keys) *
         static_cast<double>(rows.kv->pool().layout().tile_bytes()) /
         static_cast<double>(kPageTokens);
}

double MacPolicy::spent_bytes(const QueryRows& rows, size_t kv_head) const {
  const MacRing& from = *layers_[rows.layer].ring;
  const auto own = std::span(reused_from_).subspan(kv_head * group_, group_);
  const auto hits =
      static_cast<double>(own.end() - std::count(own.begin(), own.end(), 0) - own.begin());
  const size_t queries = from.query_bytes() / compares_.size();
  return MacLayerGuard::kComparing * static_cast<double>(queries) +
         hits * static_cast<double>(from.result_bytes());
}

void MacPolicy::tell_guard(const QueryRows& rows, const Selection& selection, bool rests) {
  if (!settings_.guarded) return;
  MacLayerGuard& guard = layers_[rows.layer].guard;
  for (size_t kv_head = 0; kv_head < compares_.size(); ++kv_head) {
    if (compares_[kv_head] == 0) continue;
    MacGuard& head = guard.head(kv_head);
    head.saw(saved_bytes(rows, selection, kv_head), spent_bytes(rows, kv_head),
             rests || !head.pays());
  }
}

void MacPolicy::show_guard(const QueryRows& rows) {
  constexpr int32_t kRows = 8;
  Layer& layer = layers_[rows.layer];
  if (!settings_.guarded || layer.guard.has_seen()) return;
  const MacRing& from = ring(rows.layer);
  std::vector<Row> last;  // whatever passes read them
  for (int32_t at = std::max(0, rows.prompt_end - kRows); at < rows.prompt_end; ++at) {
    if (from.holds(at, at + 1)) last.push_back({0, at, 0});
  }
  if (last.empty()) return;
  const auto count = static_cast<double>(last.size());
  const size_t head_dim = config_->head_dim;
  std::vector<float> q(config_->n_head * head_dim);
  std::fill(compares_.begin(), compares_.end(), 1);
  std::vector<double> saved(compares_.size()), spent(compares_.size());
  for (const Row& row : last) {
    for (size_t head = 0; head < config_->n_head; ++head) {
      from.load_q(head, from.slot(row.position), &q[head * head_dim]);
    }
    QueryRows one = rows;
    one.rows = {&row, 1};
    one.q = q.data();
    clear_matches(1);
    match(one, one.first());
    note_inner(one, {});
    Selection would;
    divide_keys(
        {settings_.cut.sink, settings_.cut.at(one.first()), one.end(), group_, reused_from_}, {},
        would);
    for (size_t kv_head = 0; kv_head < saved.size(); ++kv_head) {
      saved[kv_head] += saved_bytes(one, would, kv_head) / count;
      spent[kv_head] += spent_bytes(one, kv_head) / count;
    }
  }
  for (size_t kv_head = 0; kv_head < saved.size(); ++kv_head) {
    layer.guard.head(kv_head).saw(saved[kv_head], spent[kv_head], true);
  }
  // An inner policy that reads fewer keys has not been asked: its decode rows are seen first.
  if (inner().reads_everything()) return;
  layer.inner_keys.clear();
  if (layer.guard.pays()) layer.guard = new_layers().front().guard;
}

}  // namespace reprise
