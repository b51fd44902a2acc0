#include "methods/attention_predictor/average.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace reprise {
namespace {

constexpr size_t kMoreBlocks = 64;  // room that is made at least
constexpr size_t kSums = 16;
constexpr float kShareUnit = 0x1p-44f;

/// Of a share in whole units, so that sums are exact and may be taken in any order.
int64_t units(float share) { return static_cast<int64_t>(share * (1.0f / kShareUnit)); }

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
    : heads_(heads), factor_(factor), fade_(fade_of(factor, period)), known_(heads) {}

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
  const float factor = blocks_ == 0 ? 0.0f : factor_;
  grow(row.blocks);
  for (size_t head = 0; head < heads_; ++head) {
    if (row.whole())
      add_whole(head, row.scores_of(head), factor);
    else
      add_part(head, row.read_by(head), row.scores_of(head), factor);
  }
}

void AveragePredictor::add_whole(size_t head, std::span<const float> scores, float factor) {
  const auto averages = take_back(head);
  for (size_t i = 0; i < scores.size(); ++i) {
    averages[i] = factor * averages[i] + (1.0f - factor) * scores[i];
  }
  known_[head].added = false;
}

/// All averages of a head; nothing of them is listed any more.
std::span<float> AveragePredictor::take_back(size_t head) {
  const auto averages = averages_of(head);
  known_[head].shortlist.store(averages);
  known_[head].shortlist.clear();
  return averages;
}

/// What blocks that a row did not read are expected to get. Fades all, and takes what was read out
/// of the total.
float AveragePredictor::expected_elsewhere(size_t head) {
  const auto averages = averages_of(head);
  Head& own = known_[head];
  if (fade_ != 1.0f) {
    own.shortlist.store(averages);
    own.shortlist.fade(fade_);
    return fade_all(averages, fade_) -
           fade_ * std::accumulate(before_.begin(), before_.end(), 0.0f);
  }
  if (!own.added) {
    own.shortlist.store(averages);
    own.total = 0;
    for (const float average : averages) own.total += units(average);
    own.added = true;
  }
  for (const float average : before_) own.total -= units(average);
  return static_cast<float>(own.total) * kShareUnit;
}

void AveragePredictor::add_part(size_t head, std::span<const int32_t> read,
                                std::span<const float> scores, float factor) {
  Head& own = known_[head];
  const size_t found = own.shortlist.find_picks(read);
  const bool listed = found != Shortlist::kNoPicks;
  const auto averages = listed ? averages_of(head) : take_back(head);
  const std::span<const float> picked = listed ? own.shortlist.picked() : std::span<const float>();
  const size_t picks = listed ? found : 0, end = picks + picked.size();
  const auto average = [&](size_t i) -> float& { return averages[static_cast<size_t>(read[i])]; };
  before_.resize(read.size());
  for (size_t i = 0; i < picks; ++i) before_[i] = average(i);
  std::ranges::copy(picked, before_.begin() + static_cast<std::ptrdiff_t>(picks));
  for (size_t i = end; i < read.size(); ++i) before_[i] = average(i);
  const float elsewhere = std::clamp(expected_elsewhere(head), 0.0f, 1.0f);
  const float share = (1.0f - factor) * (1.0f - elsewhere);
  after_.resize(read.size());
  for (size_t i = 0; i < read.size(); ++i) after_[i] = factor * before_[i] + share * scores[i];
  for (size_t i = 0; own.added && i < after_.size(); ++i) own.total += units(after_[i]);
  for (size_t i = 0; i < picks; ++i) average(i) = after_[i];
  for (size_t i = end; i < read.size(); ++i) average(i) = after_[i];
  if (listed) own.shortlist.set_picked(std::span(after_).subspan(picks, picked.size()));
}

void AveragePredictor::forecast(size_t head, size_t first, size_t last, float* out) {
  const size_t known = std::clamp(blocks_, first, last);
  known_[head].shortlist.store(averages_of(head));
  std::copy(averages_.begin() + static_cast<std::ptrdiff_t>(head * stride_ + first),
            averages_.begin() + static_cast<std::ptrdiff_t>(head * stride_ + known), out);
  std::fill(out + (known - first), out + (last - first), 0.0f);
}

void AveragePredictor::best(size_t head, size_t first, size_t last, size_t count,
                            std::vector<int32_t>& blocks) {
  known_[head].shortlist.best(averages_of(head), first, last, count, blocks);
}

void AveragePredictor::fetch() const {
  for (size_t head = 0; head < heads_ && blocks_ > 0; ++head) {
    known_[head].shortlist.fetch();
    __builtin_prefetch(&averages_[head * stride_]);  // sinks and window are read always
    __builtin_prefetch(&averages_[head * stride_ + blocks_ - 1]);
  }
}

void AveragePredictor::clear() {
  blocks_ = stride_ = 0;
  averages_ = {};
  known_.assign(heads_, {});
}

uint64_t AveragePredictor::bytes() const {
  uint64_t bytes = averages_.capacity() * sizeof(float);
  for (const Head& head : known_) bytes += head.shortlist.bytes();
  return bytes;
}

void AveragePredictor::save(StateWriter& out) const {
  out.value(static_cast<uint64_t>(blocks_));
  std::vector<float> averages(blocks_);
  for (size_t head = 0; head < heads_; ++head) {
    std::copy_n(averages_.begin() + static_cast<std::ptrdiff_t>(head * stride_), blocks_,
                averages.begin());
    known_[head].shortlist.store(averages);
    out.array(averages.data(), blocks_);
  }
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
