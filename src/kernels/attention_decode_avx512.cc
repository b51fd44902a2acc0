// Decode over pages of bf16: products of pairs, as the tiles hold them.
#include "kernels/attention_decode_avx512.h"

#include "kernels/attention_tiles.h"

namespace reprise::kernels {
namespace {

struct Bf16Math {
  using Softmax = Softmax512;
  static constexpr size_t kSums = 1;
  static constexpr size_t kAhead = 2;
  struct Query {
    uint32_t* rows;  // [rows, head_dim / 2] pairs
    uint32_t* keys;  // a K tile that is rotated at read
  };
  template <int R>
  struct Weights {
    alignas(64) uint32_t pairs[R * kPairs];  // of tokens
  };

  static Query take(const AttendArgs& args, Arena& arena) {
    const size_t steps = args.layout->head_dim / 2;
    return {arena.take<uint32_t>(args.rows * steps), arena.take<uint32_t>(kPageTokens * steps)};
  }

  static void load(const AttendArgs& args, size_t row, const Query& query) {
    const size_t head_dim = args.layout->head_dim;
    uint32_t* out = query.rows + row * head_dim / 2;
    scale_row<true>(args.q + row * args.q_stride, head_dim, args.scale, out);
  }

  static const std::byte* keys(const AttendArgs& args, const Query& query, const PageSpan& page) {
    if (page.cos_sin == nullptr) return page.k;
    bf16_k_tile_avx512(args, page, query.keys);
    return reinterpret_cast<const std::byte*>(query.keys);
  }

  // Even and odd pairs of dims have sums of their own.
  template <int R>
  [[gnu::always_inline]] static void score(const AttendArgs&, const Query& query, size_t row,
                                           size_t head_dim, const PageSpan&, const std::byte* keys,
                                           const Ahead& ahead, __m512 (&logits)[R]) {
    const size_t steps = head_dim / 2;
    const uint32_t* q = query.rows + row * steps;
    __m512 odd[R];
    for (int r = 0; r < R; ++r) logits[r] = odd[r] = _mm512_setzero_ps();
    size_t step = 0;
#pragma GCC unroll 4
    for (; step + 1 < steps; step += 2, keys += 2 * sizeof(__m512i)) {
      ahead.fetch(Ahead::kKeys, step / 2, 2 * sizeof(__m512i));
      const __m512i first = _mm512_loadu_si512(keys);
      const __m512i second = _mm512_loadu_si512(keys + sizeof(__m512i));
      for (int r = 0; r < R; ++r) {
        const uint32_t* of_row = q + static_cast<size_t>(r) * steps + step;
        logits[r] = add_bf16_products(logits[r], broadcast(of_row), first);
        odd[r] = add_bf16_products(odd[r], broadcast(of_row + 1), second);
      }
    }
    if (step < steps) {
      const __m512i last = _mm512_loadu_si512(keys);
      for (int r = 0; r < R; ++r) {
        const uint32_t* of_row = q + static_cast<size_t>(r) * steps + step;
        logits[r] = add_bf16_products(logits[r], broadcast(of_row), last);
      }
    }
    for (int r = 0; r < R; ++r) logits[r] = _mm512_add_ps(logits[r], odd[r]);
  }

  template <int R>
  static void weigh(Weights<R>& weights, int r, __m512 of_row) {
    const __m256bh packed = _mm512_cvtneps_pbh(of_row);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(weights.pairs + r * kPairs), (__m256i)packed);
  }

  template <int R>
  [[gnu::always_inline]] static void sum(const Weights<R>& weights, size_t head_dim,
                                         const PageSpan& page, const Ahead& ahead, float* sums,
                                         size_t width) {
    constexpr size_t kVectors = 4;
    size_t dim = 0;
    for (; dim + kVectors * kLanes <= width; dim += kVectors * kLanes) {
      sum_vectors<R, kVectors>(weights, head_dim, page, ahead, dim, sums + dim, width);
    }
    for (; dim < width; dim += kLanes) {
      sum_vectors<R, 1>(weights, head_dim, page, ahead, dim, sums + dim, width);
    }
  }

  // N vectors of dims of R rows.
  template <int R, int N>
  [[gnu::always_inline]] static void sum_vectors(const Weights<R>& weights, size_t head_dim,
                                                 const PageSpan& page, const Ahead& ahead,
                                                 size_t dim, float* sums, size_t width) {
    const __mmask16 last = first_lanes(static_cast<unsigned>(head_dim - dim - (N - 1) * kLanes));
    __m512 acc[R][N];
    for (int r = 0; r < R; ++r) {
      for (int n = 0; n < N; ++n) acc[r][n] = _mm512_loadu_ps(sums + r * width + n * kLanes);
    }
    const uint32_t* v = reinterpret_cast<const uint32_t*>(page.v) + dim;
#pragma GCC unroll 2
    for (size_t pair = 0; pair < kPairs; ++pair, v += head_dim) {
      ahead.fetch(Ahead::kValues, dim / (N * kLanes) * kPairs + pair, N * sizeof(__m512i));
      __m512i values[N];
      for (int n = 0; n < N; ++n) {
        values[n] = n + 1 < N ? _mm512_loadu_si512(v + n * kLanes)
                              : _mm512_maskz_loadu_epi32(last, v + n * kLanes);
      }
      for (int r = 0; r < R; ++r) {
        const __m512i weight = broadcast(weights.pairs + r * kPairs + pair);
        for (int n = 0; n < N; ++n) acc[r][n] = add_bf16_products(acc[r][n], weight, values[n]);
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int n = 0; n < N; ++n) _mm512_storeu_ps(sums + r * width + n * kLanes, acc[r][n]);
    }
  }

  static void finish(size_t, float*) {}
};

}  // namespace

void attend_decode_avx512(std::span<const AttendArgs> heads, std::byte* scratch) {
  switch (heads[0].layout->type) {
    case KvType::kBF16:
      return attend_decode<Bf16Math>(heads, scratch);
    case KvType::kQ8_0:
      return attend_decode_q8_avx512(heads, scratch);
    default:
      return attend_decode_float_avx512(heads, scratch);
  }
}

}  // namespace reprise::kernels
