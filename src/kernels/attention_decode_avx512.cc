// Decode over pages of bf16 and bf12: products of pairs of bf16, as the tiles hold them or as they
// are unpacked in registers. Scales of bf12, powers of two, are left to logits and weights.
#include "kernels/attention_decode_avx512.h"

#include "kernels/attention_tiles.h"
#include "kernels/tile_avx512.h"

namespace reprise::kernels {
namespace {

// N lines of 32 elements from element `first` of a tile, without their scales.
template <KvType type, int N>
[[gnu::always_inline]] inline void load_lines(size_t head_dim, const std::byte* tile, size_t first,
                                              __m512i (&lines)[N]) {
  if constexpr (type == KvType::kBF12) {
    load_bf12(bf12_tile(tile, head_dim), first, lines);
  } else {
    for (int n = 0; n < N; ++n) {
      lines[n] = _mm512_loadu_si512(tile + first * sizeof(uint16_t) + n * sizeof(__m512i));
    }
  }
}

template <KvType type>
struct PairMath {
  using Softmax = Softmax512;
  static constexpr size_t kSums = 1;
  struct Query {
    uint32_t* rows;  // [rows, head_dim / 2] pairs
    uint32_t* keys;  // a K tile that is rotated at read
  };
  template <int R>
  struct Weights {
    __m512 tokens[R];
  };

  static Query take(const AttendArgs& args, Arena& arena) {
    const size_t steps = args.layout->head_dim / 2;
    return {arena.take<uint32_t>(args.rows * steps), arena.take<uint32_t>(kPageTokens * steps)};
  }

  static void load(const AttendArgs& args, size_t row, const Query& query) {
    const size_t head_dim = args.layout->head_dim;
    uint32_t* out = query.rows + row * head_dim / 2;
    scale_row<true>(args.q_row(row), head_dim, args.scale, out);
  }

  static const std::byte* keys(const AttendArgs& args, const Query& query, const PageSpan& page) {
    if (page.cos_sin == nullptr) return page.k;
    bf16_k_tile_avx512(args, page, query.keys);
    return reinterpret_cast<const std::byte*>(query.keys);
  }

  template <int R>
  [[gnu::always_inline]] static void score(const AttendArgs&, const Query& query, size_t row,
                                           size_t head_dim, const PageSpan& page,
                                           const std::byte* keys, const Ahead& ahead,
                                           __m512 (&logits)[R]) {
    const uint32_t* q = query.rows + row * head_dim / 2;
    if (!has_scales(type) || page.cos_sin != nullptr) {
      return score_tile<KvType::kBF16, R>(q, head_dim, keys, ahead, logits);
    }
    score_tile<type, R>(q, head_dim, keys, ahead, logits);
    const __m512 scales = _mm512_loadu_ps(tile_scales(type, head_dim, keys, 0));
    for (int r = 0; r < R; ++r) logits[r] = _mm512_mul_ps(logits[r], scales);
  }

  // Even and odd pairs of dims have sums of their own.
  template <KvType stored, int R>
  [[gnu::always_inline]] static void score_tile(const uint32_t* q, size_t head_dim,
                                                const std::byte* keys, const Ahead& ahead,
                                                __m512 (&logits)[R]) {
    const size_t steps = head_dim / 2;
    __m512 odd[R];
    for (int r = 0; r < R; ++r) logits[r] = odd[r] = _mm512_setzero_ps();
    size_t step = 0;
#pragma GCC unroll 4
    for (; step + 1 < steps; step += 2) {
      ahead.fetch(Ahead::kKeys, step / 2, 2 * line_bytes(head_dim));
      __m512i pairs[2];
      load_lines<stored>(head_dim, keys, step * 2 * kPageTokens, pairs);
      for (int r = 0; r < R; ++r) {
        const uint32_t* of_row = q + static_cast<size_t>(r) * steps + step;
        logits[r] = add_bf16_products(logits[r], broadcast(of_row), pairs[0]);
        odd[r] = add_bf16_products(odd[r], broadcast(of_row + 1), pairs[1]);
      }
    }
    if (step < steps) {
      __m512i last[1];
      load_lines<stored>(head_dim, keys, step * 2 * kPageTokens, last);
      for (int r = 0; r < R; ++r) {
        const uint32_t* of_row = q + static_cast<size_t>(r) * steps + step;
        logits[r] = add_bf16_products(logits[r], broadcast(of_row), last[0]);
      }
    }
    for (int r = 0; r < R; ++r) logits[r] = _mm512_add_ps(logits[r], odd[r]);
  }

  // What a step of a line fetches ahead of a tile, so that its lines fetch all of it.
  static size_t line_bytes(size_t head_dim) {
    if constexpr (!has_scales(type)) return sizeof(__m512i);
    const size_t lines = head_dim / 2;
    return (tile_bytes(type, head_dim) + lines - 1) / lines;
  }

  template <int R>
  static void weigh(Weights<R>& weights, int r, __m512 of_row) {
    weights.tokens[r] = of_row;
  }

  template <int R>
  [[gnu::always_inline]] static void sum(const Weights<R>& weights, size_t head_dim,
                                         const PageSpan& page, const Ahead& ahead, float* sums,
                                         size_t width) {
    constexpr size_t kVectors = 4;
    alignas(64) uint32_t pairs[R * kPairs];  // of tokens
    for (int r = 0; r < R; ++r) {
      __m512 tokens = weights.tokens[r];
      if constexpr (has_scales(type)) {
        tokens = _mm512_mul_ps(tokens, _mm512_loadu_ps(tile_scales(type, head_dim, page.v, 0)));
      }
      const __m256bh packed = _mm512_cvtneps_pbh(tokens);
      _mm256_store_si256(reinterpret_cast<__m256i*>(pairs + r * kPairs), (__m256i)packed);
    }
    size_t dim = 0;
    for (; dim + kVectors * kLanes <= width; dim += kVectors * kLanes) {
      sum_vectors<R, kVectors>(pairs, head_dim, page, ahead, dim, sums + dim, width);
    }
    for (; dim < width; dim += kLanes) {
      sum_vectors<R, 1>(pairs, head_dim, page, ahead, dim, sums + dim, width);
    }
  }

  // N vectors of dims of R rows.
  template <int R, int N>
  [[gnu::always_inline]] static void sum_vectors(const uint32_t* weights, size_t head_dim,
                                                 const PageSpan& page, const Ahead& ahead,
                                                 size_t dim, float* sums, size_t width) {
    __m512 acc[R][N];
    for (int r = 0; r < R; ++r) {
      for (int n = 0; n < N; ++n) acc[r][n] = _mm512_loadu_ps(sums + r * width + n * kLanes);
    }
#pragma GCC unroll 2
    for (size_t pair = 0; pair < kPairs; ++pair) {
      ahead.fetch(Ahead::kValues, dim / (N * kLanes) * kPairs + pair, N * line_bytes(head_dim));
      __m512i values[N];
      load_values<N>(head_dim, page.v, pair, dim, values);
      for (int r = 0; r < R; ++r) {
        const __m512i weight = broadcast(weights + r * kPairs + pair);
        for (int n = 0; n < N; ++n) acc[r][n] = add_bf16_products(acc[r][n], weight, values[n]);
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int n = 0; n < N; ++n) _mm512_storeu_ps(sums + r * width + n * kLanes, acc[r][n]);
    }
  }

  // N vectors of dims, zero beyond head_dim, of a pair of tokens.
  template <int N>
  [[gnu::always_inline]] static void load_values(size_t head_dim, const std::byte* tile,
                                                 size_t pair, size_t dim, __m512i (&out)[N]) {
    const size_t first = 2 * (pair * head_dim + dim);
    if constexpr (has_scales(type)) return load_lines<type>(head_dim, tile, first, out);
    const __mmask16 last = first_lanes(static_cast<unsigned>(head_dim - dim - (N - 1) * kLanes));
    const std::byte* v = tile + first * sizeof(uint16_t);
    for (int n = 0; n < N; ++n, v += sizeof(__m512i)) {
      out[n] = n + 1 < N ? _mm512_loadu_si512(v) : _mm512_maskz_loadu_epi32(last, v);
    }
  }

  static void finish(size_t, float*) {}
};

}  // namespace

void attend_decode_avx512(std::span<const AttendArgs> heads, std::byte* scratch) {
  switch (heads[0].layout->type) {
    case KvType::kBF16:
      return attend_decode<PairMath<KvType::kBF16>>(heads, scratch);
    case KvType::kBF12:
      return attend_decode<PairMath<KvType::kBF12>>(heads, scratch);
    case KvType::kQ8_0:
      return attend_decode_q8_avx512(heads, scratch);
    default:
      return attend_decode_float_avx512(heads, scratch);
  }
}

}  // namespace reprise::kernels
