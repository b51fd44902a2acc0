// What a far key must score to be read: a share of the weight of the keys that are always read.
#pragma once

#include <vector>

#include "attention/policy.h"
#include "model/config.h"

namespace reprise {

/// Cosines and sines of positions from 1 - kPageTokens up to count, [..][pairs][2].
struct NearAngles {
  size_t pairs = 0;
  std::vector<float> rows;

  NearAngles() = default;
  NearAngles(const RopeConfig& rope, uint32_t context, int32_t count);
};

/// What is always read: [0, first) and [last, the row's own], as if nothing lay between.
struct NearKeys {
  int32_t first, last;
};

/// [n_head] The q k of the one row's heads, unscaled, at which exp(scale q k) is the share of the
/// sum over near keys, each where it stands among them.
std::vector<float> least_scores(const QueryRows& rows, NearKeys near, float share,
                                const NearAngles& angles, const ModelConfig& config);

}  // namespace reprise
