// Finds candidates of a row by what lies before them in the order of likelihood: by radix, from the
// row's histogram down to so few candidates that each can be compared with all.
#pragma once

#include "kernels/cuda/sampling_params.cuh"

namespace reprise::kernels::cuda {

namespace sampling {

enum class Measure : uint8_t { kMass, kCount };

struct Found {
  uint32_t token;
  Wide mass;  // of the candidates up to and with this one
};

struct Sums {
  Wide mass;
  uint32_t count;

  __device__ Wide by(Measure measure) const { return measure == Measure::kMass ? mass : count; }
  friend __device__ Sums operator+(const Sums& a, const Sums& b) {
    return {a.mass + b.mass, a.count + b.count};
  }
};

// Candidates that are compared with each other; the likeliest ones, which are kept at hand; bits of
// the order key that a pass tells apart.
constexpr uint32_t kCompared = 512, kNear = 512, kDigitBits = 11;
static_assert(kBins == 1u << kDigitBits);

// A bin and the sums of the bins before it.
struct Place {
  uint32_t bin, count;
  Sums before;
};

struct Shared {
  Wide mass[kBins];  // of each bin, or of all up to it
  uint32_t count[kBins];
  Sums warps[kThreads / 32];
  Wide near[kNear];  // order keys
  Wide keys[kCompared], masses[kCompared];
  uint32_t listed;
  bool is_row, found, last;  // is_row: the sums are those of the row's histogram
  Place place;
  Found result;
};

__device__ inline void clear_bins(Shared& s) {
  for (uint32_t i = threadIdx.x; i < kBins; i += kThreads) {
    s.mass[i] = 0;
    s.count[i] = 0;
  }
  __syncthreads();
}

__device__ inline void add_to_bin(Shared& s, uint32_t bin, Wide mass) {
  atomicAdd(&s.mass[bin], mass);
  atomicAdd(&s.count[bin], 1u);
}

// Of a warp's lanes up to this one.
__device__ inline Sums warp_sums(Sums sums) {
  for (uint32_t step = 1; step < 32; step *= 2) {
    const Sums left = {__shfl_up_sync(~0u, sums.mass, step), __shfl_up_sync(~0u, sums.count, step)};
    if (threadIdx.x % 32 >= step) sums = sums + left;
  }
  return sums;
}

// Bins become the sums of all up to them.
__device__ inline void add_up_bins(Shared& s) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, bin = 2 * threadIdx.x;
  __syncthreads();
  const Sums second = {s.mass[bin + 1], s.count[bin + 1]};
  Sums own = warp_sums(Sums{s.mass[bin], s.count[bin]} + second);
  if (lane == 31) s.warps[warp] = own;
  __syncthreads();
  if (warp == 0) s.warps[lane] = warp_sums(s.warps[lane]);
  __syncthreads();
  if (warp > 0) own = own + s.warps[warp - 1];
  s.mass[bin] = own.mass - second.mass;
  s.count[bin] = own.count - second.count;
  s.mass[bin + 1] = own.mass;
  s.count[bin + 1] = own.count;
  __syncthreads();
}

// The bin with which the sum passes target, if one does; after add_up_bins().
__device__ inline bool find_bin(Shared& s, Measure measure, Wide target, Place* out) {
  __syncthreads();  // all have read what was found before
  if (threadIdx.x == 0) s.found = false;
  __syncthreads();
  Sums before = {};
  if (threadIdx.x > 0) before = {s.mass[2 * threadIdx.x - 1], s.count[2 * threadIdx.x - 1]};
  for (uint32_t bin = 2 * threadIdx.x; bin < 2 * threadIdx.x + 2; ++bin) {
    const Sums with = {s.mass[bin], s.count[bin]};
    if (before.by(measure) <= target && target < with.by(measure)) {
      s.found = true;
      s.place = {bin, with.count - before.count, before};
    }
    before = with;
  }
  __syncthreads();
  if (s.found) *out = s.place;
  return s.found;
}

// What the last block of a row chooses from. All threads of the block call every member.
class Candidates {
 public:
  // Keeps the likeliest at hand if several will be found.
  __device__ Candidates(Shared& s, const Params& p, uint32_t row, const Likelihood& likelihood,
                        bool several)
      : s_(s), p_(p), row_(row), likelihood_(likelihood) {
    load_histogram();
    mass_ = s.mass[kBins - 1];
    if (several) keep_near();
  }

  __device__ Wide mass() const { return mass_; }

  // The first candidate with which the sum of those up to it passes target, if one does.
  __device__ __noinline__ bool find(Measure measure, Wide target, Found* out) {
    if (!s_.is_row) load_histogram();
    Place place;
    if (!find_bin(s_, measure, target, &place)) return false;
    Range range{place.bin};
    Sums before = place.before;
    while (place.count > kCompared) {
      narrow(range, measure, target - before.by(measure), &place);
      before = before + place.before;
    }
    *out = compare_all(range, before, measure, target);
    return true;
  }

 private:
  // Candidates of one bin of the row's histogram whose order keys begin with prefix.
  struct Range {
    uint32_t bin, shift = 64;
    Wide prefix = 0;
  };

  __device__ void load_histogram() {
    const Histogram& histogram = p_.histograms[row_];
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < kBins; i += kThreads) {
      s_.mass[i] = __ldcg(&histogram.mass[i]);
      s_.count[i] = __ldcg(&histogram.count[i]);
    }
    s_.is_row = true;
    add_up_bins(s_);
  }

  // The last bin is never near: there may be logits in it that are no candidates.
  __device__ void keep_near() {
    Place place;
    near_end_ = find_bin(s_, Measure::kCount, kNear, &place) ? place.bin : kBins - 1;
    if (threadIdx.x == 0) s_.listed = 0;
    __syncthreads();
    each_between(p_, row_, likelihood_.lowest(near_end_), INFINITY,
                 [&](float logit, uint32_t token) {
                   if (!likelihood_.in_bins(logit, 0, near_end_)) return;
                   s_.near[atomicAdd(&s_.listed, 1u)] = order_key(logit, token);
                 });
    __syncthreads();
    near_ = s_.listed;
  }

  // Calls f(order key, mass).
  template <class F>
  __device__ void each(const Range& range, F&& f) const {
    const auto visit = [&](Wide key, float logit) {
      if (!likelihood_.in_bins(logit, range.bin, range.bin + 1)) return;
      const Wide mass = likelihood_.mass_of(logit);
      if (mass > 0 && (range.shift == 64 || key >> range.shift == range.prefix)) f(key, mass);
    };
    if (range.bin < near_end_) {
      for (uint32_t i = threadIdx.x; i < near_; i += kThreads) {
        visit(s_.near[i], logit_of(s_.near[i]));
      }
    } else {
      each_between(p_, row_, likelihood_.lowest(range.bin + 1), likelihood_.highest(range.bin),
                   [&](float logit, uint32_t token) { visit(order_key(logit, token), logit); });
    }
  }

  // To the digit with which the sum passes target.
  __device__ void narrow(Range& range, Measure measure, Wide target, Place* place) {
    const uint32_t bits = min(kDigitBits, range.shift), shift = range.shift - bits;
    s_.is_row = false;
    clear_bins(s_);
    each(range, [&](Wide key, Wide mass) {
      add_to_bin(s_, static_cast<uint32_t>(key >> shift) & ((1u << bits) - 1), mass);
    });
    add_up_bins(s_);
    find_bin(s_, measure, target, place);
    range.prefix = (range.shift == 64 ? 0 : range.prefix << bits) | place->bin;
    range.shift = shift;
  }

  // The candidate of the range, of at most kCompared, with which the sum passes target.
  __device__ Found compare_all(const Range& range, const Sums& before, Measure measure,
                               Wide target) {
    if (threadIdx.x == 0) s_.listed = 0;
    __syncthreads();
    each(range, [&](Wide key, Wide mass) {
      const uint32_t slot = atomicAdd(&s_.listed, 1u);
      s_.keys[slot] = key;
      s_.masses[slot] = mass;
    });
    __syncthreads();
    if (threadIdx.x < s_.listed) {
      const Wide key = s_.keys[threadIdx.x];
      Sums sums = before;
      for (uint32_t i = 0; i < s_.listed; ++i) {
        if (s_.keys[i] < key) sums = sums + Sums{s_.masses[i], 1};
      }
      const Sums with = sums + Sums{s_.masses[threadIdx.x], 1};
      if (sums.by(measure) <= target && target < with.by(measure)) {
        s_.result = {static_cast<uint32_t>(key), with.mass};
      }
    }
    __syncthreads();
    return s_.result;
  }

  Shared& s_;
  const Params& p_;
  uint32_t row_;
  const Likelihood& likelihood_;
  uint32_t near_ = 0, near_end_ = 0;  // candidates of bins before near_end_
  Wide mass_ = 0;
};

}  // namespace sampling

}  // namespace reprise::kernels::cuda
