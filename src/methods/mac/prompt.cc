// MAC-Attention of prompt rows, off by default (appendix A.3 of the paper, with its small chunks).
//
// Blocks of rows are computed one after the other, each row from entries of the blocks before its
// own. Blocks begin at fixed positions, so that no bit depends on how a prompt is cut into chunks.
// What a row's entry holds, attention from the sinks to its band, is computed once, for the entry
// and for the row itself.
#include <algorithm>
#include <atomic>

#include "attention/partial.h"
#include "kernels/attention.h"
#include "methods/first_and_recent.h"
#include "methods/mac/mac.h"
#include "methods/mac/seed.h"

namespace reprise {
namespace {

constexpr int32_t kBlock = 64;  // positions

}  // namespace

std::string MacPolicy::prefill_key() const {
  return settings_.in_prompts ? std::string() : inner().prefill_key();
}

// Rows that leave no entry are read as by the inner policy, rows before min_context find none.
int32_t MacPolicy::next_cut(int32_t position) const {
  int32_t next = inner().next_cut(position);
  if (!settings_.in_prompts) return next;
  for (const int32_t cut : {settings_.first_entry(), settings_.min_context}) {
    if (cut > position) next = std::min(next, cut);
  }
  return next;
}

QueryRows MacPolicy::rows_of(const QueryRows& rows, size_t first, size_t count) const {
  const size_t width = size_t{config_->n_head} * config_->head_dim;
  QueryRows part = rows;
  part.rows = rows.rows.subspan(first, count);
  part.q += first * width;
  part.q_rotated += first * width;
  return part;
}

void MacPolicy::read_prompt(const QueryRows& rows, Selection& selection) {
  if (!settings_.stores(rows.end() - 1)) return;
  const size_t n_head = config_->n_head, count = rows.rows.size();
  if (!has_room(rows.layer, count)) return;
  prefix_ = empty_partial(count, n_head, config_->head_dim);
  for (size_t first = 0; first < count;) {
    const int32_t begin = rows.rows[first].position / kBlock * kBlock;
    const auto end =
        std::find_if(rows.rows.begin() + static_cast<std::ptrdiff_t>(first), rows.rows.end(),
                     [&](const Row& row) { return row.position >= begin + kBlock; });
    const auto size = static_cast<size_t>(end - rows.rows.begin()) - first;
    read_block(rows_of(rows, first, size), begin, &prefix_.out[first * n_head * config_->head_dim],
               &prefix_.lse[first * n_head]);
    first += size;
  }
  read_first_and_recent(rows, settings_.cut.sink, settings_.cut.band, selection);
  selection.reused = &prefix_;
}

void MacPolicy::read_block(const QueryRows& rows, int32_t before, float* out, float* lse) {
  clear_matches(rows.rows.size());
  const bool compares = rows.first() >= settings_.min_context && before > settings_.first_entry();
  std::fill(compares_.begin(), compares_.end(), 1);
  if (compares) match(rows, before);
  std::vector<int32_t> begin = reused_from_;
  std::replace(begin.begin(), begin.end(), 0, settings_.cut.sink);
  prefix_attention(rows, *config_, settings_.cut, begin, {out, lse, nullptr});
  store_block(rows, out, lse);
  if (compares) count(rows, layers_[rows.layer].prompt);
}

void MacPolicy::store_block(const QueryRows& rows, float* out, float* lse) {
  const size_t n_head = config_->n_head, head_dim = config_->head_dim;
  MacRing& to = ring(rows.layer);
  // A block may reuse entries that it overwrites.
  std::vector<float> reused(reused_from_.size() * head_dim), reused_lse(reused_from_.size());
  std::atomic<uint64_t> refused = 0;
  rows.pool->run(rows.rows.size(), [&](size_t row, int) {
    for (size_t i = row * n_head; i < (row + 1) * n_head; ++i) {
      if (reused_from_[i] > 0) take_result(rows.layer, i, &reused[i * head_dim], &reused_lse[i]);
    }
  });
  rows.pool->run(rows.rows.size(), [&](size_t row, int) {
    const int32_t position = rows.rows[row].position;
    for (size_t i = row * n_head; i < (row + 1) * n_head; ++i) {
      const bool hit = reused_from_[i] > 0;
      if (hit) {
        kernels::merge_partial(out + i * head_dim, lse + i, &reused[i * head_dim], reused_lse[i],
                               head_dim);
      }
      states_[i].share = 1.0f;  // not known yet
      finish_state(position, hit, lse[i], states_[i]);
    }
    if (position + settings_.window < rows.end()) return;  // another row has its slot
    const size_t first = row * n_head;
    const bool written = to.write(position, rows.q + first * head_dim, out + first * head_dim,
                                  std::span(states_).subspan(first, n_head));
    if (!written) ++refused;
  });
  layers_[rows.layer].prompt.nonfinite += refused;
}

}  // namespace reprise
