#include "methods/attention_predictor/network.h"

#include <algorithm>
#include <cmath>

namespace reprise {
namespace {

constexpr size_t kMoreBlocks = 64;  // room that is made at least
constexpr size_t kReach = 2;        // rows and columns that a projection sees to each side

}  // namespace

NetworkPredictor::NetworkPredictor(size_t heads, std::shared_ptr<const ForecastNet> net,
                                   float factor, uint32_t period)
    : heads_(heads), net_(std::move(net)), average_(heads, factor, period), histories_(heads) {}

void NetworkPredictor::grow(size_t blocks) {
  blocks_ = std::max(blocks_, blocks);
  if (blocks_ <= stride_) return;
  const size_t stride = std::max(blocks_, stride_ + std::max(kMoreBlocks, stride_ / 8));
  for (Head& head : histories_) {
    for (auto* ring : {&head.rows, &head.parts}) {
      std::vector<float> wider(net_->rows * stride);
      for (size_t row = 0; row < net_->rows && stride_ > 0; ++row) {
        std::copy_n(&(*ring)[row * stride_], stride_, &wider[row * stride]);
      }
      *ring = std::move(wider);
    }
  }
  stride_ = stride;
}

void NetworkPredictor::push(const ScoreRow& row) {
  grow(row.blocks);
  for (size_t h = 0; h < heads_; ++h) {
    fill_in(h, row);
    float* to = at(histories_[h].rows, pushed_);
    for (size_t i = 0; i < row.blocks; ++i) {
      to[i] = net_->published ? expected_[i] : std::sqrt(expected_[i]);
    }
    std::fill(to + row.blocks, to + stride_, 0.0f);
  }
  if (!net_->published) average_.push(row);
  ++pushed_;
}

void NetworkPredictor::fill_in(size_t head, const ScoreRow& row) {
  const auto scores = row.scores_of(head);
  if (row.whole()) return expected_.assign(scores.begin(), scores.end());
  const auto read = row.read_by(head);
  if (!net_->published) return expect(head, read, scores, row.blocks);
  expected_.assign(row.blocks, 0.0f);
  for (size_t i = 0; i < read.size(); ++i) expected_[static_cast<size_t>(read[i])] = scores[i];
}

/// A row as it may have been: what it read, and the average of what it did not.
void NetworkPredictor::expect(size_t head, std::span<const int32_t> read,
                              std::span<const float> scores, size_t blocks) {
  expected_.resize(blocks);
  average_.forecast(head, 0, blocks, expected_.data());
  for (const int32_t block : read) expected_[static_cast<size_t>(block)] = 0.0f;
  float elsewhere = 0.0f;
  for (float& value : expected_) elsewhere += value *= average_.fade();
  const float share = std::max(0.0f, 1.0f - elsewhere);
  for (size_t i = 0; i < read.size(); ++i) {
    expected_[static_cast<size_t>(read[i])] = share * scores[i];
  }
}

void NetworkPredictor::project(Head& head, const Window& window, int64_t row, float* out) const {
  const size_t columns = window.last - window.first;
  const size_t width = (columns + kReach) * kernels::kNetInner;
  head.inner.resize(3 * width);
  const float* inner[3];
  for (int64_t i = 0; i < 3; ++i) {
    const int64_t middle = row + i - 1;
    inner[i] = nullptr;
    if (middle < window.oldest || middle > window.newest) continue;
    const float* in[3];
    for (int64_t k = 0; k < 3; ++k) {
      const int64_t from = middle + k - 1;
      const bool present = from >= window.oldest && from <= window.newest;
      in[k] = present ? at(head.rows, from) + window.first : nullptr;
    }
    float* to = &head.inner[static_cast<size_t>(i) * width];
    kernels::score_net_inner(net_->net, in, columns, to);
    inner[i] = to;
  }
  kernels::score_net_project(net_->net, inner, columns, out);
}

void NetworkPredictor::keep_parts(Head& head, const Window& window) const {
  const auto reach = static_cast<int64_t>(kReach);
  const int64_t oldest = window.oldest + reach, newest = window.newest - reach;
  if (head.first != window.first || head.last > window.last) head.known = -1;
  if (head.known >= oldest && head.last < window.last) {
    // Blocks came to the right: the columns beside the old edge saw zeros there.
    Window part = window;
    const size_t edge = std::max(window.first + kReach, head.last) - kReach;
    part.first = std::max(window.first + kReach, edge) - kReach;
    for (int64_t row = oldest; row <= std::min(head.known, newest); ++row) {
      head.edge.resize(window.last - part.first);
      project(head, part, row, head.edge.data());
      std::copy(head.edge.begin() + static_cast<std::ptrdiff_t>(edge - part.first), head.edge.end(),
                at(head.parts, row) + edge);
    }
  }
  for (int64_t row = std::max(oldest, head.known + 1); row <= newest; ++row) {
    project(head, window, row, at(head.parts, row) + window.first);
    head.known = row;
  }
  head.first = window.first;
  head.last = window.last;
}

void NetworkPredictor::forecast(size_t index, size_t first, size_t last, float* out) {
  Head& head = histories_[index];
  const size_t columns = last - first, rows = static_cast<size_t>(pushed_ - oldest());
  std::fill_n(out, columns, 0.0f);
  if (rows == 0 || columns == 0) return;
  const Window window = {first, last, oldest(), pushed_ - 1};
  keep_parts(head, window);
  std::vector<float> edge(columns);
  for (int64_t row = window.oldest; row <= window.newest; ++row) {
    const auto reach = static_cast<int64_t>(kReach);
    const bool inside = row >= window.oldest + reach && row <= window.newest - reach;
    const float* part = inside ? at(head.parts, row) + first : edge.data();
    if (!inside) project(head, window, row, edge.data());
    for (size_t i = 0; i < columns; ++i) out[i] += part[i];
  }
  const float share = 1.0f / static_cast<float>(rows);
  for (size_t i = 0; i < columns; ++i) out[i] = out[i] * share + net_->net.bias3;
  if (net_->published) return;
  average_.forecast(index, first, last, edge.data());
  for (size_t i = 0; i < columns; ++i) out[i] += std::sqrt(edge[i]);
}

void NetworkPredictor::clear() {
  average_.clear();
  blocks_ = stride_ = 0;
  pushed_ = 0;
  histories_.assign(heads_, {});
}

uint64_t NetworkPredictor::bytes() const {
  uint64_t floats = 0;
  for (const Head& head : histories_) {
    floats +=
        head.rows.capacity() + head.parts.capacity() + head.inner.capacity() + head.edge.capacity();
  }
  return average_.bytes() + floats * sizeof(float);
}

void NetworkPredictor::save(StateWriter& out) const {
  average_.save(out);
  const int64_t kept = pushed_ - oldest();
  out.value(kept);
  out.value(static_cast<uint64_t>(blocks_));
  for (const Head& head : histories_) {
    for (int64_t row = oldest(); row < pushed_; ++row) {
      const auto slot = static_cast<size_t>(row % static_cast<int64_t>(net_->rows));
      out.array(&head.rows[slot * stride_], blocks_);
    }
  }
}

void NetworkPredictor::load(StateReader& in, size_t max_blocks) {
  clear();
  average_.load(in, max_blocks);
  const auto kept = in.value<int64_t>();
  const auto blocks = static_cast<size_t>(in.value<uint64_t>());
  in.require(kept >= 0 && kept <= static_cast<int64_t>(net_->rows) && blocks <= max_blocks);
  std::vector<float> rows;
  if (in.ok()) in.array(rows, heads_ * static_cast<size_t>(kept) * blocks);
  const auto is_score = [](float x) { return x >= 0.0f && x <= 2.0f; };  // false for NaN
  in.require(std::ranges::all_of(rows, is_score));
  if (!in.ok()) return clear();
  grow(blocks);
  const float* from = rows.data();
  for (Head& head : histories_) {
    for (int64_t row = 0; row < kept; ++row, from += blocks) {
      std::copy_n(from, blocks, at(head.rows, row));
    }
  }
  pushed_ = kept;
}

}  // namespace reprise
