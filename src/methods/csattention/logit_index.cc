#include "methods/csattention/logit_index.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>

#include "kernels/key_logits.h"
#include "kernels/ops.h"
#include "methods/key_list.h"

namespace reprise {
namespace {

constexpr int32_t kPieceStep = 1024, kTasksPerThread = 6;

// Keys that one task scores, from a multiple of them on: enough tasks to even out the threads, few
// enough that memory follows each.
int32_t piece_tokens(int32_t candidates, uint32_t kv_heads, int threads) {
  const auto heads = static_cast<int32_t>(kv_heads);
  const int32_t pieces = (kTasksPerThread * threads + heads - 1) / heads;
  return ((candidates - 1) / pieces / kPieceStep + 1) * kPieceStep;
}

struct HeadState {
  std::once_flag prepared;
  std::atomic<size_t> left = 0;  // pieces that are not scored yet
};

size_t whole_pages(size_t keys) { return (keys + kPageTokens - 1) / kPageTokens; }

}  // namespace

LogitIndex::LogitIndex(const ModelConfig& config, int32_t unit)
    : config_(&config),
      unit_(unit),
      ranking_(config.n_head, config.n_kv_head),
      q_(size_t{config.n_head} * config.head_dim) {}

uint64_t LogitIndex::find(const QueryRows& rows, KeyRange candidates, size_t k, KeyPicks& picks) {
  const auto count = static_cast<size_t>(candidates.end - candidates.begin);
  const size_t units = count / static_cast<size_t>(unit_),
               others = whole_pages(units) * kPageTokens,
               sink_pages = whole_pages(static_cast<size_t>(candidates.begin));
  const auto block = static_cast<size_t>(candidates.end) / kPageTokens;
  const size_t recent_pages = whole_pages(static_cast<size_t>(rows.end())) - block;
  ranking_.resize(others + (sink_pages + recent_pages) * kPageTokens);
  const uint64_t bytes = score_and_rank(rows, {candidates, units, others, k, true}, picks);
  return config_->n_kv_head * (sink_pages + recent_pages) * rows.kv->pool().layout().tile_bytes() +
         bytes + fixed_bytes();
}

bool LogitIndex::guess(const QueryRows& rows, KeyRange candidates, size_t k, KeyPicks& picks) {
  const size_t units = static_cast<size_t>(candidates.end - candidates.begin) /
                       static_cast<size_t>(unit_),
               others = whole_pages(units) * kPageTokens;
  ranking_.resize(others);
  score_and_rank(rows, {candidates, units, others, std::min(k, units), false}, picks);
  return true;
}

// Whoever scores the last piece of a KV head ranks its units, so that threads meet once.
uint64_t LogitIndex::score_and_rank(const QueryRows& rows, const Search& search, KeyPicks& picks) {
  for (size_t i = 0; i < q_.size(); ++i) q_[i] = rows.q_rotated[i] * config_->attention_scale;
  const int32_t begin = search.candidates.begin, end = search.candidates.end;
  const int32_t piece = piece_tokens(end - begin, config_->n_kv_head, rows.pool->size());
  const int32_t first_piece = begin / piece;
  const auto pieces = static_cast<size_t>((end - 1) / piece + 1 - first_piece);
  std::vector<HeadState> states(config_->n_kv_head);
  for (HeadState& state : states) state.left.store(pieces, std::memory_order_relaxed);
  std::atomic<uint64_t> bytes = 0;
  rows.pool->run(config_->n_kv_head * pieces, [&](size_t task, int) {
    const size_t head = task / pieces;
    const int32_t number = first_piece + static_cast<int32_t>(task % pieces);
    const KeyRange keys = {std::max(begin, number * piece), std::min(end, (number + 1) * piece)};
    const bool first = task % pieces == 0;
    if (first) fetch(rows.layer, head, keys.begin);
    std::call_once(states[head].prepared, [&] {
      if (!first) fetch(rows.layer, head, keys.begin);  // in the middle of a head's keys
      prepare(rows.layer, head, queries(head));
    });
    if (first) score_others(rows, head, search);  // while codes are fetched
    bytes += score_candidates(rows, head, keys,
                              static_cast<size_t>(keys.begin - begin) / static_cast<size_t>(unit_));
    if (states[head].left.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    ranking_.rank_head(head, HeadJoin::kSoftmax, search.units, search.k);
  });
  picks.resize(config_->n_kv_head);
  for (size_t head = 0; head < picks.size(); ++head) {
    const auto found = ranking_.picks(head);
    picks[head].assign(found.begin(), found.end());
  }
  return bytes;
}

// Logits of units from number `first` on.
uint64_t LogitIndex::score_candidates(const QueryRows& rows, size_t head, KeyRange keys,
                                      size_t first) {
  const size_t group = config_->n_head / config_->n_kv_head;
  float* logits = ranking_.logits(head * group) + first;
  const auto score = unit_ > 1 ? &LogitIndex::estimate_pages : &LogitIndex::estimate;
  const uint64_t bytes =
      (this->*score)(rows.layer, head, queries(head), keys, logits, ranking_.stride());
  if (config_->attention_soft_cap <= 0.0f) return bytes;
  for (size_t row = 0; row < group; ++row) {
    kernels::soft_cap(logits + row * ranking_.stride(),
                      static_cast<size_t>((keys.end - keys.begin) / unit_),
                      config_->attention_soft_cap);
  }
  return bytes;
}

uint64_t LogitIndex::estimate_pages(uint32_t layer, size_t kv_head, const float* q, KeyRange keys,
                                    float* tops, size_t stride) const {
  const auto count = static_cast<size_t>(keys.end - keys.begin);
  std::vector<float> logits(config_->n_head / config_->n_kv_head * count);
  const uint64_t bytes = estimate(layer, kv_head, q, keys, logits.data(), count);
  for (size_t i = 0; i < logits.size(); i += kPageTokens) {
    tops[i / count * stride + i % count / kPageTokens] =
        *std::max_element(&logits[i], &logits[i] + kPageTokens);
  }
  return bytes;
}

// Exact logits of the keys before and after the candidates, from slot `others` on; the slots
// between these and the units stay empty.
void LogitIndex::score_others(const QueryRows& rows, size_t head, const Search& search) {
  const size_t dim = config_->head_dim, group = config_->n_head / config_->n_kv_head;
  for (size_t row = head * group; row < (head + 1) * group; ++row) {
    std::fill(ranking_.logits(row) + search.units, ranking_.logits(row) + search.others,
              -std::numeric_limits<float>::infinity());
  }
  if (!search.reads_others) return;
  std::vector<kernels::PageSpan> pages, recent;
  list_pages(rows, head, 0, search.candidates.begin, pages);
  list_pages(rows, head, search.candidates.end, rows.end(), recent);
  pages.insert(pages.end(), recent.begin(), recent.end());
  kernels::KeyLogitsArgs args;
  args.layout = &rows.kv->pool().layout();
  args.rows = group;
  args.q = rows.q_rotated + head * group * dim;
  args.q_stride = dim;
  args.pages = pages;
  args.scale = config_->attention_scale;
  args.soft_cap = config_->attention_soft_cap;
  args.out = ranking_.logits(head * group) + search.others;
  args.out_stride = ranking_.stride();
  kernels::key_logits(args);
}

}  // namespace reprise
