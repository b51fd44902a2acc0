// Decode over pages of f16 and f32, in floats.
#include "kernels/attention_decode_avx512.h"
#include "kernels/attention_floats_avx512.h"

namespace reprise::kernels {
namespace {

template <KvType type>
struct FloatMath : FloatRows {
  using Softmax = Softmax512;
  static constexpr size_t kSums = 2;  // of even tokens and of odd ones, side by side
  template <int R>
  struct Weights {
    alignas(64) float tokens[R][kPageTokens];
  };

  static void load(const AttendArgs& args, size_t row, const Query& query) {
    const size_t head_dim = args.layout->head_dim;
    auto* out = reinterpret_cast<uint32_t*>(query.rows + row * head_dim);
    scale_row<false>(args.q_row(row), head_dim, args.scale, out);
  }

  template <int R>
  [[gnu::always_inline]] static void score(const AttendArgs& args, const Query& query, size_t row,
                                           size_t head_dim, const PageSpan& page, const std::byte*,
                                           const Ahead& ahead, __m512 (&logits)[R]) {
    const float* q = query.rows + row * head_dim;
    if (page.cos_sin != nullptr) {
      return score_floats<type, R, true>(args, q, head_dim, page, ahead, logits);
    }
    score_floats<type, R, false>(args, q, head_dim, page, ahead, logits);
  }

  template <int R>
  static void weigh(Weights<R>& weights, int r, __m512 of_row) {
    _mm512_store_ps(weights.tokens[r], of_row);
  }

  template <int R>
  [[gnu::always_inline]] static void sum(const Weights<R>& weights, size_t head_dim,
                                         const PageSpan& page, const Ahead& ahead, float* sums,
                                         size_t width) {
    size_t dim = 0;
    for (; dim + 2 * kLanes <= head_dim; dim += 2 * kLanes) {
      sum_dims<R, 2>(weights, head_dim, page, ahead, dim, sums + 2 * dim, width);
    }
    for (; dim < head_dim; dim += kLanes) {
      sum_dims<R, 1>(weights, head_dim, page, ahead, dim, sums + 2 * dim, width);
    }
  }

  // N times 16 dims of R rows.
  template <int R, int N>
  [[gnu::always_inline]] static void sum_dims(const Weights<R>& weights, size_t head_dim,
                                              const PageSpan& page, const Ahead& ahead, size_t dim,
                                              float* sums, size_t width) {
    const size_t pair_bytes =
        tile_bytes(type, head_dim) / ((head_dim + kLanes - 1) / kLanes * kPairs) * N;
    const auto last = static_cast<unsigned>(head_dim - dim - (N - 1) * kLanes);
    Pairs acc[R][N];
    for (int r = 0; r < R; ++r) {
      for (int n = 0; n < N; ++n) {
        const float* from = sums + r * width + n * 2 * kLanes;
        acc[r][n] = {_mm512_loadu_ps(from), _mm512_loadu_ps(from + kLanes)};
      }
    }
    for (size_t pair = 0; pair < kPairs; ++pair) {
      ahead.fetch(Ahead::kValues, dim / (N * kLanes) * kPairs + pair, pair_bytes);
      Pairs values[N];
      for (int n = 0; n < N; ++n) {
        const size_t first = 2 * (pair * head_dim + dim + n * kLanes);
        values[n] = load_pairs<type>(head_dim, page.v, first, n + 1 < N ? kLanes : last);
      }
      for (int r = 0; r < R; ++r) {
        const __m512 weight = broadcast_pair(weights.tokens[r] + 2 * pair);
        for (int n = 0; n < N; ++n) {
          acc[r][n].low = _mm512_fmadd_ps(weight, values[n].low, acc[r][n].low);
          acc[r][n].high = _mm512_fmadd_ps(weight, values[n].high, acc[r][n].high);
        }
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int n = 0; n < N; ++n) {
        float* to = sums + r * width + n * 2 * kLanes;
        _mm512_storeu_ps(to, acc[r][n].low);
        _mm512_storeu_ps(to + kLanes, acc[r][n].high);
      }
    }
  }

  static void finish(size_t head_dim, float* sums) {
    for (size_t dim = 0; dim < head_dim; dim += kLanes) {
      const Pairs both = {_mm512_loadu_ps(sums + 2 * dim),
                          _mm512_loadu_ps(sums + 2 * dim + kLanes)};
      _mm512_storeu_ps(sums + dim, _mm512_add_ps(firsts(both), seconds(both)));
    }
  }
};

}  // namespace

void attend_decode_float_avx512(std::span<const AttendArgs> heads, std::byte* scratch) {
  if (heads[0].layout->type == KvType::kF16) {
    return attend_decode<FloatMath<KvType::kF16>>(heads, scratch);
  }
  attend_decode<FloatMath<KvType::kF32>>(heads, scratch);
}

}  // namespace reprise::kernels
