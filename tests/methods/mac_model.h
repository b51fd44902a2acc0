// MAC-Attention in double precision, one row and query head after the other.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "base/float16.h"

namespace reprise::test {

struct MacHeads {
  uint32_t n_head, n_kv_head, head_dim, window;

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

/// A row whose attention is computed.
struct MacRow {
  int32_t position = 0;
  const float* plain = nullptr;  // [n_head, head_dim] before rotation
  bool reuses = true;            // else what it stores has no results
  bool stores = true;            // it leaves entries
};

/// The entries of one ring, [n_kv_head][window][group]. Rules: those of src/methods/mac/options.h
/// by their names, with distance2, which matches are nearer than, squared. Entry: position (-1:
/// there is none), anchor, lse, share, drift, peak and depth, as in MacState.
template <class Rules, class Entry>
class MacRecurrence {
 public:
  using Round = std::function<void(std::span<float>)>;  // what a ring keeps of a head's numbers

  MacRecurrence(const MacHeads& heads, const Rules& rules, Round round_query, Round round_result)
      : entries(size_t{heads.n_kv_head} * heads.window * heads.group(),
                Entry{-1, -1, std::nanf(""), 0.0f, 0.0f, 0.0f, 0}),
        q(entries.size() * heads.head_dim),
        out(entries.size() * heads.head_dim),
        heads_(heads),
        rules_(rules),
        round_query_(std::move(round_query)),
        round_result_(std::move(round_result)) {}

  int32_t cut(int32_t position) const {
    const int32_t past = position + 1 - rules_.band;
    return past <= 0 ? 0 : past / rules_.align * rules_.align;
  }
  /// Whether a row leaves an entry.
  bool stores(int32_t position) const {
    return position >= first_position() && position + window() >= rules_.min_context;
  }
  /// The nearest entry of each query head of a KV head, -1 where there is none. plain: [n_head,
  /// head_dim]; results: among entries that have one.
  std::vector<int32_t> nearest(uint32_t kv_head, int32_t position, const float* plain,
                               bool results = true) const {
    std::vector<int32_t> matches;
    for (uint32_t head = kv_head * heads_.group(); matches.size() < heads_.group(); ++head) {
      matches.push_back(
          nearest_of(head, position, plain + size_t{head} * heads_.head_dim, results));
    }
    return matches;
  }
  /// Of the matches of a KV head, those that are reused.
  void decide(std::vector<int32_t>& matches) const {
    const bool all = std::all_of(matches.begin(), matches.end(), [](int32_t m) { return m >= 0; });
    if (!all && !rules_.split) std::fill(matches.begin(), matches.end(), -1);
  }
  /// One query head, which reuses the entry of match, or -1. logit(token) has the scale;
  /// value(token, d). result: [head_dim]
  void attend(const MacRow& row, uint32_t head, int32_t match, const auto& logit, const auto& value,
              double* result, double* lse) {
    const uint32_t dim = heads_.head_dim, kv_head = head / heads_.group();
    MacSum fresh(dim), captured(dim);
    const float* old = match >= 0 ? &out[index(head, match) * dim] : nullptr;
    if (match >= 0) {
      captured.add(std::exp(double{entries[index(head, match)].lse}),
                   [&](uint32_t d) { return double{old[d]}; });
    }
    const int32_t begin = match >= 0 ? cut(match) : rules_.sink;
    for (int32_t token = 0; token <= row.position; ++token) {
      const bool is_fresh = token < rules_.sink || token >= cut(row.position);
      if (!is_fresh && token < begin) continue;
      const bool certain = row.reuses && (is_fresh || match >= 0);
      if (!certain && listed && !listed(kv_head, token)) continue;
      (is_fresh ? fresh : captured).add(std::exp(logit(token)), [&](uint32_t d) {
        return value(token, d);
      });
    }
    *lse = std::log(captured.total + fresh.total);
    for (uint32_t d = 0; d < dim; ++d) {
      result[d] = (captured.sum[d] + fresh.sum[d]) / (captured.total + fresh.total);
    }
    if (row.stores) store(row, head, match, captured, *lse);
  }

  std::vector<Entry> entries;
  std::vector<float> q, out;  // as they are kept
  int32_t starts = -1;        // a position whose peaks do not follow from those before
  /// Which keys a KV head reads where nothing is reused, beside sinks and band; none: all.
  std::function<bool(uint32_t kv_head, int32_t token)> listed;

  size_t index(uint32_t head, int32_t position) const {
    const uint32_t group = heads_.group(), slot = static_cast<uint32_t>(position) % heads_.window;
    return (size_t{head / group} * heads_.window + slot) * group + head % group;
  }

 protected:
  int32_t window() const { return static_cast<int32_t>(heads_.window); }
  int32_t first_position() const {
    return rules_.band - 1 + (rules_.sink / rules_.align + 1) * rules_.align;
  }
  void round_entry(size_t i) {
    const size_t dim = heads_.head_dim;
    round_query_(std::span(q).subspan(i * dim, dim));
    if (round_result_) round_result_(std::span(out).subspan(i * dim, dim));
  }

  MacHeads heads_;
  Rules rules_;

 private:
  double distance2(size_t entry, const float* plain) const {
    double sum = 0.0;
    for (uint32_t d = 0; d < heads_.head_dim; ++d) {
      const double own = to_float(to_bf16(plain[d]));
      sum += std::pow(own - q[entry * heads_.head_dim + d], 2.0);
    }
    return sum;
  }

  int32_t nearest_of(uint32_t head, int32_t position, const float* plain, bool results) const {
    int32_t best = -1;
    double least = rules_.distance2, norm2 = 0.0;
    for (int32_t at = position - 1; at >= std::max(0, position - rules_.max_gap); --at) {
      const Entry& entry = entries[index(head, at)];
      if (entry.position != at || cut(at) <= rules_.sink) continue;
      if (results && !std::isfinite(entry.lse)) continue;
      if (results && position - entry.anchor > rules_.max_age) continue;
      const double distance2 = this->distance2(index(head, at), plain);
      if (!(distance2 < least)) continue;
      least = distance2;
      best = at;
    }
    if (best < 0 || std::isinf(rules_.max_error)) return best;
    for (uint32_t d = 0; d < heads_.head_dim; ++d) {
      norm2 += std::pow(double{to_float(to_bf16(plain[d]))}, 2.0);
    }
    const Entry& entry = entries[index(head, best)];
    const double weight = std::sqrt(double{entry.share} * entry.peak);
    const double error = weight * (entry.drift + std::sqrt(least));
    return error > rules_.max_error * std::sqrt(norm2) ? -1 : best;
  }

  void store(const MacRow& row, uint32_t head, int32_t match, const MacSum& captured, double lse) {
    const uint32_t dim = heads_.head_dim;
    const float* plain = row.plain + size_t{head} * dim;
    Entry made{row.position, row.position, 0.0f, 0.0f, 0.0f, 0.0f, 0};
    if (match >= 0) {
      const size_t from = index(head, match);
      made.anchor = entries[from].anchor;
      made.drift = entries[from].drift + static_cast<float>(std::sqrt(distance2(from, plain)));
      made.depth = entries[from].depth + 1;
    }
    const bool leaves = row.reuses && !(match >= 0 && rules_.anchored);
    made.lse =
        leaves ? static_cast<float>(captured.lse()) : -std::numeric_limits<float>::infinity();
    if (row.reuses) made.share = static_cast<float>(std::exp(captured.lse() - lse));
    const Entry& last = entries[index(head, row.position - 1)];
    const bool follows = last.position == row.position - 1 && row.position != starts;
    const double faded = follows ? last.peak * (1.0 - 1.0 / heads_.window) : 0.0;
    made.peak = std::max(made.share, static_cast<float>(faded));
    if (!row.reuses) made.share = made.peak;
    const size_t to = index(head, row.position);
    entries[to] = made;
    for (uint32_t d = 0; d < dim; ++d) {
      q[to * dim + d] = plain[d];
      if (!row.reuses) continue;
      const double mean = captured.total > 0.0 ? captured.sum[d] / captured.total : 0.0;
      out[to * dim + d] = static_cast<float>(mean);
    }
    round_entry(to);
  }

  Round round_query_, round_result_;
};

}  // namespace reprise::test
