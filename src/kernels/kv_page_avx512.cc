#include "kernels/bf12.h"
#include "kernels/kv_page_isa.h"
#include "kernels/simd_avx512.h"

namespace reprise::kernels {
namespace {

constexpr size_t kLanes = 16;
constexpr size_t kLine = sizeof(__m512i);

// Pairs of bf16: the upper halves of low become the lower ones.
inline __m512i paired(__m512i low, __m512i high) {
  return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(low, 16), high);
}

// Values as they are stored: finite, see kv_page.cc.
inline __m512 finite(const float* from) {
  const __m512 most = _mm512_set1_ps(0x1.fep127f), least = _mm512_set1_ps(-0x1.fep127f);
  const __m512 x = _mm512_loadu_ps(from);
  const __mmask16 number = _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q);
  return _mm512_maskz_max_ps(number, _mm512_min_ps(x, most), least);
}

inline __m512i rounded_values(const float* from) { return rounded_bf16(finite(from)); }

// The bf16 pairs of 32 keys of a row.
template <bool kFinite>
inline __m512i pairs_of_row(const float* from) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  const auto load = [&](const float* at) {
    return kFinite ? rounded_values(at) : rounded_bf16(_mm512_loadu_ps(at));
  };
  const __m512i first = load(from), second = load(from + kLanes);
  return paired(_mm512_permutex2var_epi32(first, even, second),
                _mm512_permutex2var_epi32(first, odd, second));
}

// rows[i][j] <-> rows[j][i].
inline void transpose(__m512i (&rows)[kLanes]) {
  __m512i t[kLanes];
  for (size_t i = 0; i < kLanes; i += 2) {
    t[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (size_t i = 0; i < kLanes; i += 4) {
    rows[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    rows[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    rows[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    rows[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (size_t half = 0; half < kLanes; half += 8) {
    for (size_t i = half; i < half + 4; ++i) {
      t[i] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0x88);
      t[i + 4] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0xdd);
    }
  }
  for (size_t i = 0; i < 8; ++i) {
    rows[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    rows[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
  }
}

// A tile of bf16, whose lines are stored as they are multiplied.
struct Bf16Lines {
  static constexpr bool kFinite = false;
  std::byte* tile;

  Bf16Lines(std::byte* to, size_t, const float*, size_t) : tile(to) {}
  static __m512i of_tokens() { return _mm512_setzero_si512(); }
  static __m512i of_pair(size_t) { return _mm512_setzero_si512(); }
  void store(size_t line, __m512i pairs, __m512i) const {
    _mm512_storeu_si512(tile + line * sizeof(__m512i), pairs);
  }
};

// The scale of a token whose magnitudes, as floats, are at most these; what is taken from them.
inline uint16_t store_scale(__m512 largest, float* scale) {
  const __m512i top = rounded_bf16(_mm512_set1_ps(_mm512_reduce_max_ps(largest)));
  const auto bits = static_cast<uint32_t>(_mm_cvtsi128_si32(_mm512_castsi512_si128(top)));
  const uint16_t base = bf12_base(static_cast<uint16_t>(bits >> 16));
  const uint32_t scale_bits = bf12_scale_bits(base);
  __builtin_memcpy(scale, &scale_bits, sizeof scale_bits);
  return base;
}

inline __m512 largest_of(const float* row, size_t head_dim) {
  __m512 largest = _mm512_setzero_ps();
  for (size_t d = 0; d < head_dim; d += kLanes) {
    largest = _mm512_max_ps(largest, _mm512_abs_ps(finite(row + d)));
  }
  return largest;
}

// Signs, and what is left of magnitudes.
inline __m512i bf12_codes(__m512i pairs, __m512i taken) {
  const __m512i magnitudes = _mm512_and_si512(pairs, _mm512_set1_epi32(0x7fff7fff));
  const __m512i signs = _mm512_xor_si512(pairs, magnitudes);
  return _mm512_or_si512(_mm512_subs_epu16(magnitudes, taken), signs);
}

// Their upper halves where the words of four have them: left is how many bits each is turned.
inline __m512i bf12_places(__m512i codes, __m512i left) {
  const __m512i upper = _mm512_srli_epi16(codes, 8);
  const __m512i right = _mm512_sub_epi16(_mm512_set1_epi16(16), left);
  return _mm512_or_si512(_mm512_sllv_epi16(upper, left), _mm512_srlv_epi16(upper, right));
}

// A tile of bf12, with what is taken from the magnitudes of its tokens.
struct Bf12Lines {
  static constexpr bool kFinite = true;
  Bf12Tile tile;
  uint16_t bases[kPageTokens];

  // rows: [16, head_dim], width floats apart.
  Bf12Lines(std::byte* to, size_t head_dim, const float* rows, size_t width)
      : tile(bf12_tile(to, head_dim)) {
    for (size_t token = 0; token < kPageTokens; ++token, rows += width) {
      bases[token] = store_scale(largest_of(rows, head_dim), tile.scales + token);
    }
  }

  // Of a line with a pair of each token, and of one with pairs of two tokens.
  __m512i of_tokens() const {
    const __m256i each = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bases));
    return _mm512_mullo_epi32(_mm512_cvtepu16_epi32(each), _mm512_set1_epi32(0x10001));
  }
  __m512i of_pair(size_t token) const {
    return _mm512_set1_epi32(static_cast<int>(uint32_t{bases[token + 1]} << 16 | bases[token]));
  }

  void store(size_t line, __m512i pairs, __m512i taken) const {
    const size_t first = line * 2 * kLanes;
    const __m512i codes = bf12_codes(pairs, taken);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(tile.low + first), _mm512_cvtepi16_epi8(codes));
    const __m512i one = bf12_places(codes, _mm512_set1_epi64(0x000c'0008'0004'0000));
    const __m512i two = _mm512_or_si512(one, _mm512_srli_epi64(one, 32));
    const __m512i four = _mm512_or_si512(two, _mm512_srli_epi64(two, 16));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(tile.high + first / 4),
                     _mm512_cvtepi64_epi16(four));
  }
};

// k, v: [16, head_dim], width floats apart.
template <typename Lines>
void store_head(size_t dim, std::byte* k_tile, const float* k, std::byte* v_tile, const float* v,
                size_t width) {
  const Lines keys(k_tile, dim, k, width), values(v_tile, dim, v, width);
  const __m512i of_tokens = keys.of_tokens();
  for (size_t d = 0; d < dim; d += 2 * kLanes) {
    __m512i rows[kLanes];
    for (size_t token = 0; token < kLanes; ++token) {
      rows[token] = pairs_of_row<Lines::kFinite>(k + token * width + d);
    }
    transpose(rows);
    for (size_t pair = 0; pair < kLanes; ++pair) keys.store(d / 2 + pair, rows[pair], of_tokens);
  }
  size_t line = 0;
  for (size_t token = 0; token < kPageTokens; token += 2) {
    const __m512i of_pair = values.of_pair(token);
    for (size_t d = 0; d < dim; d += kLanes, ++line) {
      const float* const at = v + token * width + d;
      values.store(line, paired(rounded_values(at), rounded_values(at + width)), of_pair);
    }
  }
}

// Cosines and sines of 16 pairs, and which of them are rotated.
struct Angles {
  __m512 cos, sin;
  __mmask16 lanes;

  Angles() = default;
  // angles: [pairs][2] of a token. first: pair.
  Angles(const float* angles, size_t first, size_t pairs) {
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const size_t count = pairs > first ? pairs - first : 0;
    lanes = first_lanes(static_cast<unsigned>(count));
    const float* from = angles + 2 * first;
    const __m512 low = _mm512_maskz_loadu_ps(first_lanes(static_cast<unsigned>(2 * count)), from);
    const __mmask16 upper = count > 8 ? first_lanes(static_cast<unsigned>(2 * count - 16)) : 0;
    const __m512 high = _mm512_maskz_loadu_ps(upper, from + kLanes);
    cos = _mm512_permutex2var_ps(low, even, high);
    sin = _mm512_permutex2var_ps(low, _mm512_add_epi32(even, _mm512_set1_epi32(1)), high);
  }

  // bf16 pairs, as rope() in floats and rounding afterwards leave them.
  __m512i rotate(__m512i pairs) const {
    const __m512 x = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    const __m512 y = _mm512_castsi512_ps(
        _mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
    const __m512 new_x = _mm512_fmsub_ps(x, cos, _mm512_mul_ps(y, sin));
    const __m512 new_y = _mm512_fmadd_ps(y, cos, _mm512_mul_ps(x, sin));
    return _mm512_mask_mov_epi32(pairs, lanes, paired(rounded_bf16(new_x), rounded_bf16(new_y)));
  }
};

// bf16 values as they are stored, see finite().
inline __m512i finite_bf16(__m512i values) {
  const __m512i magnitudes = _mm512_and_si512(values, _mm512_set1_epi16(0x7fff));
  const __m512i signs = _mm512_xor_si512(values, magnitudes);
  const __mmask32 numbers = _mm512_cmple_epu16_mask(magnitudes, _mm512_set1_epi16(0x7f80));
  const __m512i most = _mm512_min_epu16(magnitudes, _mm512_set1_epi16(0x7f7f));
  return _mm512_maskz_mov_epi16(numbers, _mm512_or_si512(most, signs));
}

inline __m512i load_bf16(const Bf16* from) { return _mm512_loadu_si512(from); }

// Dims d to d + 31 of all heads.
void store_bf16_keys(const KvLayout& layout, std::byte* page, const Bf16Page& from, size_t d) {
  const size_t dim = layout.head_dim, width = layout.n_kv_head * dim;
  const bool rotates = d / 2 < from.pairs;
  Angles angles[kLanes];
  for (size_t token = 0; token < kLanes && rotates; ++token) {
    const float* own = from.angles + token * 2 * from.pairs;
    angles[token] = Angles(own, d / 2, from.pairs);
    const float* next = own + kPageTokens * 2 * from.pairs + d;  // of the next page
    _mm_prefetch(next, _MM_HINT_T0);
    _mm_prefetch(next + kLanes, _MM_HINT_T0);
  }
  for (size_t head = 0; head < layout.n_kv_head; ++head) {
    const Bf16* k = from.k + head * dim + d;
    __m512i rows[kLanes];
    for (size_t token = 0; token < kLanes; ++token, k += width) {
      rows[token] = rotates ? angles[token].rotate(load_bf16(k)) : load_bf16(k);
    }
    transpose(rows);
    std::byte* line = page + layout.k_offset(head) + d / 2 * kLine;
    for (const __m512i pairs : rows) {
      _mm512_storeu_si512(line, pairs);
      line += kLine;
    }
  }
}

void store_bf16_values(size_t dim, std::byte* tile, const Bf16* v, size_t width) {
  // Where elements of two tokens come from, for the first and the last 16 of 32 dims.
  const __m512i each = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i first =
      _mm512_or_si512(each, _mm512_slli_epi32(_mm512_add_epi32(each, _mm512_set1_epi32(32)), 16));
  const __m512i last = _mm512_add_epi16(first, _mm512_set1_epi16(16));
  for (size_t token = 0; token < kPageTokens; token += 2, v += 2 * width) {
    for (size_t d = 0; d < dim; d += 2 * kLanes, tile += 2 * kLine) {
      const __m512i one = finite_bf16(load_bf16(v + d));
      const __m512i other = finite_bf16(load_bf16(v + width + d));
      _mm512_storeu_si512(tile, _mm512_permutex2var_epi16(one, first, other));
      _mm512_storeu_si512(tile + kLine, _mm512_permutex2var_epi16(one, last, other));
    }
  }
}

// Where the pairs of 32 keys of a token lie in a K tile, in pairs: one in each of 16 lines.
inline __m512i lines_apart() {
  return _mm512_slli_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                           4);
}

// Puts values of a token, in the upper halves, beside those of the token that shares a line of a V
// tile with it.
inline void put_in_line(std::byte* line, size_t slot, __m512i values) {
  const __m512i both = _mm512_loadu_si512(line);
  const __m512i upper = _mm512_mask_blend_epi16(0xaaaaaaaa, both, values);
  const __m512i lower = _mm512_mask_blend_epi16(0x55555555, both, _mm512_srli_epi32(values, 16));
  _mm512_storeu_si512(line, slot % 2 == 1 ? upper : lower);
}

}  // namespace

void store_token_avx512(const KvLayout& layout, std::byte* page, size_t slot, const float* k,
                        const float* v) {
  const size_t dim = layout.head_dim;
  for (size_t head = 0; head < layout.n_kv_head; ++head, k += dim, v += dim) {
    std::byte* line = page + layout.k_offset(head) + slot * sizeof(uint32_t);
    for (size_t d = 0; d < dim; d += 2 * kLanes, line += kLanes * kLine) {
      _mm512_i32scatter_epi32(line, lines_apart(), pairs_of_row<false>(k + d), sizeof(uint32_t));
    }
    line = page + layout.v_offset(head) + slot / 2 * dim * sizeof(uint32_t);
    for (size_t d = 0; d < dim; d += kLanes, line += kLine) {
      put_in_line(line, slot, rounded_values(v + d));
    }
  }
}

void copy_token_avx512(const KvLayout& layout, size_t head, const std::byte* from, size_t from_slot,
                       std::byte* to, size_t to_slot) {
  const size_t dim = layout.head_dim, k = layout.k_offset(head), v = layout.v_offset(head);
  const std::byte* source = from + k + from_slot * sizeof(uint32_t);
  std::byte* line = to + k + to_slot * sizeof(uint32_t);
  for (size_t d = 0; d < dim; d += 2 * kLanes, source += kLanes * kLine, line += kLanes * kLine) {
    const __m512i pairs = _mm512_i32gather_epi32(lines_apart(), source, sizeof(uint32_t));
    _mm512_i32scatter_epi32(line, lines_apart(), pairs, sizeof(uint32_t));
  }
  source = from + v + from_slot / 2 * dim * sizeof(uint32_t);
  line = to + v + to_slot / 2 * dim * sizeof(uint32_t);
  for (size_t d = 0; d < dim; d += kLanes, source += kLine, line += kLine) {
    const __m512i both = _mm512_loadu_si512(source);
    put_in_line(line, to_slot, from_slot % 2 == 1 ? both : _mm512_slli_epi32(both, 16));
  }
}

void store_bf12_row_avx512(const Bf12Row& to, const float* row) {
  const Bf12Tile tile = bf12_tile(to.tile, to.head_dim);
  const size_t one = to.first % 4, other = one + to.step;
  const uint16_t base = store_scale(largest_of(row, to.head_dim), tile.scales + to.slot);
  const __m512i taken = _mm512_set1_epi16(static_cast<short>(base));
  const __m512i left = _mm512_set1_epi32(static_cast<int>(4 * (other << 16 | one)));
  constexpr uint32_t kUpper = kBf12Bits >> 8;
  const uint32_t others = ~uint32_t{bf12_place(kUpper, one)} & ~uint32_t{bf12_place(kUpper, other)};
  size_t element = to.first;
  for (size_t d = 0; d < to.head_dim; d += 2 * kLanes) {
    const __m512i codes = bf12_codes(pairs_of_row<true>(row + d), taken);
    const __m512i placed = bf12_places(codes, left);
    uint8_t low[2 * kLanes];
    uint16_t high[kLanes];
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(low), _mm512_cvtepi16_epi8(codes));
    _mm256_storeu_si256(
        reinterpret_cast<__m256i*>(high),
        _mm512_cvtepi32_epi16(_mm512_or_si512(placed, _mm512_srli_epi32(placed, 16))));
    for (size_t pair = 0; pair < kLanes; ++pair, element += to.stride) {
      tile.low[element] = low[2 * pair];
      tile.low[element + to.step] = low[2 * pair + 1];
      uint16_t& word = tile.high[element / 4];
      word = static_cast<uint16_t>((word & others) | high[pair]);
    }
  }
}

void store_page_avx512(const KvLayout& layout, std::byte* page, const float* k, const float* v) {
  const size_t dim = layout.head_dim, width = layout.n_kv_head * dim;
  for (size_t head = 0; head < layout.n_kv_head; ++head, k += dim, v += dim) {
    std::byte* const k_tile = page + layout.k_offset(head);
    std::byte* const v_tile = page + layout.v_offset(head);
    if (layout.type == KvType::kBF12) {
      store_head<Bf12Lines>(dim, k_tile, k, v_tile, v, width);
    } else {
      store_head<Bf16Lines>(dim, k_tile, k, v_tile, v, width);
    }
  }
}

void store_bf16_page_avx512(const KvLayout& layout, std::byte* page, const Bf16Page& from) {
  const size_t dim = layout.head_dim, width = layout.n_kv_head * dim;
  for (size_t d = 0; d < dim; d += 2 * kLanes) store_bf16_keys(layout, page, from, d);
  for (size_t head = 0; head < layout.n_kv_head; ++head) {
    store_bf16_values(dim, page + layout.v_offset(head), from.v + head * dim, width);
  }
}

}  // namespace reprise::kernels
