// When comparing pays.
#pragma once

#include <cstdint>

#include "base/state_bytes.h"

namespace reprise {

/// Weighs, for one layer, the KV bytes that reuse saves against the bytes that comparing reads. It
/// looks at bytes, not at time, so that an answer does not depend on the machine's load.
class MacGuard {
 public:
  bool pays() const { return pays_; }
  /// Whether a step in which it does not pay should compare for the guard alone: every 32nd.
  bool tries() { return ++idle_ % kRetry == 0; }
  bool has_seen() const { return mean_ >= 0.0; }
  /// What a step saved and spent, or would have; the first one stands for the past.
  void saw(double saved, double spent) {
    if (!has_seen()) mean_ = saved;
    mean_ += (saved - mean_) * (pays_ ? kWeight : kRetryWeight);
    pays_ = mean_ > kMargin * spent;
  }

  void save(StateWriter& out) const {
    out.value(mean_);
    out.value(idle_);
    out.value(static_cast<uint8_t>(pays_));
  }
  void restore(StateReader& in) {
    mean_ = in.value<double>();
    idle_ = in.value<uint32_t>();
    pays_ = in.value<uint8_t>() != 0;
  }

 private:
  static constexpr uint32_t kRetry = 32;
  static constexpr double kWeight = 1.0 / 64, kRetryWeight = 1.0 / 8;
  static constexpr double kMargin = 1.25;  // what saves less is not worth its fixed costs

  double mean_ = -1.0;  // bytes saved a step, a moving average
  bool pays_ = true;
  uint32_t idle_ = 0;
};

}  // namespace reprise
