// Prefill with AVX2 in floats: tiles of a unit of pages are widened once for all rows, of which
// six at a time share every load. Logits are in units of log2.
#include "kernels/arena.h"
#include "kernels/attention_isa.h"
#include "kernels/softmax_avx2.h"
#include "kernels/tile_avx2.h"

namespace reprise::kernels {
namespace {

constexpr size_t kGroupRows = 6;  // whose twelve sums keep both multipliers busy
constexpr size_t kUnitPages = 4, kUnitKeys = kUnitPages * kPageTokens;

struct Buffers {
  float* q;  // [rows, head_dim] times scale log2(e)
  RowSums sums;
  float* keys;    // [kUnitPages, head_dim, 16 tokens]
  float* values;  // [kUnitKeys, width]
};

// The pages of a unit that exist, widened one after the other.
struct Unit {
  const PageSpan* pages[kUnitPages];
  size_t count = 0;
};

Buffers prepare(const AttendArgs& args, std::byte* scratch) {
  Arena arena(scratch);
  Buffers b;
  const size_t head_dim = args.layout->head_dim, rows = args.rows;
  const size_t width = (head_dim + 15) / 16 * 16;
  b.q = arena.take<float>(rows * head_dim);
  b.sums = {width, arena.take<float>(rows * width), arena.take<float>(rows),
            arena.take<float>(rows * kPageTokens)};
  b.keys = arena.take<float>(kUnitKeys * head_dim);
  b.values = arena.take<float>(kUnitKeys * width);
  for (size_t r = 0; r < rows; ++r) {
    scale_row(args.q_row(r), head_dim, args.scale, b.q + r * head_dim);
    clear_row(b.sums.from(r));
  }
  return b;
}

template <KvType type>
void widen_keys(const AttendArgs& args, const PageSpan& page, float* out) {
  const size_t head_dim = args.layout->head_dim;
  for (size_t pair = 0; pair < head_dim / 2; ++pair, out += 2 * kPageTokens) {
    for (size_t token = 0; token < kPageTokens; token += kVector) {
      const PairVectors k = load_k_pair<type>(head_dim, args.rope_pairs, page, pair, token);
      _mm256_storeu_ps(out + token, k.first);
      _mm256_storeu_ps(out + kPageTokens + token, k.second);
    }
  }
}

template <KvType type>
void widen_values(const AttendArgs& args, const PageSpan& page, size_t width, float* out) {
  for (size_t pair = 0; pair < kPageTokens / 2; ++pair, out += 2 * width) {
    for (size_t dim = 0; dim < width; dim += kVector) {
      const PairVectors v = load_v_pair<type, false>(args.layout->head_dim, page.v, pair, dim);
      _mm256_storeu_ps(out + dim, v.first);
      _mm256_storeu_ps(out + width + dim, v.second);
    }
  }
}

// acc[r] += a[r stride + i] of column i, which are `columns` vectors of 16, `step` floats apart.
template <int R>
[[gnu::always_inline]] inline void add_columns(const float* a, size_t stride, const float* vectors,
                                               size_t columns, size_t step, __m256 (&acc)[R][2]) {
  for (size_t i = 0; i < columns; ++i, ++a, vectors += step) {
    const __m256 low = _mm256_loadu_ps(vectors), high = _mm256_loadu_ps(vectors + kVector);
    unrolled<R>([&]<int r>() __attribute__((always_inline)) {
      const __m256 factor = _mm256_broadcast_ss(a + r * stride);
      acc[r][0] = _mm256_fmadd_ps(factor, low, acc[r][0]);
      acc[r][1] = _mm256_fmadd_ps(factor, high, acc[r][1]);
    });
  }
}

// out[r]: logits of R rows and the unit.
template <int R>
void score_unit(const Buffers& b, const float* q, size_t head_dim, size_t pages,
                float (&out)[R][kUnitKeys]) {
  for (size_t p = 0; p < pages; ++p) {
    __m256 acc[R][2];
    unrolled<2 * R>([&]<int i>() __attribute__((always_inline)) {
      acc[i / 2][i % 2] = _mm256_setzero_ps();
    });
    add_columns<R>(q, head_dim, b.keys + p * kPageTokens * head_dim, head_dim, kPageTokens, acc);
    unrolled<2 * R>([&]<int i>() __attribute__((always_inline)) {
      _mm256_store_ps(out[i / 2] + p * kPageTokens + i % 2 * kVector, acc[i / 2][i % 2]);
    });
  }
}

inline Logits256 load_logits(const float* x) {
  return {_mm256_load_ps(x), _mm256_load_ps(x + kVector)};
}

inline void store_logits(float* x, const Logits256& logits) {
  _mm256_store_ps(x, logits.low);
  _mm256_store_ps(x + kVector, logits.high);
}

// Turns the logits of a row into weights.
void weigh(const AttendArgs& args, size_t row, const Unit& unit, bool adjusted, const RowSums& sums,
           float* logits) {
  __m256 top = _mm256_set1_ps(-__builtin_inff());
  for (size_t p = 0; p < unit.count; ++p) {
    Logits256 x = load_logits(logits + p * kPageTokens);
    if (adjusted) {
      x = adjust_logits(args, row, *unit.pages[p], x);
      store_logits(logits + p * kPageTokens, x);
    }
    top = _mm256_max_ps(x.top(), top);  // NaN counts as none
  }
  if (_mm256_movemask_ps(beyond_base(top, *sums.base)) != 0) move_base(top, sums);
  for (size_t p = 0; p < unit.count; ++p) {
    float* const of_page = logits + p * kPageTokens;
    store_logits(of_page, weights_of(load_logits(of_page), sums));
  }
}

// One unit for R rows, if they see any of it.
template <int R>
void attend_group(const AttendArgs& args, size_t row, const Unit& unit, const Buffers& b) {
  const RowWindow window = row_window(args, row, R);
  bool seen = false, adjusted = args.soft_cap > 0.0f;
  for (size_t p = 0; p < unit.count; ++p) {
    seen |= sees(window, *unit.pages[p]);
    adjusted |= needs_adjustment(window, *unit.pages[p]);
  }
  if (!seen) return;
  const size_t head_dim = args.layout->head_dim, width = b.sums.width;
  alignas(32) float weights[R][kUnitKeys];
  score_unit<R>(b, b.q + row * head_dim, head_dim, unit.count, weights);
  for (size_t r = 0; r < R; ++r) {
    weigh(args, row + r, unit, adjusted, b.sums.from(row + r), weights[r]);
  }
  float* const sums = b.sums.from(row).values;
  for (size_t dim = 0; dim < width; dim += 2 * kVector) {
    __m256 acc[R][2];
    unrolled<2 * R>([&]<int i>() __attribute__((always_inline)) {
      acc[i / 2][i % 2] = _mm256_loadu_ps(sums + i / 2 * width + dim + i % 2 * kVector);
    });
    add_columns<R>(weights[0], kUnitKeys, b.values + dim, unit.count * kPageTokens, width, acc);
    unrolled<2 * R>([&]<int i>() __attribute__((always_inline)) {
      _mm256_storeu_ps(sums + i / 2 * width + dim + i % 2 * kVector, acc[i / 2][i % 2]);
    });
  }
}

void attend_unit(const AttendArgs& args, const Unit& unit, const Buffers& b) {
  size_t row = 0;
  for (; row + kGroupRows <= args.rows; row += kGroupRows) {
    attend_group<kGroupRows>(args, row, unit, b);
  }
  switch (args.rows - row) {
    case 5:
      return attend_group<5>(args, row, unit, b);
    case 4:
      return attend_group<4>(args, row, unit, b);
    case 3:
      return attend_group<3>(args, row, unit, b);
    case 2:
      return attend_group<2>(args, row, unit, b);
    case 1:
      return attend_group<1>(args, row, unit, b);
  }
}

template <KvType type>
void attend_pages(const AttendArgs& args, std::byte* scratch) {
  const Buffers b = prepare(args, scratch);
  const size_t head_dim = args.layout->head_dim;
  PageBlock block;
  for (size_t page = 0; page < args.pages.size();) {
    page = next_block(args, page, kUnitPages, block);
    Unit unit;
    for (size_t slot = 0; slot < block.slots; ++slot) {
      const PageSpan* const present = block.pages[slot];
      if (present == nullptr) continue;
      const size_t first = unit.count * kPageTokens;
      widen_keys<type>(args, *present, b.keys + first * head_dim);
      widen_values<type>(args, *present, b.sums.width, b.values + first * b.sums.width);
      unit.pages[unit.count++] = present;
    }
    attend_unit(args, unit, b);
  }
  for (size_t r = 0; r < args.rows; ++r) {
    finish_row(b.sums.from(r), head_dim, args.out_row(r), args.lse + r);
  }
}

}  // namespace

void attend_prefill_avx2(const AttendArgs& args, std::byte* scratch) {
  for_kv_type(args.layout->type,
              [&](auto type) { attend_pages<decltype(type)::value>(args, scratch); });
}

}  // namespace reprise::kernels
