// The k-th largest score is found by bisection of its bits: counting what is above a middle takes a
// comparison and an addition for a vector of scores, and a middle that just k are above ends the
// search. Scores are taken 16 at a time. Lanes, of an instruction set, says how:
//   fill_orders   integers that are ordered like scores, NaN as kNan, and kNan behind the last
//   count_above   how many of them exceed one
//   above, equal  bit t: the t-th of 16 exceeds, or is, one
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/largest.h"

namespace reprise::kernels {
namespace {  // each instruction set compiles its own

constexpr size_t kLanes = 16;
constexpr int32_t kNan = INT32_MIN;  // no score has that order

struct Bounds {
  int32_t low, high;
};

/// What is chosen: every order above `edge`, and so many of those that equal it.
struct Border {
  int32_t edge;
  size_t equal;
};

inline unsigned count_of(unsigned lanes) {
  return static_cast<unsigned>(__builtin_popcount(lanes));
}

// At least k are low or more, and fewer than k, `beyond`, exceed high.
template <class Lanes>
class BorderSearch {
 public:
  BorderSearch(const int32_t* orders, size_t n, size_t k, Bounds bounds)
      : orders_(orders), n_(n), k_(k), low_(bounds.low), high_(bounds.high) {}

  /// In ever longer steps from a place on, until one has gone beyond.
  void begin_at(int64_t near) {
    bool up = false;
    for (int64_t step = kFirstStep, at = near; inside(at); step *= 8) {
      const bool more = probe(at);
      if (step > kFirstStep && more != up) return;
      up = more;
      at += more ? step : -step;
    }
  }
  Border find() {
    while (low_ < high_) probe(low_ + (high_ - low_ + 1) / 2);
    return found_ ? Border{static_cast<int32_t>(low_ - 1), 0}
                  : Border{static_cast<int32_t>(low_), k_ - beyond_};
  }

 private:
  static constexpr int64_t kFirstStep = 1 << 18;  // a fiftieth of most scores

  bool inside(int64_t at) const { return at > low_ && at <= high_; }
  /// Whether k or more reach a middle, which becomes a bound.
  bool probe(int64_t middle) {
    const size_t count = Lanes::count_above(orders_, n_, static_cast<int32_t>(middle - 1));
    if (count == k_) {
      found_ = true;
      low_ = high_ = middle;
    } else if (count > k_) {
      low_ = middle;
    } else {
      high_ = middle - 1;
      beyond_ = count;
    }
    return count >= k_;
  }

  const int32_t* orders_;
  size_t n_, k_, beyond_ = 0;
  int64_t low_, high_;
  bool found_ = false;  // just k reach low
};

/// The lowest `count` of the set lanes.
inline unsigned lowest(unsigned lanes, size_t count) {
  for (; count_of(lanes) > count;) lanes &= ~(1u << (31 - __builtin_clz(lanes)));
  return lanes;
}

/// body(i, chosen lanes) for all scores. What lies behind them is never chosen: it equals the edge
/// only where that is kNan, and then comes after as many as there are to choose.
template <class Lanes, class Body>
inline void for_chosen(const int32_t* orders, size_t n, Border border, Body body) {
  for (size_t i = 0; i < n; i += kLanes) {
    unsigned chosen = Lanes::above(orders + i, border.edge);
    if (border.equal > 0) {
      const unsigned level = lowest(Lanes::equal(orders + i, border.edge), border.equal);
      border.equal -= count_of(level);
      chosen |= level;
    }
    body(i, chosen);
  }
}

template <class Lanes, class Body>
inline void for_largest(const float* scores, size_t n, size_t k, int32_t* orders, Body body) {
  if (k == 0) return;
  const Bounds bounds = Lanes::fill_orders(scores, n, orders);
  for_chosen<Lanes>(orders, n, BorderSearch<Lanes>(orders, n, k, bounds).find(), body);
}

template <class Lanes>
inline void mark_largest_of(const float* scores, size_t n, size_t k, int32_t* orders, int32_t& near,
                            uint16_t* marks) {
  static_assert(kMarks == kLanes);
  const Bounds bounds = Lanes::fill_orders(scores, n, orders);
  Border border = {bounds.high, 0};
  if (k > 0) {
    BorderSearch<Lanes> search(orders, n, k, bounds);
    search.begin_at(near);
    border = search.find();
    near = border.edge;
  }
  for_chosen<Lanes>(orders, n, border, [&](size_t i, unsigned chosen) {
    marks[i / kLanes] = static_cast<uint16_t>(chosen);
  });
}

}  // namespace
}  // namespace reprise::kernels
