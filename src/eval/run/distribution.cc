#include "eval/run/distribution.h"

#include <algorithm>
#include <cmath>

namespace reprise::eval {
namespace {

std::array<int32_t, kTop> likeliest(std::span<const float> values) {
  std::array<int32_t, kTop> top;
  top.fill(-1);
  const auto value = [&](int32_t token) { return values[static_cast<size_t>(token)]; };
  for (size_t i = 0; i < values.size(); ++i) {
    if (top.back() >= 0 && !(values[i] > value(top.back()))) continue;
    size_t at = kTop - 1;
    for (; at > 0 && (top[at - 1] < 0 || values[i] > value(top[at - 1])); --at)
      top[at] = top[at - 1];
    top[at] = static_cast<int32_t>(i);
  }
  return top;
}

}  // namespace

void log_softmax(std::span<const float> logits, Distribution& distribution) {
  distribution.top = likeliest(logits);
  const float largest = logits[static_cast<size_t>(distribution.top[0])];
  double sum = 0;
  for (const float logit : logits) sum += static_cast<double>(std::exp(logit - largest));
  distribution.log_sum = static_cast<double>(largest) + std::log(sum);
  const auto log_of_rest = static_cast<float>(std::log(sum));
  distribution.log_p.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i)
    distribution.log_p[i] = (logits[i] - largest) - log_of_rest;
}

double kl_divergence(const Distribution& p, const Distribution& q) {
  double sum = 0;
  for (size_t i = 0; i < p.log_p.size(); ++i) {
    const auto log_p = static_cast<double>(p.log_p[i]);
    if (p.log_p[i] == q.log_p[i]) continue;
    sum += static_cast<double>(std::exp(p.log_p[i])) * (log_p - static_cast<double>(q.log_p[i]));
  }
  return sum;
}

double top_overlap(const Distribution& a, const Distribution& b) {
  size_t both = 0, all = 0;
  for (const int32_t token : a.top) {
    if (token < 0) continue;
    ++all;
    both += static_cast<size_t>(std::count(b.top.begin(), b.top.end(), token));
  }
  return all == 0 ? 0 : static_cast<double>(both) / static_cast<double>(all);
}

}  // namespace reprise::eval
