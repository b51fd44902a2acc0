// When comparing pays.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "base/state_bytes.h"

namespace reprise {

/// Weighs, for one KV head, what reuse saves against what comparing costs, both in bytes of KV that
/// attention could read meanwhile.
class MacGuard {
 public:
  bool has_seen() const { return saved_ >= 0.0; }
  bool pays() const { return !has_seen() || saved_ > kMargin * spent_; }
  /// Bytes a step, of a head for which comparing pays.
  double gain() const { return has_seen() && pays() ? saved_ - spent_ : 0.0; }
  /// Whether a step in which the head rests should compare for the guard: every 32nd, and those
  /// after one that would have paid, until the average says so too.
  bool tries() { return ++idle_ % kRetry == 0 || (surprised_ != 0 && !pays()); }
  /// What a step saved and spent, or would have; the first one stands for the past. Tries, and what
  /// a prompt's last rows would have saved, count as so many steps: what follows soon outweighs
  /// them.
  void saw(double saved, double spent, bool rests) {
    spent_ = spent;
    saved = std::max(0.0, saved);
    surprised_ = saved > kMargin * spent ? 1 : 0;
    if (!has_seen()) saved_ = saved;
    seen_ = rests ? kTried : std::min<uint16_t>(seen_ + 1, kMostSeen);
    saved_ += (saved - saved_) / seen_;
  }

  /// Of what is saved over what is spent: both are estimates.
  static constexpr double kMargin = 1.1;

 private:
  static constexpr uint32_t kRetry = 32;
  static constexpr uint16_t kTried = 8, kMostSeen = 64;

  double saved_ = -1.0;  // bytes a step, a moving average
  double spent_ = 0.0;
  uint32_t idle_ = 0;
  uint16_t surprised_ = 0, seen_ = 0;  // seen_: steps in saved_
};

/// The guards of a layer's KV heads. Heads rest alone; the layer rests when what the others gain
/// does not pay for what it costs to divide a step's keys and to store its results.
///
/// Time decides, but it is modelled, so that an answer does not depend on the machine's load. Bytes
/// alone mislead: dividing and storing read little and take long. Costs are of SmolLM2-135M on two
/// cores of a Zen 4, where attention waits for memory; see bench/results/2026-11-24-cpu-mac.md.
class MacLayerGuard {
 public:
  /// Of comparing a byte of queries, in bytes of KV.
  static constexpr double kComparing = 1.2;

  MacLayerGuard() = default;
  /// width: n_head head_dim
  MacLayerGuard(size_t n_kv_head, size_t width)
      : heads_(n_kv_head), dividing_(kDividing * static_cast<double>(width)) {}

  MacGuard& head(size_t kv_head) { return heads_[kv_head]; }
  bool has_seen() const {
    return std::any_of(heads_.begin(), heads_.end(),
                       [](const MacGuard& head) { return head.has_seen(); });
  }
  /// Whether some head is to compare and reuse.
  bool pays() const {
    const double gain =
        std::accumulate(heads_.begin(), heads_.end(), 0.0,
                        [](double sum, const MacGuard& head) { return sum + head.gain(); });
    return !has_seen() || gain > dividing_;
  }

  /// What heads that spend so much must save together at least.
  double least(double spent) const { return MacGuard::kMargin * spent + dividing_; }

  void save(StateWriter& out) const { out.array(heads_.data(), heads_.size()); }
  void restore(StateReader& in) { in.array(heads_, heads_.size()); }

 private:
  static constexpr double kDividing = 1024.0;  // bytes of KV for each float of a step's result

  std::vector<MacGuard> heads_;
  double dividing_ = 0.0;
};

}  // namespace reprise
