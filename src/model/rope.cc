#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace reprise {
namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

// Llama 3.1: long wavelengths are stretched by factor, short ones kept, those between blended.
double llama3_frequency(const RopeConfig& config, double frequency) {
  const double wavelength = kTwoPi / frequency;
  const double original = config.original_context;
  const double low = config.low_freq_factor, high = config.high_freq_factor;
  if (wavelength < original / high) return frequency;
  if (wavelength > original / low) return frequency / config.factor;
  const double blend = (original / wavelength - low) / (high - low);
  return (1 - blend) * frequency / config.factor + blend * frequency;
}

// YaRN: the share of pair i that keeps its frequency (Peng et al. 2023, section 3.2).
class YarnRamp {
 public:
  explicit YarnRamp(const RopeConfig& config) : share_(config.yarn_extrapolation) {
    low_ = dimension(config, config.beta_fast);
    high_ = dimension(config, config.beta_slow);
    if (config.yarn_truncate) {
      low_ = std::floor(low_);
      high_ = std::ceil(high_);
    }
    low_ = std::max(low_, 0.0);
    high_ = std::min(high_, static_cast<double>(config.dims) - 1);
    if (low_ == high_) high_ += 0.001;
  }
  double kept(size_t pair) const {
    return share_ * (1 - std::clamp((static_cast<double>(pair) - low_) / (high_ - low_), 0.0, 1.0));
  }

 private:
  // The dimension whose pair turns so many times over the original context.
  static double dimension(const RopeConfig& config, double turns) {
    return config.dims * std::log(config.original_context / (turns * kTwoPi)) /
           (2 * std::log(static_cast<double>(config.theta)));
  }
  double share_, low_, high_;
};

const std::vector<float>& factors(const RopeConfig& config, uint32_t context) {
  const bool beyond = config.original_context != 0 && context > config.original_context;
  return beyond ? config.long_factors : config.short_factors;
}

}  // namespace

void settle_ropes(ModelConfig& config, uint32_t context) {
  config.rope_context = config.context;
  for (RopeConfig* rope : {&config.rope, &config.local_rope}) {
    if (rope->scaling != RopeScaling::kLongRope) continue;
    const std::vector<float> chosen = factors(*rope, context);
    rope->short_factors = rope->long_factors = chosen;
    if (context <= rope->original_context) {
      config.rope_context = std::min(config.rope_context, rope->original_context);
    }
  }
}

RopeTable::RopeTable(const RopeConfig& config, uint32_t context)
    : inv_freq_(config.dims / 2), attention_factor_(config.attention_factor) {
  const std::vector<float>& divisors = factors(config, context);
  const YarnRamp ramp(config);
  for (size_t i = 0; i < inv_freq_.size(); ++i) {
    double frequency =
        std::pow(static_cast<double>(config.theta), -2.0 * static_cast<double>(i) / config.dims);
    if (!divisors.empty()) frequency /= divisors[i];
    switch (config.scaling) {
      case RopeScaling::kNone:
      case RopeScaling::kLongRope:
        break;
      case RopeScaling::kLinear:
        frequency /= config.factor;
        break;
      case RopeScaling::kLlama3:
        frequency = llama3_frequency(config, frequency);
        break;
      case RopeScaling::kYarn:
        frequency *= ramp.kept(i) + (1 - ramp.kept(i)) / config.factor;
        break;
    }
    inv_freq_[i] = frequency;
  }
}

void RopeTable::cos_sin(int32_t position, float* out) const {
  for (size_t i = 0; i < inv_freq_.size(); ++i) {
    const double angle = position * inv_freq_[i];
    out[2 * i] = static_cast<float>(std::cos(angle) * attention_factor_);
    out[2 * i + 1] = static_cast<float>(std::sin(angle) * attention_factor_);
  }
}

}  // namespace reprise
