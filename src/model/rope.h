// Rotary angles of a model, with its scaling.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"

namespace reprise {

class RopeTable {
 public:
  /// context: the length that will be used; longrope picks its long factors beyond
  /// original_context.
  RopeTable(const RopeConfig& config, uint32_t context);

  size_t pairs() const { return inv_freq_.size(); }
  const std::vector<double>& inv_freq() const { return inv_freq_; }  // [pairs], radians a token
  float attention_factor() const { return attention_factor_; }
  /// cos_sin [pairs][2], times the attention factor; angles computed in double.
  void cos_sin(int32_t position, float* out) const;

 private:
  std::vector<double> inv_freq_;  // [dims/2]
  float attention_factor_ = 1.0f;
};

/// Settles on the factors of longrope for a context that will be used: tables made of config
/// afterwards have the same ones whatever they are told, and rope_context says how far they reach.
void settle_ropes(ModelConfig& config, uint32_t context);

}  // namespace reprise
