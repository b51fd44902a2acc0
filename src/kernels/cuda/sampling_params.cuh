// What every part of the sampling kernels knows. Candidates are ordered by logit, largest first,
// and then by id: by a 64-bit order key, smallest first.
#pragma once

#include <cmath>

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/row_math.cuh"
#include "kernels/cuda/sampling.h"

namespace reprise::kernels::cuda {

namespace sampling {

using Wide = unsigned long long;

// A block reads a strip at a time. Bins of a histogram are two of each thread.
constexpr uint32_t kThreads = 1024, kStrip = 4 * kThreads, kBins = 2 * kThreads;
constexpr uint32_t kMaxSlice = 8 * kStrip;
// Probabilities are in units of 2^-43 of the largest: sums of 2^20 fit in 64 bits.
constexpr float kUnits = 0x1p43f;
constexpr float kRange = 29.8055f;  // ln 2^43
constexpr uint32_t kMaxVocab = 1u << 20;

// Of a slice.
struct Partial {
  Wide first;    // complement of the order key of its first candidate; 0: all are NaN
  float lowest;  // logit
};

// Candidates of a row by their distance from the largest logit.
struct Histogram {
  Wide mass[kBins];
  Wide likely;  // mass of those that min_p keeps
  uint32_t count[kBins];
  uint32_t arrived;  // blocks that have added theirs
};

struct Params {
  SampleArgs args;
  uint32_t slice = 0, splits = 0;   // of a block, whole strips; slices of a row
  Histogram* histograms = nullptr;  // [batch]
  Partial* partials = nullptr;      // [batch, splits]

  __device__ float* logits(uint32_t row) const { return args.logits + size_t{row} * args.vocab; }
  // Of the slice that begins at first.
  __device__ uint32_t end(uint32_t first) const { return min(args.vocab, first + slice); }
};

// Smaller is likelier; 0 and -0 are equal. Not of NaN.
__device__ inline Wide order_key(float logit, uint32_t token) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);
  const uint32_t rising = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<Wide>(~rising) << 32 | token;
}

__device__ inline float logit_of(Wide key) {
  const auto rising = ~static_cast<uint32_t>(key >> 32);
  return __uint_as_float((rising & 0x80000000u) != 0 ? rising & 0x7fffffffu : ~rising);
}

// Calls f(logits, token) for every four logits from begin to end, the end of a row or of a slice;
// NaN past end. All threads of a block.
template <bool aligned, class F>
__device__ void each_four(const float* logits, uint32_t begin, uint32_t end, F&& f) {
  constexpr uint32_t kAtOnce = 2;  // loads in flight
  for (uint32_t start = begin + threadIdx.x * 4; start < end; start += kAtOnce * kStrip) {
    float4 v[kAtOnce];
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      v[i] = load_four<aligned>(logits, start + i * kStrip, end);
    }
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const uint32_t token = start + i * kStrip;
      if (token >= end) break;
      if constexpr (!aligned) {
        if (token + 1 >= end) v[i].y = NAN;
        if (token + 2 >= end) v[i].z = NAN;
        if (token + 3 >= end) v[i].w = NAN;
      }
      f(v[i], token);
    }
  }
}

// Calls f(logit, token) for all logits from begin to end and maybe NaN past end.
template <class F>
__device__ void each_logit(const Params& p, uint32_t row, uint32_t begin, uint32_t end, F&& f) {
  const auto four = [&](const float4& v, uint32_t token) {
    f(v.x, token);
    f(v.y, token + 1);
    f(v.z, token + 2);
    f(v.w, token + 3);
  };
  if (p.args.vocab % 4 == 0) {
    each_four<true>(p.logits(row), begin, end, four);
  } else {
    each_four<false>(p.logits(row), begin, end, four);
  }
}

// The same for those of a row that are not outside [low, high], NaN among them; for ranges of few.
template <class F>
__device__ void each_between(const Params& p, uint32_t row, float low, float high, F&& f) {
  const auto four = [&](const float4& v, uint32_t token) {
    const auto outside = [&](float logit) { return logit < low || logit > high; };
    if (outside(v.x) && outside(v.y) && outside(v.z) && outside(v.w)) return;
    const float logits[4] = {v.x, v.y, v.z, v.w};
    for (uint32_t i = 0; i < 4; ++i) {
      if (!outside(logits[i])) f(logits[i], token + i);
    }
  };
  if (p.args.vocab % 4 == 0) {
    each_four<true>(p.logits(row), 0, p.args.vocab, four);
  } else {
    each_four<false>(p.logits(row), 0, p.args.vocab, four);
  }
}

// How likely the candidates of a row are, and their bins.
class Likelihood {
 public:
  __device__ Likelihood(float top, float lowest, float temp) : top_(top), temp_(temp) {
    const float range = fminf(top - lowest, kRange * temp);
    scale_ = range > 0.0f ? static_cast<float>(kBins) / range : 0.0f;
  }
  // 1 for the largest logit.
  __device__ float probability(float logit) const {
    return logit == top_ ? 1.0f : expf((logit - top_) / temp_);
  }
  // Those whose mass is 0, NaN among them, are no candidates.
  __device__ static Wide mass(float probability) {
    return probability * kUnits >= 1.0f ? __float2ull_rz(probability * kUnits) : 0;
  }
  __device__ Wide mass_of(float logit) const { return mass(probability(logit)); }
  // Falls with the logit. Not of NaN.
  __device__ uint32_t bin(float logit) const {
    return min(__float2uint_rz(distance(logit)), kBins - 1);
  }
  // Whether the logit, which may be NaN, is in bins [first, end).
  __device__ bool in_bins(float logit, uint32_t first, uint32_t end) const {
    const float bins = distance(logit);
    return bins >= static_cast<float>(first) && (end == kBins || bins < static_cast<float>(end));
  }
  // Whatever is in bins [first, end) is not outside [lowest, highest].
  __device__ float lowest(uint32_t end) const {
    return end == kBins ? -INFINITY : bound(end, 1.0f);
  }
  __device__ float highest(uint32_t first) const { return bound(first, -1.0f); }

 private:
  // In bins.
  __device__ float distance(float logit) const {
    return logit == top_ ? 0.0f : (top_ - logit) * scale_;
  }

  // The logit at a distance, further away or nearer by more than rounding may be.
  __device__ float bound(uint32_t bins, float further) const {
    const float away = static_cast<float>(bins) / scale_;
    return top_ - away - further * 0x1p-20f * (away + fabsf(top_));
  }

  float top_, temp_, scale_;
};

}  // namespace sampling

}  // namespace reprise::kernels::cuda
