// The model of MAC-Attention with what only a device has: guards of KV heads, and its counters.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "cuda/mac_ring_testing.h"
#include "cuda/page_testing.h"
#include "methods/mac_model.h"

namespace reprise::kernels::cuda {

struct MacShape {
  uint32_t n_head, n_kv_head, head_dim, window;
  KvType type = KvType::kBF16;
  bool coded = false;  // rings

  uint32_t group() const { return n_head / n_kv_head; }
};

/// See kernels/cuda/mac_guard.cuh.
enum class MacMode { kRest, kTry, kReuse };

/// The entries of one ring, in the order of MacRings.
class MacModel : public test::MacRecurrence<MacRules, MacEntry> {
 public:
  MacModel(const MacShape& shape, const MacRules& rules)
      : MacRecurrence(
            {shape.n_head, shape.n_kv_head, shape.head_dim, shape.window}, rules,
            [coded = shape.coded](std::span<float> x) { round_query(coded, x); },
            shape.coded ? Round([](std::span<float> x) { round_query(true, x); }) : Round()),
        guards(shape.n_kv_head),
        shape_(shape) {}

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
      if (compares) matches = nearest(kv_head, position, plain, reuses);
      if (asks) {
        ++counters.steps;
        counters.keys += static_cast<uint64_t>(position) + 1;
      }
      if (reuses) count(matches, compares);
      decide(matches);
      if (reuses && compares) count_reused(position, matches);
      if (compares && rules_.guarded) tell(position, reuses, matches, kv_head);
      if (asks && listed) guards[kv_head].listed[position % 2] = listed_bytes(position, kv_head);
      const bool stores = has_ring && this->stores(position);
      for (uint32_t head = first; head < first + shape_.group(); ++head) {
        const size_t at = size_t{head} * shape_.head_dim;
        const auto logit = [&](int32_t token) {
          double sum = 0.0;
          for (uint32_t d = 0; d < shape_.head_dim; ++d) {
            sum += double{to_float(Bf16{rotated[at + d]})} * key(kv_head, token, d);
          }
          return sum * scale;
        };
        attend(
            {position, plain, reuses, stores}, head, reuses ? matches[head - first] : -1, logit,
            [&](int32_t token, uint32_t d) { return value(kv_head, token, d); }, result + at,
            lse + head);
      }
      if (!reuses && stores) guards[kv_head].rested = position;
    }
  }

  struct Guard {
    double saved = 0.0, missed = 0.0;
    uint32_t seen = 0, pauses = 0;
    int32_t tried = 0, rested = 0;
    double listed[2] = {};
  };
  std::vector<Guard> guards;          // [n_kv_head]
  std::vector<int32_t> listed_pages;  // [n_kv_head] where keys are listed
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

  void count(const std::vector<int32_t>& matches, bool compares) {
    counters.compared += compares ? 1 : 0;
    for (const int32_t match : matches) counters.head_hits += match >= 0 ? 1 : 0;
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

  MacShape shape_;
};

}  // namespace reprise::kernels::cuda
