#include "methods/mac/ring.h"

#include <algorithm>
#include <cmath>

#include "base/float16.h"
#include "kernels/key_tile.h"

namespace reprise {
namespace {

bool all_finite(const float* values, size_t count) {
  float sum = 0.0f;
  for (size_t i = 0; i < count; ++i) sum += values[i] * 0.0f;  // NaN if one is not finite
  return sum == 0.0f;
}

}  // namespace

MacRing::MacRing(const ModelConfig& config, uint32_t window)
    : n_head_(config.n_head),
      head_dim_(config.head_dim),
      layout_{kernels::KvType::kBF16, config.n_head, config.head_dim},
      tags_(window, -1),
      q_(n_head_ * tile_count() * layout_.tile_bytes()),
      norms_(n_head_ * window),
      out_(n_head_ * window * head_dim_),
      states_(n_head_ * window) {}

bool MacRing::write(int32_t position, const float* q, const float* out,
                    std::span<const MacState> states) {
  const size_t at = slot(position), width = n_head_ * head_dim_;
  tags_[at] = -1;
  if (!all_finite(q, width) || !all_finite(out, width)) return false;
  for (size_t head = 0; head < n_head_; ++head) {
    const float* row = q + head * head_dim_;
    kernels::store_bf16_k(&q_[tile(head, at)], at % kernels::kPageTokens, row, head_dim_);
    float norm = 0.0f;
    for (size_t d = 0; d < head_dim_; ++d) {
      const float value = to_float(to_bf16(row[d]));
      norm += value * value;
    }
    norms_[head * window() + at] = norm;
    states_[head * window() + at] = states[head];
  }
  std::copy_n(out, width, &out_[at * width]);
  tags_[at] = position;
  return true;
}

void MacRing::truncate(int32_t length) {
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
  out.array(tags_.data(), tags_.size());
  out.array(q_.data(), q_.size());
  out.array(norms_.data(), norms_.size());
  out.array(out_.data(), out_.size());
  out.array(states_.data(), states_.size());
}

void MacRing::restore(StateReader& in, int32_t length) {
  in.array(tags_, tags_.size());
  in.array(q_, q_.size());
  in.array(norms_, norms_.size());
  in.array(out_, out_.size());
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
    pages[i].k = &q_[tile(head, i * kernels::kPageTokens)];
  }
}

uint64_t MacRing::bytes() const {
  return q_.size() + (norms_.size() + out_.size()) * sizeof(float) +
         states_.size() * sizeof(MacState) + tags_.size() * sizeof(int32_t);
}

}  // namespace reprise
