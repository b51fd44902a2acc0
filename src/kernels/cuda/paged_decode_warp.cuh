// One warp of the paged decode kernel: fetches pages and attends to them. K is the left operand, so
// that a page is one row tile and query heads are the narrow side: S^T = K Q^T, O^T = V^T P^T.
// Logits are in units of log2, relative to a base that moves only when one exceeds it by 2^kSlack;
// bases are whole numbers, so that weights are rounded alike whatever they are (on the CPU too).
// Scales of e4m3 codes multiply logits and weights; sums are in units that follow the largest
// scale of values so far, so that weights neither overflow in f16 nor vanish.
#pragma once

#include <cmath>

#include "kernels/cuda/paged_decode_params.cuh"

namespace reprise::kernels::cuda {

namespace decode {

constexpr float kSlack = 8.0f;
constexpr float kLog2E = 1.44269504f;

// Scales of keys and values of tokens (g, g + 8) of a page, where g is lane / 4.
struct Scales {
  float keys[2], values[2];
};

// One warp's part of one pair.
template <typename S>
class Warp {
 public:
  using T = typename S::T;
  static constexpr int D = S::kHeadDim, kSteps = S::kSteps, NT = S::kHeadTiles;
  using Order = FragmentOrder<S::kType>;

  __device__ void reset() {
    unit_ = kLeastUnit;
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      base_[n][0] = base_[n][1] = -INFINITY;
      total_[n][0] = total_[n][1] = 0.0f;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        for (float& x : sums_[n][step]) x = 0.0f;
      }
    }
  }

  __device__ void load_queries(const float* from, uint32_t group, uint32_t pair) {
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      const uint32_t head = n * 8 + lane() / 4;
      const float* q = from + (size_t{pair} * group + head) * D;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          q_[n][step][half] = 0;
          if (head >= group) continue;
          const uint32_t dim = step * 16 + Order::summed(lane() % 4, half);
          const auto two = *reinterpret_cast<const float2*>(q + dim);
          q_[n][step][half] = pack<T>(two.x, two.y);
        }
      }
    }
  }

  // page: K and V tile. angles: its row of p.angles.of_pages. seen: bit t = token t is read. logs:
  // where what p.page_logs asks for goes, or null.
  __device__ void attend(const Params& p, const unsigned char* page, uint32_t angles, uint32_t seen,
                         float* logs) {
    attend(
        p, page, angles, seen, [seen](int, int) { return seen; }, logs);
  }

  // The same where heads differ; seen: by any of them; by_head: by_head(n, side) by head(n, side).
  template <typename ByHead>
  __device__ void attend(const Params& p, const unsigned char* page, uint32_t angles, uint32_t seen,
                         const ByHead& by_head, float* logs = nullptr) {
    float logits[NT][4] = {};
    const uint32_t k = shared_address(page), v = k + S::kTileBytes;
#pragma unroll
    for (int step = 0; step < kSteps; step += 2) {
      uint32_t keys[2][4];
      load_keys<S::kType, D>(k, step / 2, keys);
      if constexpr (S::kRotates) rotate(p.angles, angles, step, keys);
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        multiply<T>(logits[n], keys[0], q_[n][step]);
        multiply<T>(logits[n], keys[1], q_[n][step + 1]);
      }
    }
    Scales scales = load_scales(page, seen);
    if constexpr (kHasUnit) {
      raise_unit(kHeadroom * fmaxf(scales.values[0], scales.values[1]));
      for (float& scale : scales.values) scale = __fdividef(scale, unit_);
    }
    uint32_t weights[NT][2];
#pragma unroll
    for (int n = 0; n < NT; ++n) weigh(p, n, logits[n], by_head, scales, weights[n], logs);
#pragma unroll
    for (int step = 0; step < kSteps; step += 2) {
      uint32_t values[2][4];
      load_values<S::kType, D>(v, step / 2, values);
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        multiply<T>(sums_[n][step], values[0], weights[n]);
        multiply<T>(sums_[n][step + 1], values[1], weights[n]);
      }
    }
  }

  // The heads whose logits this lane has.
  __device__ static uint32_t head(int n, int side) { return n * 8 + lane() % 4 * 2 + side; }

  // base and total [NT * 8], sums [group, D].
  __device__ void publish(uint32_t group, float* base, float* total, float* sums) {
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        float all = total_[n][side];
        for (int mask = 4; mask < 32; mask *= 2) all += __shfl_xor_sync(~0u, all, mask);
        const uint32_t head = this->head(n, side);
        if (lane() < 4) {
          base[head] = base_[n][side];
          total[head] = all;
        }
        if (head >= group) continue;
        const float unit = kHasUnit ? unit_ : 1.0f;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          float* to = sums + head * D + step * 16;
          to[Order::row(lane() / 4, 0)] = sums_[n][step][side] * unit;
          to[Order::row(lane() / 4, 1)] = sums_[n][step][side + 2] * unit;
        }
      }
    }
  }

 private:
  // Keys of two steps of the page that has a row of angles.
  __device__ static void rotate(const KeyAngles& angles, uint32_t row, uint32_t step,
                                uint32_t (&keys)[2][4]) {
    const auto* of_page =
        reinterpret_cast<const float2*>(angles.of_pages) + size_t{row} * angles.pairs;
    const auto* of_tokens = reinterpret_cast<const float2*>(angles.of_tokens);
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t dim = (step + i / 2) * 16 + Order::summed(lane() % 4, i % 2), pair = dim / 2;
      if (pair >= angles.pairs) continue;
      const float2 page = of_page[pair];
#pragma unroll
      for (uint32_t side = 0; side < 2; ++side) {
        const float2 turn = of_tokens[(lane() / 4 + side * 8) * angles.pairs + pair];
        const float2 angle = {page.x * turn.x - page.y * turn.y, page.x * turn.y + page.y * turn.x};
        uint32_t& key = keys[i / 2][side + i % 2 * 2];
        const float2 two = unpack<T>(key);
        key = pack<T>(two.x * angle.x - two.y * angle.y, two.x * angle.y + two.y * angle.x);
      }
    }
  }

  static constexpr bool kHasUnit = S::kType == KvType::kFP8;

  __device__ static uint32_t lane() { return threadIdx.x % 32; }

  // Tokens that are not read may have any scale.
  __device__ static Scales load_scales(const unsigned char* page, uint32_t seen) {
    Scales scales;
    for (int half = 0; half < 2; ++half) {
      const uint32_t token = lane() / 4 + half * 8;
      scales.keys[half] = token_scale<S::kType, D>(page, token);
      const float values = token_scale<S::kType, D>(page + S::kTileBytes, token);
      scales.values[half] = !kHasUnit || (seen >> token & 1) != 0 ? values : 0.0f;
    }
    return scales;
  }

  // unit: that this lane's tokens ask for.
  __device__ void raise_unit(float unit) {
    if (!__any_sync(~0u, unit > unit_)) return;
    for (int mask = 4; mask < 32; mask *= 2) {
      unit = fmaxf(unit, __shfl_xor_sync(~0u, unit, mask));
    }
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
      for (int side = 0; side < 2; ++side) scale_sums(n, side, unit_ / unit);
    }
    unit_ = unit;
  }

  __device__ void scale_sums(int n, int side, float factor) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      sums_[n][step][side] *= factor;
      sums_[n][step][side + 2] *= factor;
    }
  }

  // From logits of tokens (g, g + 8) and heads (2t, 2t + 1) to the right operand of the sum of
  // values.
  template <typename Seen>
  __device__ void weigh(const Params& p, int n, float (&logits)[4], const Seen& seen,
                        const Scales& scales, uint32_t (&weights)[2], float* logs) {
    for (int i = 0; i < 4; ++i) {
      logits[i] *= p.scale * scales.keys[i / 2];
      if (p.soft_cap > 0.0f) logits[i] = p.soft_cap * tanhf(logits[i] / p.soft_cap);
      logits[i] *= kLog2E;
      if ((seen(n, i % 2) >> (lane() / 4 + i / 2 * 8) & 1) == 0) logits[i] = -INFINITY;
    }
    const float top[2] = {fmaxf(logits[0], logits[2]), fmaxf(logits[1], logits[3])};
    const bool exceeds = top[0] > base_[n][0] + kSlack || top[1] > base_[n][1] + kSlack;
    if (__any_sync(~0u, exceeds)) move_base(n, top);
    for (int i = 0; i < 4; ++i) {
      const float base = base_[n][i % 2];
      logits[i] = exp2_fast(logits[i] - (base == -INFINITY ? 0.0f : base));
      total_[n][i % 2] += logits[i];
    }
    if (logs != nullptr)
      write_logs(p, n, top, {logits[0] + logits[2], logits[1] + logits[3]}, logs);
    for (int half = 0; half < 2; ++half) {
      const float scale = scales.values[half];
      weights[half] =
          transpose_matrix(pack<T>(logits[2 * half] * scale, logits[2 * half + 1] * scale));
    }
  }

  // Of a page; top, sums: of this lane's tokens, sums relative to bases.
  __device__ void write_logs(const Params& p, int n, const float (&top)[2], float2 sums,
                             float* logs) {
    float values[2] = {p.page_peaks ? top[0] : sums.x, p.page_peaks ? top[1] : sums.y};
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      float& value = values[side];
      for (int mask = 4; mask < 32; mask *= 2) {
        const float other = __shfl_xor_sync(~0u, value, mask);
        value = p.page_peaks ? fmaxf(value, other) : value + other;
      }
      const uint32_t head = this->head(n, side);
      if (lane() >= 4 || head >= p.group) continue;
      if (!p.page_peaks) value = value > 0.0f ? base_[n][side] + __log2f(value) : -INFINITY;
      logs[size_t{head} * p.lists.capacity] = value;
    }
  }

  __device__ void move_base(int n, const float (&top)[2]) {
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      float base = top[side];
      for (int mask = 4; mask < 32; mask *= 2) {
        base = fmaxf(base, __shfl_xor_sync(~0u, base, mask));
      }
      base = fmaxf(ceilf(base), base_[n][side]);
      const float factor = base == -INFINITY ? 1.0f : exp2_fast(base_[n][side] - base);
      base_[n][side] = base;
      total_[n][side] *= factor;
      scale_sums(n, side, factor);
    }
  }

  uint32_t q_[NT][kSteps][2];
  float base_[NT][2], total_[NT][2];  // total: over this lane's tokens
  float sums_[NT][kSteps][4];
  float unit_;  // of sums_, where values have scales
};

// The pages of a block's share that one warp takes: one is read while the id of the next is on its
// way. All lanes call.
template <typename S>
class PageStream {
 public:
  // full: a barrier of one arrival; unused where there are no bulk copies.
  __device__ PageStream(const Params& p, const uint32_t* first_page, uint32_t pair, uint32_t page,
                        uint32_t end, unsigned char* buffer, uint64_t* full)
      : p_(p),
        first_page_(first_page),
        buffer_(buffer),
        full_(full),
        pair_(pair),
        page_(page),
        end_(end) {
    find();
  }

  // Overwrites the buffer, which nobody reads any more, with the next page, if there is one.
  __device__ void fetch() {
    __syncwarp();
    if (page_ >= end_) return;
    const size_t tile = size_t{id_} * p_.n_kv_head + pair_ % p_.n_kv_head;
    const unsigned char* from = p_.pages + tile * S::kPageBytes;
    const uint32_t lane = threadIdx.x % 32;
#if __CUDA_ARCH__ >= 900
    if (lane == 0) {
      barrier_expect(full_, S::kPageBytes);
      bulk_copy_once(buffer_, from, S::kPageBytes, full_);
    }
#else
    for (uint32_t at = lane * 16; at < S::kPageBytes; at += 32 * 16) {
      copy_16_bytes_once(buffer_ + at, from + at);
    }
#endif
    page_ += S::kWarps;
    find();
  }

  // fetch() beside the kernel ahead, whose end this waits for: it may write a list's last page.
  __device__ void fetch_first() {
    const bool now = p_.known_pages && page_ < end_ && page_ + 1 < first_page_[pair_ + 1];
    if (now) fetch();
    if (p_.known_pages) wait_for_kernels_before();
    if (!now) fetch();
  }

  // Until what fetch() asked for is there.
  __device__ void wait() {
#if __CUDA_ARCH__ >= 900
    barrier_wait(full_, parity_);
    parity_ ^= 1;
#else
    wait_for_copies();
    __syncwarp();
#endif
  }

 private:
  __device__ void find() {
    if (page_ >= end_) return;
    while (first_page_[pair_ + 1] <= page_) ++pair_;
    id_ = p_.lists.pages[p_.list(pair_) * p_.lists.capacity + page_ - first_page_[pair_]];
  }

  const Params& p_;
  const uint32_t* first_page_;
  unsigned char* buffer_;
  uint64_t* full_;
  uint32_t pair_, page_, end_, id_ = 0, parity_ = 0;
};

}  // namespace decode

}  // namespace reprise::kernels::cuda
