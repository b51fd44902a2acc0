// Which keys win, of those that a sequence's rows voted for: by radix, most votes first. Where
// spans are to fill what they may, candidates are sorted by position: what each adds to those of
// higher rank is the weight by which radix counts it. Code of one block.
#pragma once

#include <cstdint>

#include "kernels/cuda/kept_scans.cuh"
#include "kernels/cuda/key_spans.h"

namespace reprise::kernels::cuda::spans {

constexpr uint32_t kThreads = 512, kWarps = kThreads / 32, kBins = 256;

// A key's votes, its best score and key + 1, most significant first.
struct Rank {
  uint32_t word[3];

  __device__ uint32_t digit(uint32_t i) const { return word[i / 4] >> (24 - i % 4 * 8) & 255; }
  __device__ bool is_below(const Rank& other) const {
    if (word[0] != other.word[0]) return word[0] < other.word[0];
    if (word[1] != other.word[1]) return word[1] < other.word[1];
    return word[2] < other.word[2];
  }
};

// The candidates that may win where spans fill what they may.
struct Filling {
  uint64_t words[kMaxFilled];  // key and its place among those used, ascending
  uint16_t gains[kMaxFilled];  // keys that its span adds to those of higher rank
};

/// What a block needs to find them, in shared memory.
struct Winners {
  uint32_t bins[kBins], warps[kWarps];
  uint32_t needed, digit, winners, most_votes;
  bool done;
  Rank candidates[kThreads];
  int32_t keys[kMaxFilled];  // out: so many winners
};

/// Of the rows of a sequence.
struct Ballot {
  uint32_t sequence = 0;
  int32_t length = 0;
  KeyRange32 middle;
  uint32_t spans = 0;  // most that win, where spans do not fill
};

__device__ inline Rank rank_of(const VoteTables& votes, size_t slot) {
  return {{votes.votes[slot], votes.best[slot], votes.keys[slot]}};
}

// Of threads up to this one; total: of all. All threads call.
__device__ inline uint32_t scan_block(Winners& s, uint32_t value, uint32_t* total) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (uint32_t step = 1; step < 32; step *= 2) {
    const uint32_t left = __shfl_up_sync(~0u, value, step);
    if (lane >= step) value += left;
  }
  __syncthreads();
  if (lane == 31) s.warps[warp] = value;
  __syncthreads();
  *total = 0;
  for (uint32_t w = 0; w < kWarps; ++w) {
    if (w < warp) value += s.warps[w];
    *total += s.warps[w];
  }
  return value;
}

// Those of a sequence, in any order.
struct Candidates {
  const VoteTables& votes;
  size_t at;
  uint32_t count;

  __device__ Rank rank(uint32_t c) const { return rank_of(votes, at + votes.used[at + c]); }
  __device__ uint32_t weight(uint32_t) const { return 1; }
};

struct FillingList {
  const Candidates& all;
  const Filling& own;
  uint32_t count;

  __device__ uint32_t place(uint32_t i) const { return static_cast<uint32_t>(own.words[i]); }
  __device__ int32_t key(uint32_t i) const { return static_cast<int32_t>(own.words[i] >> 32); }
  __device__ Rank rank(uint32_t i) const { return all.rank(place(i)); }
  __device__ uint32_t weight(uint32_t i) const { return own.gains[i]; }
};

// Weighs digit i of candidates that agree with least in the digits before.
template <class List>
__device__ void weigh_digits(const List& list, const Rank& least, uint32_t i, Winners& s) {
  for (uint32_t bin = threadIdx.x; bin < kBins; bin += kThreads) s.bins[bin] = 0;
  __syncthreads();
  for (uint32_t c = threadIdx.x; c < list.count; c += kThreads) {
    const Rank rank = list.rank(c);
    bool agrees = true;
    for (uint32_t j = 0; j < i; ++j) agrees = agrees && rank.digit(j) == least.digit(j);
    if (agrees) atomicAdd(&s.bins[rank.digit(i)], list.weight(c));
  }
  __syncthreads();
}

// The digit in whose bin the weight reaches s.needed.
__device__ inline void choose_digit(Winners& s) {
  if (threadIdx.x >= 32) return;
  uint32_t own[8], sum = 0;  // bins from the largest on
  for (uint32_t j = 0; j < 8; ++j) sum += own[j] = s.bins[kBins - 1 - threadIdx.x * 8 - j];
  uint32_t until = sum;
  for (uint32_t step = 1; step < 32; step *= 2) {
    const uint32_t left = __shfl_up_sync(~0u, until, step);
    if (threadIdx.x >= step) until += left;
  }
  uint32_t before = until - sum;
  const uint32_t needed = s.needed;
  __syncwarp();
  if (before >= needed || until < needed) return;
  for (uint32_t j = 0; j < 8; ++j) {
    if (before + own[j] < needed) {
      before += own[j];
      continue;
    }
    s.digit = kBins - 1 - threadIdx.x * 8 - j;
    s.done = before + own[j] == needed;
    s.needed = needed - before;
    return;
  }
}

// The first digit in which candidates differ in votes.
template <class List>
__device__ uint32_t first_digit(const List& list, Winners& s) {
  uint32_t most = 0;
  for (uint32_t c = threadIdx.x; c < list.count; c += kThreads) {
    most = max(most, list.rank(c).word[0]);
  }
  if (threadIdx.x == 0) s.most_votes = 0;
  __syncthreads();
  atomicMax(&s.most_votes, most);
  __syncthreads();
  return static_cast<uint32_t>(__clz(static_cast<int>(s.most_votes))) / 8;
}

// The rank at which candidates, the best first, weigh `needed` together: a lower bound of it that
// tells it from those below, or it itself.
template <class List>
__device__ Rank rank_at(const List& list, uint32_t needed, bool itself, Winners& s) {
  Rank least = {};
  if (threadIdx.x == 0) s.needed = needed;
  for (uint32_t i = first_digit(list, s); i < 12; ++i) {
    weigh_digits(list, least, i, s);
    choose_digit(s);
    __syncthreads();
    least.word[i / 4] |= s.digit << (24 - i % 4 * 8);
    if (s.done && !itself) break;
  }
  return least;
}

// Candidates of higher rank than this thread's own, of as many as there are threads at most.
__device__ inline uint32_t count_before(const Rank& own, uint32_t count, Winners& s) {
  s.candidates[threadIdx.x] = own;
  __syncthreads();
  uint32_t before = 0;
  for (uint32_t c = 0; c < count; ++c) before += own.is_below(s.candidates[c]) ? 1 : 0;
  return before;
}

// Ascending; what lies behind count is lost. All threads call.
template <class T>
__device__ void sort_ascending(T* values, uint32_t count, T most) {
  uint32_t size = 1;
  while (size < count) size *= 2;
  for (uint32_t i = count + threadIdx.x; i < size; i += kThreads) values[i] = most;
  for (uint32_t block = 2; block <= size; block *= 2) {
    for (uint32_t step = block / 2; step > 0; step /= 2) {
      __syncthreads();
      for (uint32_t i = threadIdx.x; i < size / 2; i += kThreads) {
        const uint32_t low = i / step * 2 * step + i % step, high = low + step;
        const bool up = (low & block) == 0;
        const T a = values[low], b = values[high];
        if ((a > b) != up) continue;
        values[low] = b;
        values[high] = a;
      }
    }
  }
  __syncthreads();
}

// Winners in s.keys, in any order.
__device__ inline void take_best(const Candidates& all, uint32_t spans, Winners& s) {
  Rank least = {};
  bool wins = all.count <= spans;  // all of them
  if (!wins && all.count <= kThreads) {
    Rank own = {};
    if (threadIdx.x < all.count) own = all.rank(threadIdx.x);
    wins = count_before(own, all.count, s) < spans;
  } else if (!wins) {
    least = rank_at(all, spans, false, s);
    wins = spans > 0;
  }
  __syncthreads();
  for (uint32_t c = threadIdx.x; wins && c < all.count; c += kThreads) {
    const Rank rank = all.rank(c);
    if (!rank.is_below(least))
      s.keys[atomicAdd(&s.winners, 1u)] = static_cast<int32_t>(rank.word[2] - 1);
  }
  __syncthreads();
}

// Keys that the span of a candidate adds to those of candidates of higher rank: as all spans are
// equally long, the nearest ones on both sides tell.
__device__ inline uint32_t gain_of(const FillingList& list, uint32_t i, int32_t span,
                                   KeyRange32 middle) {
  const Rank own = list.rank(i);
  const int32_t key = list.key(i);
  int32_t begin = max(middle.begin, key - span / 2), end = min(middle.end, key - span / 2 + span);
  for (uint32_t left = i; left > 0 && key - list.key(left - 1) < span; --left) {
    if (!own.is_below(list.rank(left - 1))) continue;
    begin = max(begin, list.key(left - 1) - span / 2 + span);
    break;
  }
  for (uint32_t right = i + 1; right < list.count && list.key(right) - key < span; ++right) {
    if (!own.is_below(list.rank(right))) continue;
    end = min(end, list.key(right) - span / 2);
    break;
  }
  return static_cast<uint32_t>(max(0, end - begin));
}

// The most winners whose spans hold no more keys than may be filled, in s.keys.
__device__ inline void take_filling(const KeySpansArgs& a, const Candidates& all, KeyRange32 middle,
                                    Winners& s, Filling& f) {
  const uint32_t budget = a.spans * a.span, most = min(all.count, budget);  // each adds its key
  if (most == 0) return;
  const Rank least = most < all.count ? rank_at(all, most, false, s) : Rank{};
  for (uint32_t c = threadIdx.x; c < all.count; c += kThreads) {
    const Rank rank = all.rank(c);
    if (rank.is_below(least)) continue;
    f.words[atomicAdd(&s.winners, 1u)] = uint64_t{rank.word[2] - 1} << 32 | c;
  }
  __syncthreads();
  sort_ascending(f.words, most, ~uint64_t{0});
  const FillingList list = {all, f, most};
  uint32_t own = 0, total = 0;
  for (uint32_t i = threadIdx.x; i < most; i += kThreads) {
    const uint32_t gain = gain_of(list, i, static_cast<int32_t>(a.span), middle);
    f.gains[i] = static_cast<uint16_t>(gain);
    own += gain;
  }
  scan_block(s, own, &total);
  const bool fits = total <= budget;
  const Rank beyond = fits ? Rank{} : rank_at(list, budget + 1, true, s);
  if (threadIdx.x == 0) s.winners = 0;
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < most; i += kThreads) {
    if (fits || beyond.is_below(list.rank(i))) s.keys[atomicAdd(&s.winners, 1u)] = list.key(i);
  }
  __syncthreads();
}

// Notes what was voted for, where that is kept, and empties the table. middle: not empty.
__device__ inline void end_votes(const KeySpansArgs& a, const Ballot& ballot) {
  const VoteTables& votes = a.votes;
  const size_t at = size_t{ballot.sequence} * votes.slots;
  const uint32_t count = votes.count[ballot.sequence];
  const bool keeps = keeps_scan(a.kept, ballot.sequence);
  for (uint32_t c = threadIdx.x; c < count; c += kThreads) {
    const size_t slot = at + votes.used[at + c];
    if (keeps) {
      const KeptScan kept(a.kept, ballot.sequence);
      kept.keys[c] = votes.keys[slot];
      kept.votes[c] = votes.votes[slot];
      kept.best[c] = votes.best[slot];
    }
    votes.keys[slot] = votes.votes[slot] = votes.best[slot] = 0;
  }
  __syncthreads();
  if (threadIdx.x == 0) votes.count[ballot.sequence] = 0;
  if (!keeps) return;
  const KeptScan kept(a.kept, ballot.sequence);
  const uint32_t heads = a.kept.shape.heads;
  for (uint32_t head = threadIdx.x; head < heads; head += kThreads) {
    kept.leaders[head] = a.kept.leaders[size_t{ballot.sequence} * heads + head];
  }
  if (threadIdx.x != 0) return;
  *kept.row = static_cast<uint32_t>(ballot.length);
  *kept.prompt_end = static_cast<uint32_t>(a.kept.prompt_ends[ballot.sequence]);
  *kept.count = count;
}

// Winners in s.keys.
__device__ inline void take_winners(const KeySpansArgs& a, const Ballot& ballot, Winners& s,
                                    Filling* filling) {
  const uint32_t index = ballot.sequence;
  const Candidates all = {a.votes, size_t{index} * a.votes.slots, a.votes.count[index]};
  if (threadIdx.x == 0) s.winners = 0;
  __syncthreads();
  if (a.fill) {
    take_filling(a, all, ballot.middle, s, *filling);
  } else {
    take_best(all, ballot.spans, s);
  }
  end_votes(a, ballot);
}

}  // namespace reprise::kernels::cuda::spans
