// Compares queries with those of recent rows. Slots of the rings of all pairs are laid end to end,
// and every block takes an equal share; four lanes take an entry of one query head. Distances are
// sums of squared differences in float: nothing is to be checked again.
#pragma once

#include <cmath>

#include "kernels/cuda/mac_lists.cuh"
#include "kernels/cuda/mac_ring.cuh"

namespace reprise::kernels::cuda {

namespace mac {

// Sums over the four lanes of a quad.
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// The lane's chunks of a row's query, as of StoredQuery.
template <int D>
struct Query {
  float2 values[D / 32][4];  // rounded to bf16

  __device__ void load(const float* row) {
#pragma unroll
    for (int i = 0; i < D / 32; ++i) {
      const float* from = row + (threadIdx.x % 4 + 4 * i) * 8;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float4 four = reinterpret_cast<const float4*>(from)[half];
        values[i][2 * half] = widen(pack<__nv_bfloat16>(four.x, four.y));
        values[i][2 * half + 1] = widen(pack<__nv_bfloat16>(four.z, four.w));
      }
    }
  }
  template <bool coded>
  __device__ float distance2(const StoredQuery<D, coded>& entry) const {
    float sums[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < D / 32; ++i) {
      float2 stored[4];
      entry.values(i, stored);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float2 a = values[i][k], b = stored[k];
        const float x = a.x - b.x, y = a.y - b.y;
        sums[0] = fmaf(x, x, sums[0]);
        sums[1] = fmaf(y, y, sums[1]);
      }
    }
    return quad_sum(sums[0] + sums[1]);
  }
  __device__ float norm2() const { return distance2(StoredQuery<D, false>{}); }
};

// What may match at all: the first words of an entry, up to its share. results: that it has one.
__device__ inline bool is_valid(const Params& p, const int4& entry, int32_t position,
                                bool results) {
  const int32_t at = entry.x, anchor = entry.y;
  const float lse = __int_as_float(entry.z);
  return at >= max(position - p.rules.max_gap, p.first_position()) && at < position &&
         (!results || (anchor >= position - min(position, p.rules.max_age) && isfinite(lse)));
}

struct SearchShared {
  unsigned long long nearest[kMaxGroup];
};

// A block's share of the comparisons.
template <typename S>
class Search {
  static constexpr int D = S::kHeadDim;
  static constexpr uint32_t kAhead = (D > 128 ? 1 : 2) + (S::kCoded ? 1 : 0);  // on the way

 public:
  __device__ Search(const Params& p, const Lists& lists, SearchShared& shared, bool results)
      : p_(p),
        lists_(lists),
        shared_(shared),
        results_(results),
        in_unit_(p.by_group.quotient(threadIdx.x / 4)),
        head_(threadIdx.x / 4 - in_unit_ * p.group),
        unit_(p.searches.begin(blockIdx.x)),
        end_(p.searches.begin(blockIdx.x + 1)) {
    if (threadIdx.x < kMaxGroup) shared_.nearest[threadIdx.x] = kNothing;
#pragma unroll
    for (uint32_t i = 0; i < kAhead; ++i) load(i, unit_ + i);
  }

  // Before queries are there only what the constructor did may be done. All threads.
  __device__ void run(uint32_t launch) {
    __syncthreads();
    while (unit_ < end_) {
      const uint32_t pair = p_.by_units.quotient(unit_);
      const uint32_t pair_end = min(end_, (pair + 1) * p_.units);
      compare(pair, pair_end);
      publish(pair, launch);
      unit_ = pair_end;
    }
  }

 private:
  __device__ void load(uint32_t to, uint32_t unit) {
    const uint32_t pair = p_.by_units.quotient(unit);
    const uint32_t slot = (unit - pair * p_.units) * p_.slots + in_unit_;
    known_[to] = {-1, -1, 0, 0};
    drift_peak_[to] = {0.0f, 0.0f};
    if (unit >= end_ || in_unit_ >= p_.slots || slot >= p_.ring.window) return;
    if (lists_.compares[pair] == 0) return;
    const size_t entry = (lists_.slot(p_, pair, 0) + slot) * p_.group + head_;
    stored_[to].load(p_.ring, entry);
    known_[to] = __ldcg(reinterpret_cast<const int4*>(p_.ring.entries + entry));
    drift_peak_[to] = __ldcg(reinterpret_cast<const float2*>(&p_.ring.entries[entry].drift));
  }

  __device__ void compare(uint32_t pair, uint32_t end) {
    const int32_t position = lists_.row(p_, pair).position;
    Query<D> q;
    q.load(p_.q_plain + (size_t{pair} * p_.group + head_) * D);
    const float max_error2 = p_.rules.max_error * p_.rules.max_error * q.norm2();
    uint64_t nearest = kNothing;
    uint32_t turn = turn_;
    for (uint32_t unit = unit_; unit < end; ++unit) {
#pragma unroll
      for (uint32_t i = 0; i < kAhead; ++i) {
        if (i != turn) continue;
        const float distance2 = q.distance2(stored_[i]);
        if (distance2 < p_.rules.distance2 && is_valid(p_, known_[i], position, results_)) {
          const float moved = drift_peak_[i].x + sqrtf(distance2);
          const float weight2 = __int_as_float(known_[i].w) * drift_peak_[i].y;
          const bool risky = weight2 * moved * moved > max_error2;
          nearest = min(nearest, candidate(distance2, position - known_[i].x, risky));
        }
        load(i, unit + kAhead);
      }
      turn = (turn + 1) % kAhead;
    }
    turn_ = turn;
    if (nearest != kNothing && threadIdx.x % 4 == 0) {
      atomicMin(&shared_.nearest[head_], static_cast<unsigned long long>(nearest));
    }
  }

  __device__ void publish(uint32_t pair, uint32_t launch) {
    __syncthreads();
    if (threadIdx.x < p_.group) {
      const uint64_t nearest = shared_.nearest[threadIdx.x];
      send(p_.candidates + (size_t{pair} + blockIdx.x) * p_.group + threadIdx.x, launch,
           {static_cast<uint32_t>(nearest), static_cast<uint32_t>(nearest >> 32)});
      shared_.nearest[threadIdx.x] = kNothing;
    }
    __syncthreads();
  }

  const Params& p_;
  const Lists& lists_;
  SearchShared& shared_;
  bool results_;
  uint32_t in_unit_, head_;  // slot and head of the lane's entries
  uint32_t unit_, end_, turn_ = 0;
  StoredQuery<D, S::kCoded> stored_[kAhead] = {};
  int4 known_[kAhead];  // see is_valid()
  float2 drift_peak_[kAhead];
};

}  // namespace mac

}  // namespace reprise::kernels::cuda
