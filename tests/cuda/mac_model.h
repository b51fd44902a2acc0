// MAC-Attention in double precision, one row and query head after the other.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "cuda/mac_ring_testing.h"
#include "cuda/page_testing.h"

namespace reprise::kernels::cuda {

struct MacShape {
  uint32_t n_head, n_kv_head, head_dim, window;
  KvType type = KvType::kBF16;
  bool coded = false;  // rings

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

/// See kernels/cuda/mac_guard.cuh.
enum class MacMode { kRest, kTry, kReuse };

/// The entries of one ring, in the order of MacRings.
class MacModel {
 public:
  MacModel(const MacShape& shape, const MacRules& rules)
      : entries(size_t{shape.n_kv_head} * shape.window * shape.group(),
                {-1, -1, std::nanf(""), 0.0f, 0.0f, 0}),
        q(entries.size() * shape.head_dim),
        out(entries.size() * shape.head_dim),
        guards(shape.n_kv_head),
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
          q[i * shape_.head_dim + d] = theme + away * normal(random);
          out[i * shape_.head_dim + d] = normal(random);
        }
        round_entry(i);
      }
    }
  }

  /// What the guard of a KV head makes of a row.
  struct Prospect {
    double gain = 0.0, missed = 0.0, hope = 0.0;
    bool due = false;
  };
  Prospect prospect(int32_t position, bool has_ring, uint32_t kv_head) const {
    Prospect own;
    if (position < 0) return own;
    const int32_t most = pages_from(position, 0);
    own.missed = most > pages_from(position, cut(position - rules_.max_gap)) ? 1.0 : 0.0;
    if (!may_reuse(position, has_ring)) return own;
    const Guard& guard = guards[kv_head];
    const double bytes =
        listed ? guard.listed[(position + 1) % 2] : most * double{kPageTokens} * key_bytes();
    own.hope = std::max(0.0, bytes - ring_bytes());
    const int32_t since = position - guard.tried;
    own.due = guard.seen < 4 || since < 0 || since >= 64 << guard.pauses;
    if (guard.seen < 4 || guard.saved <= ring_bytes()) return own;
    own.gain = guard.saved - ring_bytes();
    own.missed *= guard.missed;
    return own;
  }
  /// Whether a row leaves an entry.
  bool stores(int32_t position, bool has_ring) const {
    return has_ring && position >= first_position() && position + window() >= rules_.min_context;
  }

  /// One row of n_head heads in a launch of a mode. key: key(kv_head, token, d), value the same.
  /// Results as of MacArgs.
  void step(int32_t position, bool has_ring, MacMode mode, const float* plain,
            const uint16_t* rotated, float scale, const auto& key, const auto& value,
            double* result, double* lse) {
    const bool asks = may_reuse(position, has_ring), reuses = mode == MacMode::kReuse;
    for (uint32_t first = 0; first < shape_.n_head; first += shape_.group()) {
      const uint32_t kv_head = first / shape_.group();
      const Prospect own = prospect(position, has_ring, kv_head);
      const bool compares = asks && mode != MacMode::kRest &&
                            (!rules_.guarded || own.due || (reuses && own.gain > 0.0));
      std::vector<int32_t> matches(shape_.group(), -1);
      for (uint32_t i = 0; compares && i < matches.size(); ++i) {
        matches[i] =
            nearest(first + i, position, plain + size_t{first + i} * shape_.head_dim, reuses);
      }
      if (asks) {
        ++counters.steps;
        counters.keys += static_cast<uint64_t>(position) + 1;
      }
      if (reuses) count(matches, compares);
      decide(matches);
      if (reuses && compares) count_reused(position, matches);
      if (compares && rules_.guarded) tell(position, reuses, matches, kv_head);
      if (asks && listed) guards[kv_head].listed[position % 2] = listed_bytes(position, kv_head);
      for (uint32_t i = 0; i < matches.size(); ++i) {
        const size_t at = size_t{first + i} * shape_.head_dim;
        attend(position, has_ring, reuses, first + i, reuses ? matches[i] : -1, plain + at,
               rotated + at, scale, key, value, result + at, lse + first + i);
      }
      if (!reuses && stores(position, has_ring)) guards[kv_head].rested = position;
    }
  }

  int32_t cut(int32_t position) const {
    const int32_t past = position + 1 - rules_.band;
    return past <= 0 ? 0 : past / rules_.align * rules_.align;
  }

  std::vector<MacEntry> entries;
  std::vector<float> q, out;  // as they are kept
  struct Guard {
    double saved = 0.0, missed = 0.0;
    uint32_t seen = 0, pauses = 0;
    int32_t tried = 0, rested = 0;
    double listed[2] = {};
  };
  std::vector<Guard> guards;  // [n_kv_head]
  /// Which keys a KV head reads where nothing is reused, beside sinks and band; none: all.
  std::function<bool(uint32_t kv_head, int32_t token)> listed;
  std::vector<int32_t> listed_pages;  // [n_kv_head] then
  MacCounters counters = {};

 private:
  bool may_reuse(int32_t position, bool has_ring) const {
    return has_ring && position >= rules_.min_context;
  }
  // Of a KV head.
  double key_bytes() const { return 2.0 * tile_bytes(shape_.type, shape_.head_dim) / kPageTokens; }
  double ring_bytes() const {
    const double query = shape_.head_dim * (shape_.coded ? 1.0 + 4.0 / 32 : 2.0);
    const double entry = query + sizeof(MacEntry);
    return shape_.window * shape_.group() * entry + double{rules_.costs.pair};
  }
  // Pages of keys between sinks and cut of a row that hold keys from one on.
  int32_t pages_from(int32_t position, int32_t begin) const {
    constexpr int32_t kTokens = kPageTokens;
    const int32_t sink = std::min(rules_.sink, position + 1), end = std::max(sink, cut(position));
    if (end <= sink) return 0;
    return (end + kTokens - 1) / kTokens - std::max(sink, begin) / kTokens;
  }
  // Of such pages, as far as a list names more than as many as hold sinks and band.
  double listed_bytes(int32_t position, uint32_t kv_head) const {
    constexpr int32_t kTokens = kPageTokens;
    const int32_t sink = std::min(rules_.sink, position + 1), end = std::max(sink, cut(position));
    const int32_t first = (sink + kTokens - 1) / kTokens, last = std::max(first, end / kTokens);
    const int32_t fresh = first + std::max(0, position / kTokens + 1 - last);
    const int32_t pages = std::max(0, listed_pages[kv_head] - fresh);
    return std::min(pages, pages_from(position, 0)) * kTokens * key_bytes();
  }
  int32_t window() const { return static_cast<int32_t>(shape_.window); }
  int32_t first_position() const {
    return rules_.band - 1 + (rules_.sink / rules_.align + 1) * rules_.align;
  }
  size_t index(uint32_t head, int32_t position) const {
    const uint32_t group = shape_.group(), slot = static_cast<uint32_t>(position) % shape_.window;
    return (size_t{head / group} * shape_.window + slot) * group + head % group;
  }

  // results: among entries that have one.
  int32_t nearest(uint32_t head, int32_t position, const float* plain, bool results) const {
    int32_t best = -1;
    double least = rules_.distance2, norm2 = 0.0;
    for (int32_t at = position - 1; at >= std::max(0, position - rules_.max_gap); --at) {
      const size_t i = index(head, at);
      const MacEntry& entry = entries[i];
      if (entry.position != at || cut(at) <= rules_.sink) continue;
      if (results && !std::isfinite(entry.lse)) continue;
      if (results && position - entry.anchor > rules_.max_age) continue;
      double distance2 = 0.0;
      norm2 = 0.0;
      for (uint32_t d = 0; d < shape_.head_dim; ++d) {
        const double own = to_float(to_bf16(plain[d]));
        norm2 += own * own;
        distance2 += std::pow(own - q[i * shape_.head_dim + d], 2.0);
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

  void count(const std::vector<int32_t>& matches, bool compares) {
    counters.compared += compares ? 1 : 0;
    for (const int32_t match : matches) counters.head_hits += match >= 0 ? 1 : 0;
  }

  void decide(std::vector<int32_t>& matches) const {
    const bool all = std::all_of(matches.begin(), matches.end(), [](int32_t m) { return m >= 0; });
    if (!all && !rules_.split) std::fill(matches.begin(), matches.end(), -1);
  }

  int32_t begin_of(const std::vector<int32_t>& matches) const {
    const int32_t least = *std::min_element(matches.begin(), matches.end());
    return least >= 0 ? cut(least) : rules_.sink;
  }

  void count_reused(int32_t position, const std::vector<int32_t>& matches) {
    for (const int32_t match : matches) {
      counters.reused_heads += match >= 0 ? 1 : 0;
      counters.lag += match >= 0 ? static_cast<uint64_t>(position - match) : 0;
    }
    const int32_t begin = begin_of(matches);
    counters.skipped += static_cast<uint64_t>(std::max(0, begin - rules_.sink));
    counters.group_hits += begin > rules_.sink ? 1 : 0;
  }

  void tell(int32_t position, bool reuses, const std::vector<int32_t>& matches, uint32_t kv_head) {
    Guard& guard = guards[kv_head];
    if (reuses) {
      guard.rested = std::min(guard.rested, position - 1);
      if (position - guard.rested <= rules_.max_gap) return;
    }
    const int32_t begin = begin_of(matches);
    const double skipped = std::max(0, begin - rules_.sink);
    const double share = skipped / std::max(1, cut(position) - rules_.sink);
    const double saves = listed ? share * listed_bytes(position, kv_head) : skipped * key_bytes();
    const bool far =
        pages_from(position, begin) > pages_from(position, cut(position - rules_.max_gap));
    const double weight = std::max(1.0 / (guard.seen + 1), reuses ? 1.0 / 64 : 1.0 / 8);
    guard.saved += (saves - guard.saved) * weight;
    guard.missed += ((far ? 1.0 : 0.0) - guard.missed) * weight;
    ++guard.seen;
    guard.tried = position;
    guard.pauses = saves <= ring_bytes() ? std::min(guard.pauses + 1, 4u) : 0;
  }

  void attend(int32_t position, bool has_ring, bool reuses, uint32_t head, int32_t match,
              const float* plain, const uint16_t* rotated, float scale, const auto& key,
              const auto& value, double* result, double* lse) {
    const uint32_t dim = shape_.head_dim, kv_head = head / shape_.group();
    MacSum fresh(dim), captured(dim);
    const size_t from = match >= 0 ? index(head, match) : 0;
    const MacEntry old = match >= 0 ? entries[from] : MacEntry{};
    double distance2 = 0.0;
    if (match >= 0) {
      captured.add(std::exp(double{old.lse}),
                   [&](uint32_t d) { return double{out[from * dim + d]}; });
      for (uint32_t d = 0; d < dim; ++d) {
        const double own = to_float(to_bf16(plain[d]));
        distance2 += std::pow(own - q[from * dim + d], 2.0);
      }
    }
    const int32_t begin = match >= 0 ? cut(match) : rules_.sink;
    for (int32_t token = 0; token <= position; ++token) {
      const bool is_fresh = token < rules_.sink || token >= cut(position);
      if (!is_fresh && token < begin) continue;
      const bool certain = reuses && (is_fresh || match >= 0);
      if (!certain && listed && !listed(kv_head, token)) continue;
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
    if (!stores(position, has_ring)) return;
    const size_t to = index(head, position);
    MacEntry& entry = entries[to];
    entry.position = position;
    entry.anchor = match >= 0 ? old.anchor : position;
    const bool leaves = reuses && !(match >= 0 && rules_.anchored);
    entry.lse = leaves ? static_cast<float>(lse_x) : -std::numeric_limits<float>::infinity();
    entry.share = reuses ? static_cast<float>(std::exp(lse_x - *lse)) : 0.0f;
    entry.drift = match >= 0 ? old.drift + static_cast<float>(std::sqrt(distance2)) : 0.0f;
    entry.depth = match >= 0 ? old.depth + 1 : 0;
    for (uint32_t d = 0; d < dim; ++d) {
      q[to * dim + d] = plain[d];
      if (!reuses) continue;
      const double mean = captured.total > 0.0 ? captured.sum[d] / captured.total : 0.0;
      out[to * dim + d] = static_cast<float>(mean);
    }
    round_entry(to);
  }

  void round_entry(size_t i) {
    const size_t dim = shape_.head_dim;
    round_query(shape_.coded, std::span(q).subspan(i * dim, dim));
    if (shape_.coded) round_query(true, std::span(out).subspan(i * dim, dim));
  }

  MacShape shape_;
  MacRules rules_;
};

}  // namespace reprise::kernels::cuda
