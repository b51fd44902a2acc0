#include "engine/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace reprise {
namespace {

// The first of the largest logits, NaN aside; lanes of 16 let the compiler use vector instructions.
int32_t argmax(std::span<const float> logits) {
  constexpr size_t kLanes = 16;
  std::array<float, kLanes> lanes;
  lanes.fill(-std::numeric_limits<float>::infinity());
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const float logit = logits[i + lane];
      lanes[lane] = logit > lanes[lane] ? logit : lanes[lane];  // false for NaN
    }
  }
  for (; i < logits.size(); ++i) lanes[0] = logits[i] > lanes[0] ? logits[i] : lanes[0];
  const float largest = *std::max_element(lanes.begin(), lanes.end());
  const auto found = std::find(logits.begin(), logits.end(), largest);
  return found == logits.end() ? 0 : static_cast<int32_t>(found - logits.begin());
}

}  // namespace

int32_t Sampler::sample(std::span<float> logits, std::span<const int32_t> history) {
  penalize(logits, history);
  if (options_.temp <= 0.0f) return argmax(logits);
  keep_likely(logits);
  double mass = 0.0;
  for (const Candidate& candidate : candidates_) mass += candidate.probability;
  double left = uniform() * mass;
  for (const Candidate& candidate : candidates_) {
    left -= candidate.probability;
    if (left < 0.0) return candidate.token;
  }
  return candidates_.back().token;
}

void Sampler::penalize(std::span<float> logits, std::span<const int32_t> history) const {
  if (options_.repeat_penalty == 1.0f) return;
  const size_t count = std::min<size_t>(history.size(), options_.repeat_window);
  std::vector<int32_t> recent(history.end() - static_cast<std::ptrdiff_t>(count), history.end());
  std::sort(recent.begin(), recent.end());
  recent.erase(std::unique(recent.begin(), recent.end()), recent.end());
  for (const int32_t token : recent) {
    float& logit = logits[static_cast<size_t>(token)];
    logit = logit > 0.0f ? logit / options_.repeat_penalty : logit * options_.repeat_penalty;
  }
}

void Sampler::keep_likely(std::span<const float> logits) {
  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isnan(logits[i])) candidates_.push_back({static_cast<int32_t>(i), logits[i], 0.0f});
  }
  if (candidates_.empty()) candidates_.push_back({0, 0.0f, 0.0f});
  const auto likelier = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  };
  if (options_.top_k > 0 && options_.top_k < candidates_.size()) {
    std::nth_element(candidates_.begin(), candidates_.begin() + options_.top_k, candidates_.end(),
                     likelier);
    candidates_.resize(options_.top_k);
  }
  std::sort(candidates_.begin(), candidates_.end(), likelier);
  const float top = candidates_.front().logit;
  double mass = 0.0;
  for (Candidate& candidate : candidates_) {
    const float below = candidate.logit == top ? 0.0f : candidate.logit - top;  // of infinities
    candidate.probability = std::exp(below / options_.temp);
    mass += candidate.probability;
  }
  size_t kept = 0;
  double cumulative = 0.0;
  while (kept < candidates_.size()) {  // the first token always stays
    const bool reached = cumulative >= options_.top_p * mass;
    const bool unlikely = candidates_[kept].probability < options_.min_p;  // the top's is 1
    if (kept > 0 && (reached || unlikely)) break;
    cumulative += candidates_[kept++].probability;
  }
  candidates_.resize(kept);
}

double Sampler::uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }

}  // namespace reprise
