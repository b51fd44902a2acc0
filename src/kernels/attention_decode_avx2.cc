// Decode with AVX2 over pages of any type, in floats.
#include <cmath>
#include <span>

#include "kernels/attention_decode.h"
#include "kernels/attention_floats_avx2.h"

namespace reprise::kernels {
namespace {

constexpr size_t kVector = 8;
// See softmax_avx512.h.
constexpr float kNoBase = -3.0e38f, kReach = 60.0f;

inline void scale(float* x, size_t n, __m256 factor) {
  for (size_t i = 0; i < n; i += kVector) {
    _mm256_storeu_ps(x + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), factor));
  }
}

struct Softmax256 {
  using Logits = Logits256;

  static void clear(const RowSums& sums) {
    __builtin_memset(sums.values, 0, sums.width * sizeof(float));
    __builtin_memset(sums.totals, 0, kLanes * sizeof(float));
    *sums.base = kNoBase;
  }

  // All rows together: those of one wait for each other.
  template <int R>
  [[gnu::always_inline]] static void weigh(const PageOfRows& seen, const RowSums& sums,
                                           Logits256 (&logits)[R]) {
    if (seen.adjusted || seen.args.logits != nullptr) adjust(seen, std::span(logits));
    __m256 beyond = _mm256_setzero_ps();
    unrolled<R>([&]<int r>() __attribute__((always_inline)) {
      const __m256 limit = _mm256_set1_ps(sums.base[r] + kReach);
      beyond = _mm256_or_ps(beyond, _mm256_cmp_ps(top(logits[r]), limit, _CMP_GT_OQ));
    });
    if (_mm256_movemask_ps(beyond) != 0) move_bases(sums, std::span(logits));
    unrolled<R>([&]<int r>() __attribute__((always_inline)) {
      const __m256 base = _mm256_set1_ps(sums.base[r]);
      logits[r] = {exp2_256(_mm256_sub_ps(logits[r].low, base)),
                   exp2_256(_mm256_sub_ps(logits[r].high, base))};
      add_to(sums.totals + r * kLanes, logits[r].low);
      add_to(sums.totals + r * kLanes + kVector, logits[r].high);
    });
  }

  [[gnu::noinline]] static void adjust(const PageOfRows& seen, std::span<Logits256> logits) {
    for (size_t r = 0; r < logits.size(); ++r) {
      if (seen.adjusted) logits[r] = adjust_logits(seen.args, seen.row + r, seen.page, logits[r]);
      if (seen.args.logits != nullptr) {
        keep_logits(seen.args, seen.row + r, seen.page, logits[r]);
      }
    }
  }

  // As with AVX-512: rarely, for weights that could overflow or be lost.
  [[gnu::noinline]] static void move_bases(const RowSums& all, std::span<const Logits256> logits) {
    for (size_t r = 0; r < logits.size(); ++r) {
      const RowSums sums = all.from(r);
      const float largest = max_256(top(logits[r])), former = *sums.base;
      if (!(largest > former + kReach)) continue;
      const bool near = former == kNoBase && largest <= kReach && largest >= -kReach;
      *sums.base = near ? 0.0f : __builtin_ceilf(largest);
      const __m256 keep = exp2_256(_mm256_set1_ps(former - *sums.base));
      scale(sums.totals, kLanes, keep);
      scale(sums.values, sums.width, keep);
    }
  }

  static __m256 top(const Logits256& x) { return _mm256_max_ps(x.low, x.high); }

  static void add_to(float* to, __m256 x) {
    _mm256_storeu_ps(to, _mm256_add_ps(_mm256_loadu_ps(to), x));
  }

  static void finish(const RowSums& sums, size_t head_dim, float* out, float* lse) {
    const float total = sum_256(
        _mm256_add_ps(_mm256_loadu_ps(sums.totals), _mm256_loadu_ps(sums.totals + kVector)));
    const float inverse = total > 0.0f ? 1.0f / total : 0.0f;
    for (size_t d = 0; d < head_dim; ++d) out[d] = sums.values[d] * inverse;
    *lse = total > 0.0f ? *sums.base * kLn2 + logf(total) : -__builtin_inff();
  }
};

template <KvType type>
struct FloatMath {
  using Softmax = Softmax256;
  static constexpr size_t kSums = 1;
  // Fetches make a Zen 3 forget the stream: it reads at two thirds of its speed.
  static constexpr size_t kFetchEvery = 0, kAhead = 4;
  struct Query {
    float* rows;  // [rows, head_dim]
  };
  template <int R>
  struct Weights {
    alignas(32) float tokens[R][kPageTokens];
  };

  static Query take(const AttendArgs& args, Arena& arena) {
    return {arena.take<float>(args.rows * args.layout->head_dim)};
  }

  static void load(const AttendArgs& args, size_t row, const Query& query) {
    const size_t head_dim = args.layout->head_dim;
    for (size_t d = 0; d < head_dim; ++d) {
      query.rows[row * head_dim + d] = args.q[row * args.q_stride + d] * (args.scale * kLog2e);
    }
  }

  static const std::byte* keys(const AttendArgs&, const Query&, const PageSpan& page) {
    return page.k;
  }

  template <int R>
  [[gnu::always_inline]] static void score(const AttendArgs& args, const Query& query, size_t row,
                                           size_t head_dim, const PageSpan& page, const std::byte*,
                                           Logits256 (&logits)[R]) {
    const float* q = query.rows + row * head_dim;
    if (page.cos_sin != nullptr) {
      return score_tile<type, R, true>(args, q, head_dim, page, logits);
    }
    score_tile<type, R, false>(args, q, head_dim, page, logits);
  }

  template <int R>
  static void weigh(Weights<R>& weights, int r, const Logits256& of_row) {
    _mm256_store_ps(weights.tokens[r], of_row.low);
    _mm256_store_ps(weights.tokens[r] + kVector, of_row.high);
  }

  // In the order in which values lie, so that they are a stream, too.
  template <int R>
  [[gnu::always_inline]] static void sum(const Weights<R>& weights, size_t head_dim,
                                         const PageSpan& page, float* sums, size_t width) {
    const std::byte* const values = page.v;
    for (size_t pair = 0; pair < kPairs; ++pair) {
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
  switch (heads[0].layout->type) {
    case KvType::kBF16:
      return attend_decode<FloatMath<KvType::kBF16>>(heads, scratch);
    case KvType::kF16:
      return attend_decode<FloatMath<KvType::kF16>>(heads, scratch);
    case KvType::kF32:
      return attend_decode<FloatMath<KvType::kF32>>(heads, scratch);
    case KvType::kQ8_0:
      return attend_decode<FloatMath<KvType::kQ8_0>>(heads, scratch);
  }
}

}  // namespace reprise::kernels
