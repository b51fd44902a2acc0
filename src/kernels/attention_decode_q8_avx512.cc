// Decode over pages of q8_0 in whole numbers: pairs of values widened to 16 bits, times q and
// weights that are 16 bits of the row's largest. A K scale belongs to a lane and is left to the
// logits, a V scale to the weights. Pages that are rotated at read are scored in floats.
#include "kernels/attention_decode_avx512.h"
#include "kernels/attention_floats_avx512.h"

namespace reprise::kernels {
namespace {

constexpr float kMaxStep = 32767.0f;
// A largest number below this one counts as none: what it divides must stay finite.
constexpr float kLeast = 1e-30f;

// How many steps make 1, so that `largest` is kMaxStep of them.
inline float steps_of(float largest) { return largest > kLeast ? kMaxStep / largest : 0.0f; }

inline __m512i widen_pairs(const std::byte* at) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}

// 16 numbers in [-kMaxStep, kMaxStep] as 8 pairs.
inline __m256i to_pairs(__m512 x) { return _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(x)); }

struct Q8Math {
  using Softmax = Softmax512;
  static constexpr size_t kSums = 1;
  struct Query {
    float* rows;      // [rows, head_dim]
    uint32_t* pairs;  // [rows, head_dim / 2]
    float* step;      // [rows] that pairs count
  };
  template <int R>
  struct Weights {
    __m512 tokens[R];
  };

  static Query take(const AttendArgs& args, Arena& arena) {
    const size_t elements = args.rows * args.layout->head_dim;
    return {arena.take<float>(elements), arena.take<uint32_t>(elements / 2),
            arena.take<float>(args.rows)};
  }

  static void load(const AttendArgs& args, size_t row, const Query& query) {
    const size_t head_dim = args.layout->head_dim;
    float* q = query.rows + row * head_dim;
    scale_row<false>(args.q_row(row), head_dim, args.scale, reinterpret_cast<uint32_t*>(q));
    __m512 largest = _mm512_setzero_ps();
    for (size_t dim = 0; dim < head_dim; dim += kLanes) {
      largest = _mm512_max_ps(largest, _mm512_abs_ps(_mm512_loadu_ps(q + dim)));
    }
    const float most = _mm512_reduce_max_ps(largest);
    const __m512 steps = _mm512_set1_ps(steps_of(most));
    query.step[row] = most / kMaxStep;
    for (size_t dim = 0; dim < head_dim; dim += kLanes) {
      const __m256i pairs = to_pairs(_mm512_mul_ps(_mm512_loadu_ps(q + dim), steps));
      auto* to = query.pairs + (row * head_dim + dim) / 2;
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), pairs);
    }
  }

  static const std::byte* keys(const AttendArgs&, const Query&, const PageSpan& page) {
    return page.k;
  }

  template <int R>
  [[gnu::always_inline]] static void score(const AttendArgs& args, const Query& query, size_t row,
                                           size_t head_dim, const PageSpan& page, const std::byte*,
                                           const Ahead& ahead, __m512 (&logits)[R]) {
    if (page.cos_sin != nullptr) {
      const float* q = query.rows + row * head_dim;
      return score_floats<KvType::kQ8_0, R, true>(args, q, head_dim, page, ahead, logits);
    }
    for (__m512& logit : logits) logit = _mm512_setzero_ps();
    for (size_t dim = 0; dim < head_dim; dim += kQ8Block) {
      score_block<R>(query.pairs + (row * head_dim + dim) / 2, head_dim, page, ahead, dim, logits);
    }
    for (int r = 0; r < R; ++r) {
      logits[r] = _mm512_mul_ps(logits[r], _mm512_set1_ps(query.step[row + r]));
    }
  }

  // The dims that share a scale; even and odd pairs of them have sums of their own.
  template <int R>
  [[gnu::always_inline]] static void score_block(const uint32_t* q, size_t head_dim,
                                                 const PageSpan& page, const Ahead& ahead,
                                                 size_t dim, __m512 (&logits)[R]) {
    const size_t step_bytes = tile_bytes(KvType::kQ8_0, head_dim) / (head_dim / 4);
    __m512i even[R], odd[R];
    for (int r = 0; r < R; ++r) even[r] = odd[r] = _mm512_setzero_si512();
    const std::byte* keys = page.k + dim * kPageTokens;
#pragma GCC unroll 2
    for (size_t step = 0; step < kQ8Block / 2; step += 2, keys += 4 * kPageTokens) {
      ahead.fetch(Ahead::kKeys, (dim / 2 + step) / 2, step_bytes);
      const __m512i first = widen_pairs(keys), second = widen_pairs(keys + 2 * kPageTokens);
      for (int r = 0; r < R; ++r) {
        const uint32_t* of_row = q + static_cast<size_t>(r) * head_dim / 2 + step;
        even[r] = _mm512_dpwssd_epi32(even[r], first, broadcast(of_row));
        odd[r] = _mm512_dpwssd_epi32(odd[r], second, broadcast(of_row + 1));
      }
    }
    const __m512 scale = _mm512_loadu_ps(tile_scales(KvType::kQ8_0, head_dim, page.k, dim));
    for (int r = 0; r < R; ++r) {
      const __m512 sum = _mm512_cvtepi32_ps(_mm512_add_epi32(even[r], odd[r]));
      logits[r] = _mm512_fmadd_ps(sum, scale, logits[r]);
    }
  }

  template <int R>
  static void weigh(Weights<R>& weights, int r, __m512 of_row) {
    weights.tokens[r] = of_row;
  }

  template <int R>
  [[gnu::always_inline]] static void sum(const Weights<R>& weights, size_t head_dim,
                                         const PageSpan& page, const Ahead& ahead, float* sums,
                                         size_t width) {
    size_t dim = 0;
    for (; dim + 2 * kQ8Block <= head_dim; dim += 2 * kQ8Block) {
      sum_blocks<R, 2>(weights, head_dim, page, ahead, dim, sums + dim, width);
    }
    if (dim < head_dim) sum_blocks<R, 1>(weights, head_dim, page, ahead, dim, sums + dim, width);
  }

  // N times the dims that share a scale. Weights of all are made before the first are multiplied:
  // that takes longer than its instructions, one after the other.
  template <int R, int N>
  [[gnu::always_inline]] static void sum_blocks(const Weights<R>& weights, size_t head_dim,
                                                const PageSpan& page, const Ahead& ahead,
                                                size_t dim, float* sums, size_t width) {
    BlockWeights<R> of_block[N];
    for (int n = 0; n < N; ++n) {
      const size_t first = dim + n * kQ8Block;
      scale_weights<R>(weights, tile_scales(KvType::kQ8_0, head_dim, page.v, first), of_block[n]);
    }
    for (int n = 0; n < N; ++n) {
      sum_block<R>(of_block[n], head_dim, page, ahead, dim + n * kQ8Block, sums + n * kQ8Block,
                   width);
    }
  }

  template <int R>
  struct BlockWeights {
    alignas(64) uint32_t pairs[R][kPairs];
    float step[R];
  };

  template <int R>
  [[gnu::always_inline]] static void scale_weights(const Weights<R>& weights, const float* scales,
                                                   BlockWeights<R>& out) {
    const __m512 scale = _mm512_loadu_ps(scales);
    for (int r = 0; r < R; ++r) {
      const __m512 scaled = _mm512_mul_ps(weights.tokens[r], scale);
      const float most = _mm512_reduce_max_ps(scaled);
      out.step[r] = most / kMaxStep;
      const __m256i pairs = to_pairs(_mm512_mul_ps(scaled, _mm512_set1_ps(steps_of(most))));
      _mm256_store_si256(reinterpret_cast<__m256i*>(out.pairs[r]), pairs);
    }
  }

  template <int R>
  [[gnu::always_inline]] static void sum_block(const BlockWeights<R>& weights, size_t head_dim,
                                               const PageSpan& page, const Ahead& ahead, size_t dim,
                                               float* sums, size_t width) {
    const size_t pair_bytes = tile_bytes(KvType::kQ8_0, head_dim) / (head_dim / kQ8Block * kPairs);
    const std::byte* v = page.v + 2 * dim;
    __m512i low[R], high[R];
    for (int r = 0; r < R; ++r) low[r] = high[r] = _mm512_setzero_si512();
#pragma GCC unroll 2
    for (size_t pair = 0; pair < kPairs; ++pair, v += 2 * head_dim) {
      ahead.fetch(Ahead::kValues, dim / kQ8Block * kPairs + pair, pair_bytes);
      const __m512i first = widen_pairs(v), second = widen_pairs(v + 2 * kLanes);
      for (int r = 0; r < R; ++r) {
        const __m512i weight = broadcast(weights.pairs[r] + pair);
        low[r] = _mm512_dpwssd_epi32(low[r], first, weight);
        high[r] = _mm512_dpwssd_epi32(high[r], second, weight);
      }
    }
    for (int r = 0; r < R; ++r) {
      const __m512 size = _mm512_set1_ps(weights.step[r]);
      float* to = sums + r * width;
      add_to(to, _mm512_mul_ps(_mm512_cvtepi32_ps(low[r]), size));
      add_to(to + kLanes, _mm512_mul_ps(_mm512_cvtepi32_ps(high[r]), size));
    }
  }

  static void add_to(float* to, __m512 x) {
    _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), x));
  }

  static void finish(size_t, float*) {}
};

}  // namespace

void attend_decode_q8_avx512(std::span<const AttendArgs> heads, std::byte* scratch) {
  attend_decode<Q8Math>(heads, scratch);
}

}  // namespace reprise::kernels
