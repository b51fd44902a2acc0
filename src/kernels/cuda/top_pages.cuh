// The largest scores by radix, from the highest digit of what tells them apart. A block per list.
#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/loaded_ahead.cuh"
#include "kernels/cuda/page_rows.cuh"
#include "kernels/cuda/row_turns.cuh"

namespace reprise::kernels::cuda {

namespace top {

constexpr uint32_t kThreads = 1024, kWarps = kThreads / 32;
constexpr uint32_t kDigitBits = 11, kBins = 1u << kDigitBits;
constexpr uint32_t kAtHand = 8192;  // pages whose scores stay in shared memory
constexpr uint32_t kFew = 128;      // keys that are ranked one by one
static_assert(kBins == 2 * kThreads && kWarps == 32);

// Orders like scores: NaN comes first, -0 equals 0.
__device__ inline uint32_t order_key(float score) {
  if (isnan(score)) return 0;
  const uint32_t bits = __float_as_uint(score == 0.0f ? 0.0f : score);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

struct Bin {
  uint32_t index, before, count;  // before: of the bins before it
};

// Which keys are chosen: all from sure on, and the first ties of those that are sure - 1.
struct Cut {
  uint32_t sure, ties;
};

struct Shared {
  uint32_t keys[kAtHand];
  uint32_t counts[kBins];  // of the highest digit first
  uint32_t warps[2][kWarps];
  Bin found;
  Cut cut;
  uint32_t few[kFew], few_count;
};

// Sum of what the warps before this one hold. values: [kWarps]
__device__ inline uint32_t sum_before(const uint32_t* values) {
  const uint32_t lane = threadIdx.x % 32;
  return __reduce_add_sync(~0u, lane < threadIdx.x / 32 ? values[lane] : 0);
}

// Pages [begin, end) of a list, which compete. All threads of the block call every member. Loops
// are not unrolled: a launch runs them once or twice, and longer code takes longer to come.
class Competitors {
 public:
  // scores: of pages that are not kept at hand, once choose() asked for them.
  __device__ Competitors(Shared& s, const float* scores, uint32_t begin, uint32_t end)
      : s_(s), scores_(scores), begin_(begin), end_(end) {}

  // Chooses wanted, which are fewer than there are.
  __device__ Cut choose(uint32_t wanted) {
    const float* from = scores_ + begin_;
    const uint32_t count = end_ - begin_;
    auto scores = load_ahead<float, 4>([=](uint32_t n, float& score) {
      const uint32_t i = threadIdx.x + n * kThreads;
      if (i < count) score = from[i];
    });
    return choose(wanted, [&](uint32_t, bool) { return scores.next(); });
  }
  // The same; score_of(page, kept at hand) is asked once for every page of the thread, in order.
  template <typename ScoreOf>
  __device__ Cut choose(uint32_t wanted, const ScoreOf& score_of) {
    uint32_t low, high;
    load(score_of, &low, &high);
    uint32_t bits = 32 - __clz(static_cast<int>(high - low));
    while (bits > 0) {
      const uint32_t shift = bits > kDigitBits ? bits - kDigitBits : 0;
      count_digits(low, bits, shift);
      const Bin bin = find_bin(wanted);
      low += (kBins - 1 - bin.index) << shift;
      wanted -= bin.before;
      if (wanted == bin.count) return {low, 0};
      bits = shift;
      if (bits > 0 && bin.count <= kFew) return rank(low, bits, wanted);
    }
    return {low + 1, wanted};
  }

  // What a table says of the pages that write() asks the thread about, in that order.
  __device__ auto entries_of(const uint32_t* table) const {
    const uint32_t first = share_begin() + threadIdx.x % 32, end = end_;
    return load_ahead<uint32_t, 4>([=](uint32_t n, uint32_t& entry) {
      if (first + 32 * n < end) entry = table[first + 32 * n];
    });
  }

  // write_one(index, page) of the chosen pages in order.
  template <typename WriteOne>
  __device__ void write(const Cut& cut, const WriteOne& write_one) {
    struct {
      __device__ uint32_t next() const { return 0; }
    } none;
    write(cut, none, [&](uint32_t at, uint32_t page, uint32_t) { write_one(at, page); });
  }
  // write_one(index, page, entry). entries: entries_of() of this.
  template <typename Entries, typename WriteOne>
  __device__ void write(const Cut& cut, Entries& entries, const WriteOne& write_one) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t begin = share_begin(), end = min(end_, begin + share());
    uint32_t sure = 0, tied = 0;
#pragma unroll 1
    for (uint32_t page = begin + lane; page < end; page += 32) {
      const uint32_t key = key_of(page);
      sure += key >= cut.sure ? 1 : 0;
      tied += key == cut.sure - 1 ? 1 : 0;
    }
    sure = __reduce_add_sync(~0u, sure);
    tied = __reduce_add_sync(~0u, tied);
    if (lane == 0) {
      s_.warps[0][warp] = sure;
      s_.warps[1][warp] = tied;
    }
    __syncthreads();
    sure = sum_before(s_.warps[0]);
    tied = sum_before(s_.warps[1]);
    const uint32_t left = (1u << lane) - 1;  // lanes
#pragma unroll 1
    for (uint32_t start = begin; start < end; start += 32) {
      const bool valid = start + lane < end;
      const uint32_t key = valid ? key_of(start + lane) : 0, entry = entries.next();
      const uint32_t all_sure = __ballot_sync(~0u, valid && key >= cut.sure);
      const uint32_t all_tied = __ballot_sync(~0u, valid && key == cut.sure - 1);
      const uint32_t ties = min(cut.ties, tied + __popc(all_tied & left));
      const bool is_sure = (all_sure >> lane & 1) != 0, is_tied = (all_tied >> lane & 1) != 0;
      if (is_sure || (is_tied && ties < cut.ties)) {
        write_one(sure + __popc(all_sure & left) + ties, start + lane, entry);
      }
      sure += __popc(all_sure);
      tied += __popc(all_tied);
    }
  }

 private:
  // A warp's share of what is written.
  __device__ uint32_t share() const { return (end_ - begin_ + kThreads - 1) / kThreads * 32; }
  __device__ uint32_t share_begin() const { return begin_ + threadIdx.x / 32 * share(); }

  __device__ uint32_t key_of(uint32_t page) const {
    return page < kAtHand ? s_.keys[page] : order_key(scores_[page]);
  }

  // Also the smallest and the largest key.
  template <typename ScoreOf>
  __device__ void load(const ScoreOf& score_of, uint32_t* smallest, uint32_t* largest) {
    uint32_t low = ~0u, high = 0;
#pragma unroll 1
    for (uint32_t page = begin_ + threadIdx.x; page < end_; page += kThreads) {
      const bool at_hand = page < kAtHand;
      const uint32_t key = order_key(score_of(page, at_hand));
      if (at_hand) s_.keys[page] = key;
      low = min(low, key);
      high = max(high, key);
    }
    low = __reduce_min_sync(~0u, low);
    high = __reduce_max_sync(~0u, high);
    if (threadIdx.x % 32 == 0) {
      s_.warps[0][threadIdx.x / 32] = low;
      s_.warps[1][threadIdx.x / 32] = high;
    }
    __syncthreads();
    *smallest = __reduce_min_sync(~0u, s_.warps[0][threadIdx.x % 32]);
    *largest = __reduce_max_sync(~0u, s_.warps[1][threadIdx.x % 32]);
    __syncthreads();
  }

  // Of the keys from low to low + 2^bits - 1.
  __device__ void count_digits(uint32_t low, uint32_t bits, uint32_t shift) {
    reinterpret_cast<uint2*>(s_.counts)[threadIdx.x] = {};
    __syncthreads();
    const uint32_t span = ~0u >> (32 - bits);
#pragma unroll 1
    for (uint32_t page = begin_ + threadIdx.x; page < end_; page += kThreads) {
      const uint32_t offset = key_of(page) - low;
      if (offset <= span) atomicAdd(&s_.counts[kBins - 1 - (offset >> shift)], 1u);
    }
    __syncthreads();
  }

  // Chooses wanted of the few keys from low to low + 2^bits - 1. A warp per key.
  __device__ Cut rank(uint32_t low, uint32_t bits, uint32_t wanted) {
    if (threadIdx.x == 0) s_.few_count = 0;
    __syncthreads();
#pragma unroll 1
    for (uint32_t page = begin_ + threadIdx.x; page < end_; page += kThreads) {
      const uint32_t key = key_of(page);
      if ((key - low) >> bits == 0) s_.few[atomicAdd(&s_.few_count, 1u)] = key;
    }
    __syncthreads();
    const uint32_t count = s_.few_count, lane = threadIdx.x % 32;
#pragma unroll 1
    for (uint32_t i = threadIdx.x / 32; i < count; i += kWarps) {
      const uint32_t key = s_.few[i];
      uint32_t larger = 0, equal = 0;
#pragma unroll 1
      for (uint32_t other = lane; other < count; other += 32) {
        larger += s_.few[other] > key ? 1 : 0;
        equal += s_.few[other] == key ? 1 : 0;
      }
      larger = __reduce_add_sync(~0u, larger);
      equal = __reduce_add_sync(~0u, equal);
      const bool last = larger < wanted && wanted <= larger + equal;
      if (last && lane == 0) s_.cut = {key + 1, wanted - larger};
    }
    __syncthreads();
    return s_.cut;
  }

  // The bin with which the number of keys reaches wanted.
  __device__ Bin find_bin(uint32_t wanted) {
    const uint32_t lane = threadIdx.x % 32;
    const uint2 counts = reinterpret_cast<const uint2*>(s_.counts)[threadIdx.x];
    uint32_t sum = counts.x + counts.y;
    for (uint32_t step = 1; step < 32; step *= 2) {
      const uint32_t left = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += left;
    }
    if (lane == 31) s_.warps[0][threadIdx.x / 32] = sum;
    __syncthreads();
    sum += sum_before(s_.warps[0]);
    const uint32_t second = sum - counts.y, first = second - counts.x;
    if (first < wanted && wanted <= second) s_.found = {2 * threadIdx.x, first, counts.x};
    if (second < wanted && wanted <= sum) s_.found = {2 * threadIdx.x + 1, second, counts.y};
    __syncthreads();
    return s_.found;
  }

  Shared& s_;
  const float* scores_;
  uint32_t begin_, end_;
};

// Pages that are chosen in any case: those before the first one that competes, and from recent on.
class SurePages {
 public:
  __device__ SurePages(const uint32_t* table, uint32_t first, uint32_t recent, uint32_t end)
      : pages_({first, recent, end}), entries_({table, pages_}) {}

  // write_one(index, page, the table's entry). between: how many others the list has. All threads
  // of the block call, once.
  template <typename WriteOne>
  __device__ void write(uint32_t between, const WriteOne& write_one) {
#pragma unroll 1
    for (uint32_t i = threadIdx.x; pages_[i] < pages_.end; i += kThreads) {
      write_one(i < pages_.first ? i : i + between, pages_[i], entries_.next());
    }
  }

 private:
  struct Pages {
    uint32_t first, recent, end;

    __device__ uint32_t operator[](uint32_t i) const { return i < first ? i : i - first + recent; }
  };
  struct Load {
    const uint32_t* table;
    Pages pages;

    __device__ void operator()(uint32_t n, uint32_t& entry) const {
      const uint32_t page = pages[threadIdx.x + n * kThreads];
      if (page < pages.end) entry = table[page];
    }
  };

  Pages pages_;
  LoadedAhead<uint32_t, 1, Load> entries_;
};

__device__ inline TopPagesArgs of_layer(TopPagesArgs a, uint32_t layer) {
  a.rows.pages += layer * a.page_stride;
  a.scores += layer * a.score_stride;
  a.lists += layer * a.list_stride;
  if (a.numbers != nullptr) a.numbers += layer * a.list_stride;
  a.keys += layer * a.key_stride;
  return a;
}

// What of a row's list is chosen before scores are looked at.
struct ListPlan {
  uint32_t keys, own, chosen;  // own: the page of its position, which chosen ones come before
  uint32_t certain, recent;    // pages before certain, and from recent on, are chosen in any case

  __device__ ListPlan(const TopPagesArgs& a, uint32_t row)
      : keys(static_cast<uint32_t>(a.rows.positions[row]) + 1), own(full_pages(a.rows, row)) {
    chosen = a.whole ? own : min(own, a.rows.budget_pages - 1);
    certain = chosen == own ? own : min(a.sink_pages, chosen);
    const uint32_t window = (keys - min(keys, a.recent_tokens)) / kPageTokens;
    recent = max(min(window, own), own - (chosen - certain));
  }
  __device__ uint32_t wanted() const { return chosen - certain - (own - recent); }
  __device__ int32_t keys_read() const {
    return static_cast<int32_t>(chosen * kPageTokens + (keys - 1) % kPageTokens + 1);
  }
};

// The list of a row and KV head, the index-th. All threads of the block call, who wait for kernels
// before where there is something to write.
__device__ inline void choose_list(const TopPagesArgs& a, uint32_t index, Shared& s) {
  const uint32_t row = index / a.n_kv_head;
  if (a.turns.period > 0 && !has_turn(a.turns, a.rows.positions[row])) return;
  if (!has_own_page(a.rows, row)) {
    wait_for_kernels_before();
    if (threadIdx.x == 0) a.keys[index] = 0;
    return;
  }
  const ListPlan plan(a, row);
  const uint32_t* table = a.rows.pages + size_t{row} * a.rows.capacity;
  SurePages sure(table, plan.certain, plan.recent, plan.own + 1);
  const uint32_t scored = a.score_rows != nullptr ? a.score_rows[row] : row;
  const size_t scores = size_t{scored} * a.n_kv_head + index % a.n_kv_head;
  Competitors others(s, a.scores + scores * a.rows.capacity, plan.certain, plan.recent);
  auto entries = others.entries_of(table);
  wait_for_kernels_before();
  const size_t list = size_t{index} * a.list_capacity;
  const auto write = [&](uint32_t at, uint32_t page, uint32_t entry) {
    a.lists[list + at] = entry;
    if (a.numbers != nullptr) a.numbers[list + at] = page;
  };
  if (threadIdx.x == 0) a.keys[index] = plan.keys_read();
  sure.write(plan.wanted(), write);
  if (plan.wanted() == 0) return;
  const auto write_chosen = [&](uint32_t at, uint32_t page, uint32_t entry) {
    write(plan.certain + at, page, entry);
  };
  others.write(others.choose(plan.wanted()), entries, write_chosen);
}

}  // namespace top

}  // namespace reprise::kernels::cuda
