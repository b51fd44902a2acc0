// MAC-Attention in double precision, one row and query head after the other.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/float16.h"
#include "cuda/page_testing.h"
#include "kernels/cuda/mac.h"

namespace reprise::kernels::cuda {

struct MacShape {
  uint32_t n_head, n_kv_head, head_dim, window;
  KvType type = KvType::kBF16;

  uint32_t group() const { return n_head / n_kv_head; }
};

/// Attention of one head over some keys, not normalised.
struct MacSum {
  double total = 0.0;
  std::vector<double> sum;

  explicit MacSum(uint32_t dim) : sum(dim, 0.0) {}
  void add(double weight, const auto& value) {
    total += weight;
    for (uint32_t d = 0; d < sum.size(); ++d) sum[d] += weight * value(d);
  }
  double lse() const {
    return total > 0.0 ? std::log(total) : -std::numeric_limits<double>::infinity();
  }
};

/// The entries of one ring, in the order of MacRings.
class MacModel {
 public:
  MacModel(const MacShape& shape, const MacRules& rules)
      : entries(size_t{shape.n_kv_head} * shape.window * shape.group(),
                {-1, -1, std::nanf(""), 0.0f, 0.0f, 0}),
        q(entries.size() * shape.head_dim),
        out(entries.size() * shape.head_dim),
        shape_(shape),
        rules_(rules) {}

  /// Entries of the positions before this one, as if chains of reuse had ended there. themes:
  /// [n_head, head_dim], what queries are near to.
  void seed(int32_t position, const std::vector<float>& themes, std::mt19937& random) {
    std::normal_distribution<float> normal;
    for (int32_t at = std::max(first_position(), position - window() + 1); at < position; ++at) {
      for (uint32_t head = 0; head < shape_.n_head; ++head) {
        const size_t i = index(head, at);
        entries[i] = {at,
                      std::max(0, at - static_cast<int32_t>(random() % 40)),
                      std::log(static_cast<float>(at)) + normal(random),
                      static_cast<float>(random() % 1000) * 1e-3f,
                      static_cast<float>(random() % 1000) * 1e-3f,
                      static_cast<uint32_t>(random() % 8)};
        const float away = random() % 3 == 0 ? 1.0f : 0.05f;
        for (uint32_t d = 0; d < shape_.head_dim; ++d) {
          const float theme = themes[size_t{head} * shape_.head_dim + d];
          q[i * shape_.head_dim + d] = to_bf16(theme + away * normal(random)).bits;
          out[i * shape_.head_dim + d] = normal(random);
        }
      }
    }
  }

  /// One row of n_head heads. key: key(kv_head, token, d), value the same. Results as of MacArgs.
  void step(int32_t position, bool stores, const float* plain, const uint16_t* rotated, float scale,
            const auto& key, const auto& value, double* result, double* lse) {
    std::vector<int32_t> matches(shape_.n_head, -1);
    const bool compares = stores && position >= rules_.min_context;
    for (uint32_t head = 0; compares && head < shape_.n_head; ++head) {
      matches[head] = nearest(head, position, plain + size_t{head} * shape_.head_dim);
      head_hits += matches[head] >= 0 ? 1 : 0;
    }
    for (uint32_t first = 0; first < shape_.n_head; first += shape_.group()) {
      decide(position, compares, &matches[first]);
      for (uint32_t head = first; head < first + shape_.group(); ++head) {
        const size_t at = size_t{head} * shape_.head_dim;
        attend(position, stores, head, matches[head], plain + at, rotated + at, scale, key, value,
               result + at, lse + head);
      }
    }
  }

  int32_t cut(int32_t position) const {
    const int32_t past = position + 1 - rules_.band;
    return past <= 0 ? 0 : past / rules_.align * rules_.align;
  }

  std::vector<MacEntry> entries;
  std::vector<uint16_t> q;
  std::vector<double> out;
  uint64_t group_hits = 0, head_hits = 0, reused = 0, skipped = 0, keys = 0, lag = 0;

 private:
  int32_t window() const { return static_cast<int32_t>(shape_.window); }
  int32_t first_position() const {
    return rules_.band - 1 + (rules_.sink / rules_.align + 1) * rules_.align;
  }
  size_t index(uint32_t head, int32_t position) const {
    const uint32_t group = shape_.group(), slot = static_cast<uint32_t>(position) % shape_.window;
    return (size_t{head / group} * shape_.window + slot) * group + head % group;
  }

  int32_t nearest(uint32_t head, int32_t position, const float* plain) const {
    int32_t best = -1;
    double least = rules_.distance2, norm2 = 0.0;
    for (int32_t at = position - 1; at >= std::max(0, position - rules_.max_gap); --at) {
      const size_t i = index(head, at);
      const MacEntry& entry = entries[i];
      if (entry.position != at || !std::isfinite(entry.lse) || cut(at) <= rules_.sink) continue;
      if (position - entry.anchor > rules_.max_age) continue;
      double distance2 = 0.0;
      norm2 = 0.0;
      for (uint32_t d = 0; d < shape_.head_dim; ++d) {
        const double own = to_float(to_bf16(plain[d]));
        norm2 += own * own;
        distance2 += std::pow(own - to_float(Bf16{q[i * shape_.head_dim + d]}), 2.0);
      }
      if (!(distance2 < least)) continue;
      least = distance2;
      best = at;
    }
    if (best < 0 || std::isinf(rules_.max_error)) return best;
    const MacEntry& entry = entries[index(head, best)];
    const double error = entry.share * (entry.drift + std::sqrt(least));
    return error > rules_.max_error * std::sqrt(norm2) ? -1 : best;
  }

  void decide(int32_t position, bool compares, int32_t* matches) {
    const bool all =
        std::all_of(matches, matches + shape_.group(), [](int32_t m) { return m >= 0; });
    int32_t begin = std::numeric_limits<int32_t>::max();
    for (uint32_t i = 0; i < shape_.group(); ++i) {
      if (!all && !rules_.split) matches[i] = -1;
      begin = std::min(begin, matches[i] >= 0 ? cut(matches[i]) : rules_.sink);
      reused += matches[i] >= 0 ? 1 : 0;
      lag += matches[i] >= 0 ? static_cast<uint64_t>(position - matches[i]) : 0;
    }
    if (!compares) return;
    keys += static_cast<uint64_t>(position) + 1;
    skipped += static_cast<uint64_t>(std::max(0, begin - rules_.sink));
    group_hits += begin > rules_.sink ? 1 : 0;
  }

  void attend(int32_t position, bool stores, uint32_t head, int32_t match, const float* plain,
              const uint16_t* rotated, float scale, const auto& key, const auto& value,
              double* result, double* lse) {
    const uint32_t dim = shape_.head_dim, kv_head = head / shape_.group();
    MacSum fresh(dim), captured(dim);
    const size_t from = match >= 0 ? index(head, match) : 0;
    const MacEntry old = match >= 0 ? entries[from] : MacEntry{};
    double distance2 = 0.0;
    if (match >= 0) {
      captured.add(std::exp(double{old.lse}), [&](uint32_t d) { return out[from * dim + d]; });
      for (uint32_t d = 0; d < dim; ++d) {
        const double own = to_float(to_bf16(plain[d]));
        distance2 += std::pow(own - to_float(Bf16{q[from * dim + d]}), 2.0);
      }
    }
    const int32_t begin = match >= 0 ? cut(match) : rules_.sink;
    for (int32_t token = 0; token <= position; ++token) {
      const bool is_fresh = token < rules_.sink || token >= cut(position);
      if (!is_fresh && token < begin) continue;
      double logit = 0.0;
      for (uint32_t d = 0; d < dim; ++d) {
        logit += double{to_float(Bf16{rotated[d]})} * key(kv_head, token, d);
      }
      (is_fresh ? fresh : captured).add(std::exp(logit * scale), [&](uint32_t d) {
        return value(kv_head, token, d);
      });
    }
    const double lse_x = captured.lse();
    *lse = std::log(captured.total + fresh.total);
    for (uint32_t d = 0; d < dim; ++d) {
      result[d] = (captured.sum[d] + fresh.sum[d]) / (captured.total + fresh.total);
    }
    const bool writes =
        stores && position >= first_position() && position + window() >= rules_.min_context;
    if (!writes) return;
    const size_t to = index(head, position);
    MacEntry& entry = entries[to];
    entry.position = position;
    entry.anchor = match >= 0 ? old.anchor : position;
    entry.lse = match >= 0 && rules_.anchored ? -std::numeric_limits<float>::infinity()
                                              : static_cast<float>(lse_x);
    entry.share = static_cast<float>(std::exp(lse_x - *lse));
    entry.drift = match >= 0 ? old.drift + static_cast<float>(std::sqrt(distance2)) : 0.0f;
    entry.depth = match >= 0 ? old.depth + 1 : 0;
    for (uint32_t d = 0; d < dim; ++d) {
      q[to * dim + d] = to_bf16(plain[d]).bits;
      out[to * dim + d] = captured.total > 0.0 ? captured.sum[d] / captured.total : 0.0;
    }
  }

  MacShape shape_;
  MacRules rules_;
};

}  // namespace reprise::kernels::cuda
