// The metric in which a part of a key's dims is quantised.
#pragma once

#include "kernels/cuda/key_codes.h"

namespace reprise::kernels::cuda {

/// Symmetric.
struct PartMetric {
  float xx = 1.0f, xy = 0.0f, yy = 1.0f;

  __device__ float2 times(float2 v) const { return {xx * v.x + xy * v.y, xy * v.x + yy * v.y}; }
};

__device__ inline float dot(float2 a, float2 b) { return a.x * b.x + a.y * b.y; }

/// A centroid as keys are compared with it: the nearest has the largest c M x - c M c / 2.
struct Candidate {
  float2 direction;  // M c
  float half;        // c M c / 2

  __device__ float score(float2 x) const { return dot(direction, x) - half; }
};

__device__ inline Candidate candidate_of(const PartMetric& metric, float2 centroid) {
  const float2 direction = metric.times(centroid);
  return {direction, 0.5f * dot(direction, centroid)};
}

/// The lowest among equals.
__device__ inline uint32_t nearest(const Candidate* candidates, uint32_t count, float2 x) {
  uint32_t best = 0;
  float most = candidates[0].score(x);
  for (uint32_t i = 1; i < count; ++i) {
    const float score = candidates[i].score(x);
    if (score > most) {
      most = score;
      best = i;
    }
  }
  return best;
}

}  // namespace reprise::kernels::cuda
