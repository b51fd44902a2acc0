#include "methods/attention_predictor/average.h"

#include <algorithm>
#include <cmath>

namespace reprise {
namespace {

constexpr size_t kMoreBlocks = 64;  // room that is made at least

float fade_of(float factor, uint32_t period) {
  if (factor == 0.0f) return 0.0f;
  return period == 0 ? 1.0f : std::pow(factor, 1.0f / static_cast<float>(period));
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
    const float* scores = &row.scores[head * row.blocks];
    const uint8_t* read = &row.read[head * row.blocks];
    if (first) {
      std::copy_n(scores, row.blocks, average);
      continue;
    }
    float elsewhere = 0.0f;
    for (size_t i = 0; i < row.blocks; ++i) elsewhere += read[i] ? 0.0f : fade_ * average[i];
    const float share = (1.0f - factor_) * std::max(0.0f, 1.0f - elsewhere);
    for (size_t i = 0; i < row.blocks; ++i) {
      average[i] = read[i] ? factor_ * average[i] + share * scores[i] : fade_ * average[i];
    }
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
