// Next-token distributions and how far one is from another.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace reprise::eval {

inline constexpr size_t kTop = 5;

/// A softmax in natural logs: log_p in single precision, its normalizer summed in double.
struct Distribution {
  std::vector<float> log_p;       // [vocab]
  double log_sum = 0;             // log of the sum of exp(logit)
  std::array<int32_t, kTop> top;  // likeliest first; equal ones by id; -1 where vocab is smaller

  double nll(std::span<const float> logits, int32_t token) const {
    return log_sum - static_cast<double>(logits[static_cast<size_t>(token)]);
  }
};

/// Of logits [vocab]; reuses what distribution holds.
void log_softmax(std::span<const float> logits, Distribution& distribution);

/// KL(p || q) in nats over the whole vocabulary; exactly 0 for equal ones.
double kl_divergence(const Distribution& p, const Distribution& q);

/// Share of the kTop likeliest tokens that both have.
double top_overlap(const Distribution& a, const Distribution& b);

}  // namespace reprise::eval
