#include "methods/attention_predictor/average.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace reprise {
namespace {

constexpr size_t kMoreBlocks = 64;  // room that is made at least
constexpr size_t kSums = 16;

float fade_of(float factor, uint32_t period) {
  if (factor == 0.0f) return 0.0f;
  return period == 0 ? 1.0f : std::pow(factor, 1.0f / static_cast<float>(period));
}

/// Scales values; returns their sum.
float fade_all(std::span<float> values, float factor) {
  float sums[kSums] = {};  // side by side: compilers may not change the order of one
  size_t i = 0;
  for (; i + kSums <= values.size(); i += kSums) {
    float* own = &values[i];
    if (factor != 1.0f) {
      for (size_t j = 0; j < kSums; ++j) own[j] *= factor;
    }
    for (size_t j = 0; j < kSums; ++j) sums[j] += own[j];
  }
  for (; i < values.size(); ++i) sums[0] += values[i] *= factor;
  return std::accumulate(sums, sums + kSums, 0.0f);
}

}  // namespace

AveragePredictor::AveragePredictor(size_t heads, float factor, uint32_t period)
    : heads_(heads), factor_(factor), fade_(fade_of(factor, period)) {}

void AveragePredictor::grow(size_t blocks) {
  if (blocks > stride_) {
    const size_t stride = std::max(blocks, stride_ + std::max(kMoreBlocks, stride_ / 8));
    std::vector<float> wider(heads_ * stride);
    for (size_t head = 0; head < heads_; ++head) {
      std::copy_n(averages_.begin() + static_cast<std::ptrdiff_t>(head * stride_), blocks_,
                  wider.begin() + static_cast<std::ptrdiff_t>(head * stride));
    }
    averages_ = std::move(wider);
    stride_ = stride;
  }
  blocks_ = std::max(blocks_, blocks);
}

void AveragePredictor::push(const ScoreRow& row) {
  const bool first = blocks_ == 0;
  grow(row.blocks);
  for (size_t head = 0; head < heads_; ++head) {
    float* average = &averages_[head * stride_];
    if (!row.whole()) {
      add_part(row.read_by(head), row.scores_of(head), first ? 0.0f : factor_, average);
      continue;
    }
    const float* scores = row.scores_of(head).data();
    const float factor = first ? 0.0f : factor_;
    for (size_t i = 0; i < row.blocks; ++i) {
      average[i] = factor * average[i] + (1.0f - factor) * scores[i];
    }
  }
}

void AveragePredictor::add_part(std::span<const int32_t> read, std::span<const float> scores,
                                float factor, float* average) {
  before_.clear();
  for (const int32_t block : read) before_.push_back(average[block]);
  const float all = fade_all({average, blocks_}, fade_);
  const float there = fade_ * std::accumulate(before_.begin(), before_.end(), 0.0f);
  const float elsewhere = std::clamp(all - there, 0.0f, 1.0f);
  const float share = (1.0f - factor) * (1.0f - elsewhere);
  for (size_t i = 0; i < read.size(); ++i) {
    average[read[i]] = factor * before_[i] + share * scores[i];
  }
}

void AveragePredictor::forecast(size_t head, size_t first, size_t last, float* out) {
  const size_t known = std::clamp(blocks_, first, last);
  std::copy(averages_.begin() + static_cast<std::ptrdiff_t>(head * stride_ + first),
            averages_.begin() + static_cast<std::ptrdiff_t>(head * stride_ + known), out);
  std::fill(out + (known - first), out + (last - first), 0.0f);
}

void AveragePredictor::clear() {
  blocks_ = stride_ = 0;
  averages_ = {};
}

void AveragePredictor::save(StateWriter& out) const {
  out.value(static_cast<uint64_t>(blocks_));
  for (size_t head = 0; head < heads_; ++head) out.array(&averages_[head * stride_], blocks_);
}

void AveragePredictor::load(StateReader& in, size_t max_blocks) {
  clear();
  const auto blocks = static_cast<size_t>(in.value<uint64_t>());
  in.require(blocks <= max_blocks);
  if (!in.ok()) return;
  in.array(averages_, heads_ * blocks);
  const auto is_share = [](float x) { return x >= 0.0f && x <= 2.0f; };  // false for NaN
  in.require(std::ranges::all_of(averages_, is_share));
  if (!in.ok()) return clear();
  blocks_ = stride_ = blocks;
}

}  // namespace reprise
