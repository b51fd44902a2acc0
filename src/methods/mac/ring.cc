#include "methods/mac/ring.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/key_tile.h"

namespace reprise {
namespace {

bool all_finite(const float* values, size_t count) {
  float sum = 0.0f;
  for (size_t i = 0; i < count; ++i) sum += values[i] * 0.0f;  // NaN if one is not finite
  return sum == 0.0f;
}

}  // namespace

MacRing::MacRing(const ModelConfig& config, uint32_t window, kernels::KvType type, bool keeps_means)
    : n_head_(config.n_head),
      head_dim_(config.head_dim),
      queries_{type, config.n_head, config.head_dim},
      results_{type == kernels::KvType::kBF16 ? kernels::KvType::kF32 : type, config.n_head,
               config.head_dim},
      tags_(window, -1),
      q_(n_head_ * tile_count() * queries_.tile_bytes()),
      out_(n_head_ * tile_count() * results_.tile_bytes()),
      means_(keeps_means ? q_.size() : 0),
      norms_(n_head_ * window),
      states_(n_head_ * window) {}

bool MacRing::write(int32_t position, const float* q, const float* out,
                    std::span<const MacState> states, const float* means) {
  const size_t at = slot(position), width = n_head_ * head_dim_;
  tags_[at] = -1;
  if (!all_finite(q, width) || !all_finite(out, width)) return false;
  if (!means_.empty() && !all_finite(means, width)) return false;
  store_query(at, q);
  for (size_t head = 0; head < n_head_; ++head) {
    kernels::store_k(results_, &out_[tile(results_, head, at)], at % kernels::kPageTokens,
                     out + head * head_dim_);
    if (!means_.empty()) {
      kernels::store_k(queries_, &means_[tile(queries_, head, at)], at % kernels::kPageTokens,
                       means + head * head_dim_);
    }
    states_[head * window() + at] = states[head];
  }
  tags_[at] = position;
  return true;
}

bool MacRing::write_query(int32_t position, const float* q) {
  const size_t at = slot(position), width = n_head_ * head_dim_;
  const size_t waiting = waiting_.size() / width;
  // Peaks of the first one that waits follow from the entry before it, which must be there still.
  if (at != waiting_from_ + waiting || waiting + 1 == window()) settle();
  tags_[at] = -1;
  if (!all_finite(q, width)) return false;
  if (waiting_.empty()) waiting_from_ = at;
  waiting_.insert(waiting_.end(), q, q + width);
  tags_[at] = position;
  if ((at + 1) % kernels::kPageTokens == 0) settle();
  return true;
}

void MacRing::set_shares(int32_t position, const float* lse, bool follows) {
  const size_t at = slot(position);
  if (tags_[at] != position) return;
  for (size_t head = 0; head < n_head_; ++head) {
    MacState& state = states_[head * window() + at];
    state.share = std::exp(std::min(0.0f, state.lse - lse[head]));
  }
  set_peaks(position, follows);
}

void MacRing::set_peaks(int32_t position, bool follows) {
  const float fade = 1.0f - 1.0f / static_cast<float>(window());
  const size_t at = slot(position), before = slot(position + static_cast<int32_t>(window()) - 1);
  follows = follows && tags_[before] == position - 1;
  for (size_t head = 0; head < n_head_; ++head) {
    MacState* states = &states_[head * window()];
    const float faded = follows ? fade * states[before].peak : 0.0f;
    states[at].peak = std::max(states[at].share, faded);
  }
}

void MacRing::settle() {
  const size_t width = n_head_ * head_dim_;
  for (size_t i = 0; i * width < waiting_.size(); ++i) {
    const size_t at = waiting_from_ + i;
    store_query(at, &waiting_[i * width]);
    for (size_t head = 0; head < n_head_; ++head) {
      states_[head * window() + at] = {};
      states_[head * window() + at].share = 0.0f;
    }
    set_peaks(tags_[at]);
    for (size_t head = 0; head < n_head_; ++head) {
      MacState& state = states_[head * window() + at];
      state.share = state.peak;  // for tries: what it would have been is not known
    }
  }
  waiting_.clear();
}

void MacRing::store_query(size_t slot, const float* q) {
  std::vector<float> stored(head_dim_);
  for (size_t head = 0; head < n_head_; ++head) {
    kernels::store_k(queries_, &q_[tile(queries_, head, slot)], slot % kernels::kPageTokens,
                     q + head * head_dim_);
    load_q(head, slot, stored.data());
    norms_[head * window() + slot] =
        std::inner_product(stored.begin(), stored.end(), stored.begin(), 0.0f);
  }
}

void MacRing::truncate(int32_t length) {
  settle();
  for (int32_t& tag : tags_) {
    if (tag >= length) tag = -1;
  }
}

bool MacRing::holds(int32_t begin, int32_t end) const {
  if (end - begin > static_cast<int32_t>(window())) return false;
  while (begin < end && tag(slot(begin)) == begin) ++begin;
  return begin >= end;
}

void MacRing::save(StateWriter& out) const {
  if (!waiting_.empty()) {
    MacRing settled = *this;
    settled.settle();
    return settled.save(out);
  }
  out.array(tags_.data(), tags_.size());
  out.array(q_.data(), q_.size());
  out.array(norms_.data(), norms_.size());
  out.array(out_.data(), out_.size());
  out.array(means_.data(), means_.size());
  out.array(states_.data(), states_.size());
}

void MacRing::restore(StateReader& in, int32_t length) {
  waiting_.clear();
  in.array(tags_, tags_.size());
  in.array(q_, q_.size());
  in.array(norms_, norms_.size());
  in.array(out_, out_.size());
  in.array(means_, means_.size());
  in.array(states_, states_.size());
  if (!in.ok()) return;
  for (size_t i = 0; i < tags_.size(); ++i) {
    in.require(tags_[i] == -1 || (tags_[i] >= 0 && tags_[i] < length && slot(tags_[i]) == i));
  }
}

void MacRing::list_tiles(size_t head, std::vector<kernels::PageSpan>& pages) const {
  pages.resize(tile_count());
  for (size_t i = 0; i < pages.size(); ++i) {
    pages[i] = {};
    pages[i].k = &q_[tile(queries_, head, i * kernels::kPageTokens)];
  }
}

uint64_t MacRing::bytes() const {
  return q_.size() + out_.size() + means_.size() + norms_.size() * sizeof(float) +
         states_.size() * sizeof(MacState) + tags_.size() * sizeof(int32_t) +
         waiting_.capacity() * sizeof(float);
}

}  // namespace reprise
