// The scan for the best keys: one warp of a block copies K tiles, newest first, into a ring of
// stages; every other one has some of the queries in registers and takes some of each stage's
// pages. Only scores that reach what a list's last word asks for leave the tensor cores' registers.
#pragma once

#include "kernels/cuda/top_keys_lists.cuh"
#include "kernels/cuda/top_keys_stages.cuh"

namespace reprise::kernels::cuda {

namespace top {

__device__ inline void raise_floor(const Lists& lists, uint32_t query, uint32_t floor) {
  atomicMax(lists.floors + query, floor);
  atomicMax(lists.all_floors + query, floor);
}

// As many groups of keys as k have one that reaches the k-th largest of their tops. All lanes of a
// warp call.
__device__ inline void raise_by_tops(const Lists& lists, uint32_t query, uint32_t k) {
  const volatile uint32_t* tops = lists.tops + query * lists.groups;
  uint32_t own = 0;
  for (uint32_t group = threadIdx.x % 32; group < lists.groups; group += 32) {
    own = max(own, tops[group]);
  }
  const uint32_t floor = kth_of_lanes(k, own);
  if (threadIdx.x % 32 == 0 && floor > lists.floors[query]) raise_floor(lists, query, floor);
}

// Dims dim and dim + 1 of a query, turned, and rounded to bf16 as all queries elsewhere are, even
// where operands are f16.
__device__ inline float2 query_pair(const Params& p, const float* query, uint32_t dim) {
  float2 two = *reinterpret_cast<const float2*>(query + dim);
  if (p.a.angles != nullptr && dim / 2 < p.a.pairs) {
    const float2 by = reinterpret_cast<const float2*>(p.a.angles)[dim / 2];
    two = {two.x * by.x - two.y * by.y, two.x * by.y + two.y * by.x};
  }
  return unpack<__nv_bfloat16>(pack<__nv_bfloat16>(two.x, two.y));
}

// One warp's queries and their lists.
template <typename S>
class Scanner {
 public:
  using T = Operand<S::kType>;
  static constexpr int D = S::kHeadDim, kSteps = S::kSteps, NT = S::kTiles;

  // warp: of those that compute; first: query of the block's first.
  __device__ Scanner(const Params& p, const Lists& lists, uint32_t warp, uint32_t sequence,
                     uint32_t kv_head, uint32_t first)
      : k_(p.a.k),
        lists_(lists),
        first_(warp % p.query_warps * S::kQueries),
        list_(warp / p.query_warps * lists.queries + first_),
        group_(warp / p.query_warps * S::kGroups) {
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      load_queries(p, n, sequence, kv_head, first + first_ + n * 8 + lane() / 4);
#pragma unroll
      for (uint32_t side = 0; side < 2; ++side) {
        const uint32_t query = first + first_ + n * 8 + lane() % 4 * 2 + side;
        least_[n][side] = query < p.queries ? -FLT_MAX : INFINITY;
      }
    }
  }

  // What other warps found of the same queries.
  __device__ void take_floors() {
    const volatile uint32_t* floors = lists_.floors + first_;
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
      for (uint32_t side = 0; side < 2; ++side) {
        const float floor = ordered_float(floors[n * 8 + lane() % 4 * 2 + side]);
        least_[n][side] = fmaxf(least_[n][side], floor);  // NaN where there is none
      }
    }
  }

  // first: key of token 0; only keys of the middle count.
  __device__ void scan(const unsigned char* tile, int32_t first, KeyRange32 middle) {
    float x[NT][4] = {};
    multiply_page(tile, first, middle, x);
    if constexpr (S::kGroups > 0) {
      if (lists_.groups > 0) keep_tops(x[0]);
    }
    uint32_t reached = 0;
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      const bool any =
          fmaxf(x[n][0], x[n][2]) >= least_[n][0] || fmaxf(x[n][1], x[n][3]) >= least_[n][1];
      reached |= any ? 1u << n : 0u;
    }
    if (__any_sync(~0u, reached != 0)) take(reached, first, x);
  }

  // The largest scores of each of the lane's queries and halves of pages.
  struct Look {
    float top[NT][4];
  };
  __device__ static void begin(Look& look) {
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      for (float& top : look.top[n]) top = -FLT_MAX;
    }
  }
  __device__ void look_at(const unsigned char* tile, int32_t first, KeyRange32 middle,
                          Look& look) const {
    float x[NT][4] = {};
    multiply_page(tile, first, middle, x);
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) look.top[n][i] = fmaxf(look.top[n][i], x[n][i]);
    }
  }
  // What k keys were seen to reach is what others must reach. scanning: warps, all of which call.
  __device__ void end(const Look& look, [[maybe_unused]] uint32_t scanning) {
    if constexpr (S::kGroups > 0) {
      keep_tops(look.top[0]);
      wait_named(Stages<S>::kUnused, scanning * 32);
      for (uint32_t i = threadIdx.x / 32; i < lists_.known; i += scanning) {
        raise_by_tops(lists_, i, k_);
      }
      wait_named(Stages<S>::kUnused, scanning * 32);
    } else {
      raise_by_look(look);
    }
  }

 private:
  __device__ static uint32_t lane() { return threadIdx.x % 32; }

  __device__ void raise_by_look(const Look& look) {
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
      for (uint32_t side = 0; side < 2; ++side) {
        const float floor = kth_of_look(look.top[n][side], look.top[n][side + 2]);
        const uint32_t query = first_ + n * 8 + lane() % 4 * 2 + side;
        if (lane() < 4 && query < lists_.known) raise_floor(lists_, query, upper_of(floor));
        least_[n][side] = fmaxf(least_[n][side], floor);
      }
    }
  }

  // Others read tops at any time: whatever they see, a key of the group has it.
  __device__ void keep_tops(const float (&x)[4]) {
#pragma unroll
    for (uint32_t side = 0; side < 2; ++side) {
      const float top = fmaxf(x[side], x[side + 2]);  // NaN where both are
      if (!(top > top_[side])) continue;
      top_[side] = top;
      const uint32_t query = first_ + lane() % 4 * 2 + side, groups = lists_.groups;
      lists_.tops[query * groups + group_ + lane() / 4] = upper_of(top);
    }
  }

  // The k-th largest of the eight lanes' pairs.
  __device__ float kth_of_look(float a, float b) const {
    uint32_t reach_a = 1 + (b >= a ? 1 : 0), reach_b = 1 + (a >= b ? 1 : 0);
#pragma unroll
    for (int mask = 4; mask < 32; mask += 4) {
      const float c = __shfl_xor_sync(~0u, a, mask), d = __shfl_xor_sync(~0u, b, mask);
      reach_a += (c >= a ? 1 : 0) + (d >= a ? 1 : 0);
      reach_b += (c >= b ? 1 : 0) + (d >= b ? 1 : 0);
    }
    float kth = fmaxf(reach_a >= k_ ? a : -FLT_MAX, reach_b >= k_ ? b : -FLT_MAX);
    for (int mask = 4; mask < 32; mask *= 2) kth = fmaxf(kth, __shfl_xor_sync(~0u, kth, mask));
    return kth;
  }

  // Scores of a page; those of keys outside of the middle are -inf.
  __device__ void multiply_page(const unsigned char* tile, int32_t first, KeyRange32 middle,
                                float (&x)[NT][4]) const {
    const uint32_t k = shared_address(tile);
#pragma unroll
    for (int step = 0; step < kSteps; step += 2) {
      uint32_t keys[2][4];
      load_keys<S::kType, D>(k, step / 2, keys);
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        multiply<T>(x[n], keys[0], q_[n][step]);
        multiply<T>(x[n], keys[1], q_[n][step + 1]);
      }
    }
    if constexpr (S::kType == KvType::kFP8) {
      const float low = token_scale<S::kType, D>(tile, lane() / 4);
      const float high = token_scale<S::kType, D>(tile, lane() / 4 + 8);
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        for (int i = 0; i < 4; ++i) x[n][i] *= i < 2 ? low : high;
      }
    }
    if (first < middle.begin || first + static_cast<int32_t>(kPageTokens) > middle.end) {
      hide(first, middle, x);
    }
  }
  __device__ void load_queries(const Params& p, int n, uint32_t sequence, uint32_t kv_head,
                               uint32_t query) {
    const float* from = p.query(sequence, kv_head, min(query, p.queries - 1));
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t dim = step * 16 + FragmentOrder<S::kType>::summed(lane() % 4, half);
        const float2 two = query_pair(p, from, dim);
        q_[n][step][half] = pack<T>(two.x, two.y);
      }
    }
  }

  __device__ static void hide(int32_t first, KeyRange32 middle, float (&x)[NT][4]) {
    for (int half = 0; half < 2; ++half) {
      const int32_t key = first + static_cast<int32_t>(lane() / 4) + half * 8;
      if (key >= middle.begin && key < middle.end) continue;
#pragma unroll
      for (int n = 0; n < NT; ++n) x[n][2 * half] = x[n][2 * half + 1] = -INFINITY;
    }
  }

  __device__ void take(uint32_t reached, int32_t first, const float (&x)[NT][4]) {
    reached = __reduce_or_sync(~0u, reached);
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      if ((reached >> n & 1) == 0) continue;
      const float4 scores = {x[n][0], x[n][1], x[n][2], x[n][3]};
      const float2 least = take_tile(k_, lists_, {first_ + n * 8, list_ + n * 8}, first, scores,
                                     {least_[n][0], least_[n][1]});
      least_[n][0] = least.x;
      least_[n][1] = least.y;
    }
  }

  // Of eight queries: the first one, and its list.
  struct Eight {
    uint32_t query, list;
  };

  // Collects what reached the least score. Returns what is to be reached from now on. Not a part of
  // the object, which would lie in memory then.
  __device__ __noinline__ static float2 take_tile(uint32_t k, Lists lists, Eight eight,
                                                  int32_t first, float4 scores, float2 least) {
    const uint32_t column = lane() % 4, peers = 0x11111111u << column;
    for (int i = 3; i >= 0; --i) {
      const float score = i < 2 ? (i == 0 ? scores.x : scores.y) : i == 2 ? scores.z : scores.w;
      float& own_least = i % 2 == 0 ? least.x : least.y;
      const bool reaches = score >= own_least;
      const uint32_t chosen = __ballot_sync(~0u, reaches) & peers;
      if (__all_sync(~0u, chosen == 0)) continue;
      const uint32_t own = column * 2 + i % 2, list = eight.list + own;
      const uint32_t before = lists.counts[list], count = before + __popc(chosen);
      if (reaches) {
        const int32_t key = first + static_cast<int32_t>(lane() / 4) + i / 2 * 8;
        const uint32_t place = before + __popc(chosen & ((1u << lane()) - 1));
        lists.words[size_t{list} * lists.room + place] = ranked(score, key);
      }
      __syncwarp();
      if (lane() < 4) lists.counts[list] = count;
      __syncwarp();
      // The next eight keys must find room.
      uint32_t full = __ballot_sync(~0u, lane() < 4 && count + 8 > lists.room);
      while (full != 0) {
        const uint32_t of = __ffs(static_cast<int>(full)) - 1;
        full &= full - 1;
        const uint32_t query = eight.query + of * 2 + i % 2;
        const RankedWord last = keep_list(k, lists, eight.list + of * 2 + i % 2, query);
        if (column == of) own_least = fmaxf(own_least, least_score(last));
      }
    }
    return least;
  }

  // Keeps the best k of a list; the last of them.
  __device__ static RankedWord keep_list(uint32_t k, const Lists& lists, uint32_t list,
                                         uint32_t query) {
    RankedWord* words = lists.words + size_t{list} * lists.room;
    const uint32_t count = keep_best(words, lists.counts[list], k);
    const RankedWord last = words[k - 1];
    if (lane() == 0) {
      lists.counts[list] = count;
      if (query < lists.known) {
        raise_floor(lists, query, static_cast<uint32_t>(last >> 32));
      }
    }
    __syncwarp();
    return last;
  }

  uint32_t k_;
  Lists lists_;
  uint32_t first_, list_;  // the warp's first query, of the block's, and its list
  uint32_t group_;         // its first one
  float top_[2] = {-FLT_MAX, -FLT_MAX};
  uint32_t q_[NT][kSteps][2];
  float least_[NT][2];
};

// The first count pages of a share. floors: those of all blocks are taken over in turn.
template <typename S>
__device__ void copy_pages(const Params& p, const PageShare& share, uint32_t count,
                           uint32_t sequence, uint32_t kv_head, const Lists& lists,
                           Stages<S>& stages) {
  const uint32_t* table = p.a.pages + size_t{sequence} * p.a.capacity;
  const uint32_t lane = threadIdx.x % 32;
  const auto id_of = [&](uint32_t i) {
    const bool there = lane < S::kPages && i + lane < count;
    return there ? table[share.end - 1 - i - lane] : 0;
  };
  uint32_t id = id_of(0), query = lane;
  for (uint32_t i = 0; i < count; i += S::kPages) {
    const size_t tile = (size_t{id} * p.a.kv.n_kv_head + kv_head) * 2;
    id = id_of(i + S::kPages);
    const volatile uint32_t* floors = lists.all_floors;
    const uint32_t floor = query < lists.known ? floors[query] : 0;
    stages.copy(static_cast<const unsigned char*>(p.a.kv.pages) + tile * S::kTileBytes,
                min(S::kPages, count - i));
    if (floor > 0) atomicMax(lists.floors + query, floor);
    query = query - lane + 32 < lists.known ? query + 32 : lane;
    // After 2, 4, 8 ... stages, and once for each query.
    const uint32_t stage = i / S::kPages, turn = stage - (1u << (31 - __clz(stage | 1)));
    const bool raises = lists.groups > 0 && stage > 1 && turn < lists.known;
    if (raises) raise_by_tops(lists, turn, p.a.k);
  }
}

// A warp's share of the stages that hold the first count pages; first() comes before each stage.
template <typename S, typename F, typename G>
__device__ void for_pages(const Params& p, const PageShare& share, uint32_t count, uint32_t warp,
                          uint32_t stages_after, Stages<S>& stages, const F& f, const G& first) {
  for (uint32_t i = 0; i < count; i += S::kPages) {
    first();
    const unsigned char* pages = stages.wait();
    const uint32_t here = min(S::kPages, count - i);
    // Pages are dealt in turn, across stages too.
    uint32_t page = (warp / p.query_warps + p.key_warps - i % p.key_warps) % p.key_warps;
    for (; page < here; page += p.key_warps) {
      const auto index = static_cast<int32_t>(share.end - 1 - i - page);
      f(pages + page * S::kTileBytes, index * static_cast<int32_t>(kPageTokens));
    }
    stages.release((count - i - 1) / S::kPages + stages_after);
  }
}

// What warps collected for a query becomes one list, which is written. scratch: room for
// merge_room_of(k) words of each warp.
__device__ inline void write_lists(const Params& p, const Lists& lists, uint32_t sequence,
                                   uint32_t kv_head, uint32_t first, void* scratch) {
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, k = p.a.k;
  RankedWord* best = static_cast<RankedWord*>(scratch) + warp * merge_room_of(k);
  for (uint32_t i = warp; i < lists.queries && first + i < p.queries; i += blockDim.x / 32) {
    const auto word = [&](uint32_t of, uint32_t place) -> RankedWord {
      const uint32_t list = of * lists.queries + i;
      return place < lists.counts[list] ? lists.words[size_t{list} * lists.room + place] : 0;
    };
    const uint32_t count = best_of(k, WordLists{p.key_warps, lists.room, word}, best);
    RankedWord* out = p.list(sequence, blockIdx.x, kv_head, first + i);
    for (uint32_t at = lane; at < k; at += 32) out[at] = at < count ? best[at] : 0;
    __syncwarp();
  }
}

template <typename S>
__global__ __launch_bounds__(S::kMostThreads,
                             1) void scan_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) unsigned char memory[];
  Ring<S>& ring = *reinterpret_cast<Ring<S>*>(memory);
  Lists lists(&ring + 1, p, S::kQueries, S::kGroups, room_of(p.a.k));
  const uint32_t warp = threadIdx.x / 32, consumers = p.query_warps * p.key_warps;
  const uint32_t kv_head = blockIdx.y / p.query_blocks, sequence = blockIdx.z;
  const uint32_t first = blockIdx.y % p.query_blocks * lists.queries;
  lists.known = min(lists.queries, p.queries - min(first, p.queries));
  lists.all_floors = p.floors_of(sequence, kv_head) + first;
  if (threadIdx.x == 0) Stages<S>::init(ring, consumers);
  const uint32_t numbers = list_numbers(p.key_warps, lists.queries, S::kGroups);
  for (uint32_t i = threadIdx.x; i < numbers; i += blockDim.x) lists.counts[i] = 0;
  __syncthreads();
  wait_for_kernels_before();
  const PageShare share(p, sequence, blockIdx.x, lists.groups > 0 ? S::kPages : 0, S::kLookPart);
  Stages<S> stages(ring, consumers);
  if (warp == consumers) {
    copy_pages<S>(p, share, share.first_look, sequence, kv_head, lists, stages);
    copy_pages<S>(p, share, share.count, sequence, kv_head, lists, stages);
  } else {
    Scanner<S> scanner(p, lists, warp, sequence, kv_head, first);
    const uint32_t all = (share.count + S::kPages - 1) / S::kPages;
    if (share.first_look > 0) {
      typename Scanner<S>::Look look;
      scanner.begin(look);
      for_pages<S>(
          p, share, share.first_look, warp, all, stages,
          [&](const unsigned char* tile, int32_t key) {
            scanner.look_at(tile, key, share.middle, look);
          },
          [] {});
      scanner.end(look, consumers);
    }
    for_pages<S>(
        p, share, share.count, warp, 0, stages,
        [&](const unsigned char* tile, int32_t key) { scanner.scan(tile, key, share.middle); },
        [&] { scanner.take_floors(); });
  }
  __syncthreads();
  write_lists(p, lists, sequence, kv_head, first, ring.pages);
}

}  // namespace top

}  // namespace reprise::kernels::cuda
