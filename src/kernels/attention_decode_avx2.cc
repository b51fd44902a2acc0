// Decode with AVX2 over pages of any type, in floats.
#include <span>

#include "kernels/attention_decode.h"
#include "kernels/softmax_avx2.h"
#include "kernels/tile_avx2.h"

namespace reprise::kernels {
namespace {

// logits[r] of R rows of q [head_dim] and the 16 tokens of a K tile. kRotates: the page asks for
// it. A sum waits for one addition of every pair of dims instead of two products.
template <KvType type, int R, bool kRotates>
[[gnu::always_inline]] inline void score_tile(const AttendArgs& args, const float* q,
                                              size_t head_dim, const PageSpan& page,
                                              const Ahead& ahead, Logits256 (&logits)[R]) {
  const size_t pair_bytes = tile_bytes(type, head_dim) / (head_dim / 2);
  __m256 sums[R][2];  // logits may lie in memory
  unrolled<2 * R>([&]<int i>()
                      __attribute__((always_inline)) { sums[i / 2][i % 2] = _mm256_setzero_ps(); });
#pragma GCC unroll 2
  for (size_t pair = 0; pair < head_dim / 2; ++pair) {
    ahead.fetch(Ahead::kKeys, pair, pair_bytes);
    const auto low = load_k_pair<type, kRotates>(head_dim, args.rope_pairs, page, pair, 0);
    const auto high = load_k_pair<type, kRotates>(head_dim, args.rope_pairs, page, pair, 8);
    unrolled<R>([&]<int r>() __attribute__((always_inline)) {
      const __m256 first = _mm256_broadcast_ss(q + r * head_dim + 2 * pair);
      const __m256 second = _mm256_broadcast_ss(q + r * head_dim + 2 * pair + 1);
      const __m256 a = _mm256_fmadd_ps(second, low.second, _mm256_mul_ps(first, low.first));
      const __m256 b = _mm256_fmadd_ps(second, high.second, _mm256_mul_ps(first, high.first));
      sums[r][0] = _mm256_add_ps(sums[r][0], a);
      sums[r][1] = _mm256_add_ps(sums[r][1], b);
    });
  }
  unrolled<R>([&]<int r>() __attribute__((always_inline)) {
    logits[r] = {sums[r][0], sums[r][1]};
  });
}

struct Softmax256 {
  using Logits = Logits256;

  static void clear(const RowSums& sums) { clear_row(sums); }

  // All rows together: those of one wait for each other.
  template <int R>
  [[gnu::always_inline]] static void weigh(const PageOfRows& seen, const RowSums& sums,
                                           Logits256 (&logits)[R]) {
    if (seen.adjusted || seen.args.logits != nullptr) adjust(seen, std::span(logits));
    __m256 beyond = _mm256_setzero_ps();
    unrolled<R>([&]<int r>() __attribute__((always_inline)) {
      beyond = _mm256_or_ps(beyond, beyond_base(logits[r].top(), sums.base[r]));
    });
    if (_mm256_movemask_ps(beyond) != 0) {
      for (size_t r = 0; r < R; ++r) move_base(logits[r].top(), sums.from(r));
    }
    unrolled<R>([&]<int r>() __attribute__((always_inline)) {
      logits[r] = weights_of(logits[r], sums.from(r));
    });
  }

  [[gnu::noinline]] static void adjust(const PageOfRows& seen, std::span<Logits256> logits) {
    for (size_t r = 0; r < logits.size(); ++r) {
      const size_t row = seen.row + r;
      if (seen.adjusted) logits[r] = adjust_logits(seen.args, row, seen.page, logits[r]);
      if (seen.args.logits != nullptr) keep_logits(seen.args, row, seen.page, logits[r]);
    }
  }

  static void finish(const RowSums& sums, size_t head_dim, float* out, float* lse) {
    finish_row(sums, head_dim, out, lse);
  }
};

template <KvType type>
struct FloatMath : FloatRows {
  using Softmax = Softmax256;
  static constexpr size_t kSums = 1;
  template <int R>
  struct Weights {
    alignas(32) float tokens[R][kPageTokens];
  };

  static void load(const AttendArgs& args, size_t row, const Query& query) {
    const size_t head_dim = args.layout->head_dim;
    scale_row(args.q_row(row), head_dim, args.scale, query.rows + row * head_dim);
  }

  template <int R>
  [[gnu::always_inline]] static void score(const AttendArgs& args, const Query& query, size_t row,
                                           size_t head_dim, const PageSpan& page, const std::byte*,
                                           const Ahead& ahead, Logits256 (&logits)[R]) {
    const float* q = query.rows + row * head_dim;
    if (page.cos_sin != nullptr) {
      return score_tile<type, R, true>(args, q, head_dim, page, ahead, logits);
    }
    score_tile<type, R, false>(args, q, head_dim, page, ahead, logits);
  }

  template <int R>
  static void weigh(Weights<R>& weights, int r, const Logits256& of_row) {
    _mm256_store_ps(weights.tokens[r], of_row.low);
    _mm256_store_ps(weights.tokens[r] + kVector, of_row.high);
  }

  // In the order in which values lie, so that they are a stream, too.
  template <int R>
  [[gnu::always_inline]] static void sum(const Weights<R>& weights, size_t head_dim,
                                         const PageSpan& page, const Ahead& ahead, float* sums,
                                         size_t width) {
    const std::byte* const values = page.v;
    const size_t pair_bytes = tile_bytes(type, head_dim) / kPairs;
    for (size_t pair = 0; pair < kPairs; ++pair) {
      ahead.fetch(Ahead::kValues, pair, pair_bytes);
      __m256 first[R], second[R];
      unrolled<R>([&]<int r>() __attribute__((always_inline)) {
        first[r] = _mm256_broadcast_ss(weights.tokens[r] + 2 * pair);
        second[r] = _mm256_broadcast_ss(weights.tokens[r] + 2 * pair + 1);
      });
      const auto add = [&](size_t dim, const PairVectors& v) __attribute__((always_inline)) {
        unrolled<R>([&]<int r>() __attribute__((always_inline)) {
          float* to = sums + r * width + dim;
          const __m256 sum = _mm256_fmadd_ps(first[r], v.first, _mm256_loadu_ps(to));
          _mm256_storeu_ps(to, _mm256_fmadd_ps(second[r], v.second, sum));
        });
      };
      size_t dim = 0;
#pragma GCC unroll 2
      for (; dim + kVector <= head_dim; dim += kVector) {
        add(dim, load_v_pair<type, true>(head_dim, values, pair, dim));
      }
      if (dim < head_dim) add(dim, load_v_pair<type, false>(head_dim, values, pair, dim));
    }
  }

  static void finish(size_t, float*) {}
};

}  // namespace

void attend_decode_avx2(std::span<const AttendArgs> heads, std::byte* scratch) {
  for_kv_type(heads[0].layout->type,
              [&](auto type) { attend_decode<FloatMath<decltype(type)::value>>(heads, scratch); });
}

}  // namespace reprise::kernels
