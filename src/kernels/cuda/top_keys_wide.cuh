// The scan for the best keys of many queries by Hopper's warpgroup products: two warpgroups have
// two tiles of 64 queries each in shared memory, one warp copies K tiles, newest first. While a
// warpgroup looks at one tile's scores, which stay in registers, the other tile's are on their way;
// of no other tile, or the compiler makes products wait for each other.
#pragma once

#include "kernels/cuda/top_keys_scan.cuh"

namespace reprise::kernels::cuda {

namespace top {

constexpr uint32_t kMostWidePicks = 16;  // whose lists have room beside the tiles

// 128 keys are a stage and the columns of a product.
template <KvType type, int D>
struct WideShape {
  static constexpr KvType kType = type;
  static constexpr int kHeadDim = D;
  static constexpr uint32_t kTileBytes = tile_bytes(type, D);
  static constexpr uint32_t kPages = 8, kStages = D == 64 ? 4 : 3;
  static constexpr uint32_t kStageBytes = kPages * kTileBytes;
  static constexpr uint32_t kGroups = 0, kLookPart = 4;
  static constexpr uint32_t kWarps = 8;     // that compute
  static constexpr uint32_t kQueries = 32;  // of a warp: 16 of each tile
  static constexpr uint32_t kBlockQueries = kWarps * kQueries;
  // Words of a query: k are kept and eight more find room.
  static constexpr uint32_t kRoom = kMostWidePicks + 8;
  static constexpr uint32_t kThreads = (kWarps + 4) * 32;  // one warp of the last four copies
};

// Query i of a block is row i % 16 of sub-tile i / 16, which is one of warp i / 32.
template <typename S>
struct WideShared {
  alignas(1024) unsigned char queries[S::kBlockQueries / 16][S::kTileBytes];
  Ring<S> ring;
  float4 apart[S::kWarps][2][32];

  // Four sub-tiles, of the warps of a warpgroup, are a tile.
  __device__ static uint32_t place(uint32_t query) {
    const uint32_t warp = query / S::kQueries, tile = warp / 4 * 2 + query / 16 % 2;
    return tile * 4 + warp % 4;
  }
};

template <typename S>
__device__ void load_queries(const Params& p, uint32_t sequence, uint32_t kv_head, uint32_t first,
                             WideShared<S>& shared) {
  using T = Operand<S::kType>;
  constexpr uint32_t kPairs = S::kHeadDim / 2;
  for (uint32_t i = threadIdx.x; i < S::kBlockQueries * kPairs; i += S::kThreads) {
    const uint32_t query = i / kPairs, dim = i % kPairs * 2;
    const float* from = p.query(sequence, kv_head, min(first + query, p.queries - 1));
    const float2 two = query_pair(p, from, dim);
    unsigned char* to = shared.queries[shared.place(query)] +
                        element_offset(S::kType, S::kHeadDim, query % 16, dim);
    *reinterpret_cast<uint32_t*>(to) = pack<T>(two.x, two.y);
  }
}

// One warp's queries, 16 of each of two tiles, and their lists. A lane has two rows of a tile's
// scores, each with a quarter of the columns.
template <typename S>
class WideScanner {
 public:
  using T = Operand<S::kType>;
  static constexpr int D = S::kHeadDim;
  static constexpr uint32_t kRoom = S::kRoom;

  __device__ WideScanner(const Params& p, const Lists& lists, WideShared<S>& shared, uint32_t warp)
      : k_(p.a.k),
        full_(min(kRoom - 8, 2 * p.a.k)),
        lists_(lists),
        first_(warp * S::kQueries),
        apart_(shared.apart[warp][0] + lane()) {
#pragma unroll
    for (uint32_t tile = 0; tile < 2; ++tile) {
      q_[tile] = rows_operand<D>(shared_address(shared.queries[(warp / 4 * 2 + tile) * 4]));
#pragma unroll
      for (uint32_t side = 0; side < 2; ++side) {
        least_[tile][side] = query(tile, side) < lists.known ? -FLT_MAX : INFINITY;
      }
    }
  }

  // The first pages of a share, for what scores must reach.
  __device__ void look(const PageShare& share, Stages<S>& stages) {
    float tops[2][2][4];
#pragma unroll
    for (uint32_t i = 0; i < 16; ++i) tops[i / 8][i / 4 % 2][i % 4] = -FLT_MAX;
    multiply(
        share, share.first_look, stages, [] {},
        [&]<uint32_t kTile>(const float(&x)[16][4], uint32_t) {
          float own[2][4];
          tops_of(x, own);
#pragma unroll
          for (uint32_t i = 0; i < 8; ++i) {
            float& top = tops[kTile][i / 4][i % 4];
            top = fmaxf(top, own[i / 4][i % 4]);
          }
        });
#pragma unroll
    for (uint32_t tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (uint32_t side = 0; side < 2; ++side) {
        const float floor = kth_of_quad(tops[tile][side]);
        const uint32_t own = query(tile, side);
        if (lane() % 4 == 0 && own < lists_.known) raise_floor(lists_, own, upper_of(floor));
        least_[tile][side] = fmaxf(least_[tile][side], floor);
      }
    }
  }

  __device__ void scan(const PageShare& share, Stages<S>& stages) {
    multiply(
        share, share.count, stages, [&] { take_floors(); },
        [&]<uint32_t kTile>(const float(&x)[16][4], uint32_t page) { take<kTile>(x, page); });
  }

 private:
  __device__ static uint32_t lane() { return threadIdx.x % 32; }
  // Of the block's, that of the lane's row.
  __device__ uint32_t query(uint32_t tile, uint32_t side) const {
    return first_ + tile * 16 + side * 8 + lane() / 4;
  }

  __device__ void issue(const unsigned char* pages, uint32_t tile, float (&x)[16][4]) const {
    const uint64_t keys = rows_operand<D>(shared_address(pages));
    hold(x);
    wgmma_fence();
#pragma unroll
    for (uint32_t step = 0; step < D / 16; ++step) {
      const uint64_t offset = rows_operand_step(step);
      wgmma<T>(x, q_[tile] + offset, keys + offset, step > 0);
    }
    wgmma_commit();
  }

  // f<tile>(scores, index of the page of the first columns) for count pages of a share, those of
  // keys outside of the middle -inf; first() before each stage.
  template <typename G, typename F>
  __device__ void multiply(const PageShare& share, uint32_t count, Stages<S>& stages,
                           const G& first, const F& f) {
    if (count == 0) return;
    float x[16][4], y[16][4];
    const unsigned char* pages = stages.wait();
    issue(pages, 0, x);
    wgmma_wait<0>();
    hold(x);
    for (uint32_t i = 0; i < count; i += S::kPages) {
      const uint32_t page = share.end - 1 - i, here = min(S::kPages, count - i);
      issue(pages, 1, y);
      first();
      hide(share.middle, page, here, x);
      f.template operator()<0>(x, page);
      wgmma_wait<0>();
      hold(y);
      if (i + S::kPages < count) {
        stages.release(0);
        pages = stages.wait();
      }
      issue(pages, 0, x);  // the last stage's again, as the compiler takes no condition here
      hide(share.middle, page, here, y);
      f.template operator()<1>(y, page);
      wgmma_wait<0>();
      hold(x);
    }
    stages.release(0);
  }

  // Columns 8 j to 8 j + 7 are half of a page; pages go back from the first one.
  __device__ static int32_t key_of_columns(uint32_t page, uint32_t j) {
    return static_cast<int32_t>((page - j / 2) * kPageTokens + j % 2 * 8);
  }
  __device__ static void hide(KeyRange32 middle, uint32_t page, uint32_t here, float (&x)[16][4]) {
    const auto end = static_cast<int32_t>((page + 1) * kPageTokens);
    const int32_t begin = end - static_cast<int32_t>(here * kPageTokens);
    if (here == S::kPages && begin >= middle.begin && end <= middle.end) return;
#pragma unroll
    for (uint32_t j = 0; j < 16; ++j) {
      const int32_t key = key_of_columns(page, j) + static_cast<int32_t>(lane() % 4 * 2);
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        const bool counts = j / 2 < here && key + i >= middle.begin && key + i < middle.end;
        if (!counts) x[j][i] = x[j][2 + i] = -INFINITY;
      }
    }
  }

  // The largest of each row's quarters of the lane's columns.
  __device__ static void tops_of(const float (&x)[16][4], float (&tops)[2][4]) {
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {
      const uint32_t side = i / 4, j = i % 4 * 4;
      float top = fmaxf(x[j][2 * side], x[j][2 * side + 1]);
#pragma unroll
      for (uint32_t other = j + 1; other < j + 4; ++other) {
        top = fmaxf(top, fmaxf(x[other][2 * side], x[other][2 * side + 1]));
      }
      tops[side][i % 4] = top;
    }
  }

  // The k-th largest of the 16 tops of a row, four of each of the quad's lanes.
  __device__ float kth_of_quad(const float (&own)[4]) const {
    uint32_t reach[4] = {};
#pragma unroll
    for (int mask = 0; mask < 4; ++mask) {
#pragma unroll
      for (const float other : own) {
        const float its = __shfl_xor_sync(~0u, other, mask);
#pragma unroll
        for (int i = 0; i < 4; ++i) reach[i] += its >= own[i] ? 1 : 0;
      }
    }
    float kth = -FLT_MAX;
#pragma unroll
    for (int i = 0; i < 4; ++i) kth = fmaxf(kth, reach[i] >= k_ ? own[i] : -FLT_MAX);
    for (int mask = 1; mask < 4; mask *= 2) kth = fmaxf(kth, __shfl_xor_sync(~0u, kth, mask));
    return kth;
  }

  __device__ void take_floors() {
    const volatile uint32_t* floors = lists_.floors;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const float floor = ordered_float(floors[query(i / 2, i % 2)]);
      least_[i / 2][i % 2] = fmaxf(least_[i / 2][i % 2], floor);  // NaN where there is none
    }
  }

  // Collects what reaches the least scores, the newest keys first: of equal ones those are kept.
  template <uint32_t kTile>
  __device__ void take(const float (&x)[16][4], uint32_t page) {
    float tops[2][4];
    tops_of(x, tops);
    const auto reaches = [&](uint32_t side, float top) { return top >= least_[kTile][side]; };
    const auto top_of = [&](const float(&of)[4]) {
      return fmaxf(fmaxf(of[0], of[1]), fmaxf(of[2], of[3]));
    };
    if (!__any_sync(~0u, reaches(0, top_of(tops[0])) || reaches(1, top_of(tops[1])))) return;
    uint32_t left = 0;  // a bit for each side of each quarter of the columns
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) left |= reaches(i % 2, tops[i % 2][i / 2]) ? 1u << i : 0u;
    left = __reduce_or_sync(~0u, left);
    while (left != 0) {
      const uint32_t next = __ffs(static_cast<int>(left)) - 1;
      left &= left - 1;
#pragma unroll
      for (uint32_t i = 0; i < 8; ++i) {
        if (next == i) set_apart(x, i / 2, i % 2);
      }
#pragma unroll 1
      for (uint32_t part = 0; part < 4; ++part) {
        take_part<kTile>(next % 2, page, next / 2 * 4 + (part ^ 1));  // a page's later half first
      }
    }
  }

  // The lane's own scores of a quarter, where they can be found by number.
  __device__ void set_apart(const float (&x)[16][4], uint32_t quarter, uint32_t side) {
    const uint32_t j = quarter * 4, i = side * 2;
    apart_[0] = {x[j][i], x[j][i + 1], x[j + 1][i], x[j + 1][i + 1]};
    apart_[32] = {x[j + 2][i], x[j + 2][i + 1], x[j + 3][i], x[j + 3][i + 1]};
  }

  // Eight columns.
  template <uint32_t kTile>
  __device__ void take_part(uint32_t side, uint32_t page, uint32_t j) {
    const float2 two = reinterpret_cast<const float2*>(apart_ + j / 2 % 2 * 32)[j % 2];
    const float least = side == 0 ? least_[kTile][0] : least_[kTile][1];
    if (!__any_sync(~0u, fmaxf(two.x, two.y) >= least)) return;
    const uint32_t first = first_ + kTile * 16 + side * 8;
    const float now = keep_lists(first, push(first, least, key_of_columns(page, j), two), least);
    (side == 0 ? least_[kTile][0] : least_[kTile][1]) = now;
  }

  // The lane's scores of two keys, from the first of eight columns on, of its row of eight queries.
  // Returns the first lanes of rows whose lists are full.
  __device__ uint32_t push(uint32_t first, float least, int32_t columns, float2 two) const {
    const uint32_t peers = 0xfu << lane() / 4 * 4, before = (1u << lane()) - 1;
    const uint32_t ones = __ballot_sync(~0u, two.x >= least) & peers;
    const uint32_t others = __ballot_sync(~0u, two.y >= least) & peers;
    const uint32_t list = first + lane() / 4, there = lists_.counts[list];
    const uint32_t count = there + __popc(ones) + __popc(others);
    const int32_t key = columns + static_cast<int32_t>(lane() % 4 * 2);
    RankedWord* const words = lists_.words + size_t{list} * kRoom + there;
    if (two.x >= least) words[__popc(ones & before)] = ranked(two.x, key);
    if (two.y >= least) words[__popc(ones) + __popc(others & before)] = ranked(two.y, key + 1);
    __syncwarp();
    if (lane() % 4 == 0) lists_.counts[list] = count;
    __syncwarp();
    return __ballot_sync(~0u, lane() % 4 == 0 && count > full_);
  }

  // Keeps the best k of full lists. Returns what the lane's row asks for from now on.
  __device__ float keep_lists(uint32_t first, uint32_t full, float least) const {
    while (full != 0) {
      const uint32_t row = (__ffs(static_cast<int>(full)) - 1) / 4, list = first + row;
      full &= full - 1;
      RankedWord* const words = lists_.words + size_t{list} * kRoom;
      keep_best_of<1>(words, lists_.counts[list], k_);
      const RankedWord last = words[k_ - 1];
      if (lane() == 0) {
        lists_.counts[list] = k_;
        if (list < lists_.known) raise_floor(lists_, list, static_cast<uint32_t>(last >> 32));
      }
      __syncwarp();
      if (lane() / 4 == row) least = fmaxf(least, least_score(last));
    }
    return least;
  }

  uint32_t k_;
  uint32_t full_;  // words from which on a list is cut to k, which tells what others must reach
  Lists lists_;
  uint32_t first_;  // of the block's queries
  float4* apart_;   // [2][32] the lane's
  uint64_t q_[2];
  float least_[2][2];
};

template <typename S>
__global__ __launch_bounds__(S::kThreads,
                             1) void wide_scan_kernel(const __grid_constant__ Params p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char wide_memory[];
  WideShared<S>& shared = *reinterpret_cast<WideShared<S>*>(wide_memory);
  Lists lists(&shared + 1, p, S::kQueries, S::kGroups, S::kRoom);
  const uint32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const uint32_t kv_head = blockIdx.y / p.query_blocks, sequence = blockIdx.z;
  const uint32_t first = blockIdx.y % p.query_blocks * lists.queries;
  lists.known = min(lists.queries, p.queries - min(first, p.queries));
  lists.all_floors = p.floors_of(sequence, kv_head) + first;
  if (threadIdx.x == 0) Stages<S>::init(shared.ring, S::kWarps);
  const uint32_t numbers = list_numbers(p.key_warps, lists.queries, S::kGroups);
  for (uint32_t i = threadIdx.x; i < numbers; i += blockDim.x) lists.counts[i] = 0;
  wait_for_kernels_before();
  load_queries(p, sequence, kv_head, first, shared);
  publish_shared();
  __syncthreads();
  const PageShare share(p, sequence, blockIdx.x, 0, S::kLookPart);
  Stages<S> stages(shared.ring, S::kWarps);
  if (warp >= S::kWarps) {
    give_registers<40>();
    if (warp == S::kWarps) {
      copy_pages<S>(p, share, share.first_look, sequence, kv_head, lists, stages);
      copy_pages<S>(p, share, share.count, sequence, kv_head, lists, stages);
    }
  } else {
    take_registers<232>();
    WideScanner<S> scanner(p, lists, shared, warp);
    scanner.look(share, stages);
    scanner.scan(share, stages);
  }
  __syncthreads();
  write_lists(p, lists, sequence, kv_head, first, shared.ring.pages);
#else
  __trap();
#endif
}

}  // namespace top

}  // namespace reprise::kernels::cuda
