// The loops of code sums: byte shuffles look up a vector of codes at once, and up to 4 rows share
// what unpacks them. The entries of both codes of a byte add up to at most 254, so bytes hold them,
// and those of several planes where tables are of less. Included by code_sums_*.cc only, which
// give Lanes: vectors of Bytes, as Words, too, and look_up(entries, codes).
#pragma once

#include <cstring>

#include "kernels/avx2.h"
#include "kernels/code_sums.h"

namespace reprise::kernels {
namespace {

constexpr size_t kGroupRows = 4, kVectors = 2;

// Sums of a vector of keys in 16 bits: those at even places and those at odd ones.
template <class Lanes>
struct Sums {
  typename Lanes::Words even, odd;
};

inline unsigned largest_byte(__m128i bytes) {
  const __m128i words = _mm_max_epu8(bytes, _mm_srli_epi16(bytes, 8));  // in their low halves
  const __m128i rest = _mm_andnot_si128(words, _mm_set1_epi16(255));
  return 255u - static_cast<unsigned>(_mm_extract_epi16(_mm_minpos_epu16(rest), 0));
}

inline const uint8_t* table_of(const CodeSumsArgs& args, size_t row, size_t plane) {
  return args.tables + (row * args.planes + plane) * 2 * kCodeEntries;
}

inline __m128i load_entries(const uint8_t* table) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
}

// Used planes, cut where the largest entries of R rows may add up to more than a byte holds.
struct ByteGroups {
  size_t count = 0;
  size_t ends[kMostPlanes];
};

template <int R>
inline void group_planes(const CodeSumsArgs& args, size_t row, ByteGroups& groups) {
  unsigned sum = 0;
  for (size_t i = 0; i < args.used.size(); ++i) {
    __m128i first = _mm_setzero_si128(), second = first;
    for (int r = 0; r < R; ++r) {
      const uint8_t* table = table_of(args, row + static_cast<size_t>(r), args.used[i]);
      first = _mm_max_epu8(first, load_entries(table));
      second = _mm_max_epu8(second, load_entries(table + kCodeEntries));
    }
    const unsigned most = largest_byte(first) + largest_byte(second);
    if (i > 0 && sum + most > 255) {
      groups.ends[groups.count++] = i;
      sum = 0;
    }
    sum += most;
  }
  if (!args.used.empty()) groups.ends[groups.count++] = args.used.size();
}

// In which order codes kBlocksAhead blocks ahead are fetched while others are summed: kKeys of a
// plane, then as many of the next. Memory gives a Zen 5 lines that lie in a row at 1.4 times the
// speed of lines of all planes in turns, but only into its first cache; a Xeon with AMX gets the
// latter as soon, into its second.
struct FetchRows {
  static constexpr size_t kKeys = 1024;
  static constexpr int kLocality = 3;
};
struct FetchInTurns {
  static constexpr size_t kKeys = 0;
  static constexpr int kLocality = 2;
};

// What is fetched during the next kSteps steps of kStep keys.
template <class Fetch, size_t kStep>
struct Ahead {
  static constexpr size_t kKeys = Fetch::kKeys > kStep ? Fetch::kKeys : kStep;
  static constexpr size_t kSteps = kKeys / kStep, kBlocks = (kKeys + kCodeBlock - 1) / kCodeBlock;

  const uint8_t* starts[kBlocks];
  const uint16_t* used;
  size_t stride, done;  // done: steps of planes

  Ahead(const CodeSumsArgs& args, size_t key)
      : used(args.used.data()), stride(args.stride), done(0) {
    const size_t block = key / kCodeBlock;
    for (size_t i = 0; i < kBlocks; ++i) {
      const size_t next = block + kBlocksAhead + i;
      const bool present = next < args.blocks + args.next;
      starts[i] = args.codes[present ? next : block] + key % kCodeBlock;
    }
  }
  [[gnu::always_inline]] void fetch_step() {
    constexpr size_t kLine = 64;
    const size_t at = done % kSteps * kStep;
    const uint8_t* lines = starts[at / kCodeBlock] + used[done / kSteps] * stride + at % kCodeBlock;
    for (size_t i = 0; i < kStep; i += kLine) __builtin_prefetch(lines + i, 0, Fetch::kLocality);
    ++done;
  }
};

// Adds the entries that two vectors of keys' codes of a plane name.
template <class Lanes, int R>
[[gnu::always_inline]] inline void add_entries(const uint8_t* table, size_t row_bytes,
                                               const uint8_t* codes,
                                               typename Lanes::Bytes (&bytes)[R][kVectors]) {
  typename Lanes::Bytes pair, first_codes[kVectors], second_codes[kVectors];
#pragma GCC unroll 2
  for (size_t v = 0; v < kVectors; ++v) {
    std::memcpy(&pair, codes + v * sizeof pair, sizeof pair);
    first_codes[v] = pair & 15;
    second_codes[v] = pair >> 4;
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r, table += row_bytes) {
    const __m128i first = load_entries(table), second = load_entries(table + kCodeEntries);
#pragma GCC unroll 2
    for (size_t v = 0; v < kVectors; ++v) {
      bytes[r][v] +=
          Lanes::look_up(first, first_codes[v]) + Lanes::look_up(second, second_codes[v]);
    }
  }
}

// codes: [planes][256] of a block, from one of its keys on. sums: zero.
template <class Lanes, int R, class Fetched>
[[gnu::always_inline]] inline void sum_keys(const CodeSumsArgs& args, const ByteGroups& groups,
                                            size_t row, const uint8_t* codes, Fetched& ahead,
                                            Sums<Lanes> (&sums)[R][kVectors]) {
  const uint8_t* tables = table_of(args, row, 0);
  const uint16_t* used = args.used.data();
  const size_t stride = args.stride, row_bytes = args.planes * 2 * kCodeEntries;
  for (size_t group = 0, i = 0; group < groups.count; ++group) {
    typename Lanes::Bytes bytes[R][kVectors] = {};
    for (const size_t end = groups.ends[group]; i < end; ++i) {
      const size_t plane = used[i];
      ahead.fetch_step();
      add_entries<Lanes, R>(tables + plane * 2 * kCodeEntries, row_bytes, codes + plane * stride,
                            bytes);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (size_t v = 0; v < kVectors; ++v) {
        const auto words = reinterpret_cast<typename Lanes::Words>(bytes[r][v]);
        sums[r][v].even += words;  // and 256 times the odd ones, modulo 2^16
        sums[r][v].odd += words >> 8;
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (auto& sum : sums[r]) sum.even -= sum.odd << 8;
  }
}

template <class Lanes, bool kTops, int R>
[[gnu::always_inline]] inline void store(const CodeSumsArgs& args, size_t row, size_t key,
                                         const Sums<Lanes> (&sums)[R][kVectors]) {
  for (int r = 0; r < R; ++r) {
    uint16_t* out = args.out + (row + static_cast<size_t>(r)) * args.out_stride;
    if constexpr (kTops) {
      store_tops(sums[r], out + key / 16);
    } else {
      for (size_t v = 0; v < kVectors; ++v) {
        store_sums(sums[r][v], out + key + v * sizeof(typename Lanes::Bytes));
      }
    }
  }
}

template <class Lanes, class Fetch, int R, bool kTops>
void group_sums(const CodeSumsArgs& args, size_t row) {
  ByteGroups groups;
  group_planes<R>(args, row, groups);
  constexpr size_t kStep = kVectors * sizeof(typename Lanes::Bytes);
  using Fetched = Ahead<Fetch, kStep>;
  const size_t keys = args.blocks * kCodeBlock;
  for (size_t first = 0; first < keys; first += Fetched::kKeys) {
    Fetched ahead(args, first);
    const size_t end = keys - first < Fetched::kKeys ? keys : first + Fetched::kKeys;
    for (size_t key = first; key < end; key += kStep) {
      const uint8_t* codes = args.codes[key / kCodeBlock] + key % kCodeBlock;
      Sums<Lanes> sums[R][kVectors] = {};
      sum_keys<Lanes, R>(args, groups, row, codes, ahead, sums);
      store<Lanes, kTops, R>(args, row, key, sums);
    }
  }
}

template <class Lanes, class Fetch, bool kTops>
void all_sums(const CodeSumsArgs& args) {
  size_t row = 0;
  for (; row + kGroupRows <= args.rows; row += kGroupRows) {
    group_sums<Lanes, Fetch, kGroupRows, kTops>(args, row);
  }
  switch (args.rows - row) {
    case 3:
      return group_sums<Lanes, Fetch, 3, kTops>(args, row);
    case 2:
      return group_sums<Lanes, Fetch, 2, kTops>(args, row);
    case 1:
      return group_sums<Lanes, Fetch, 1, kTops>(args, row);
  }
}

}  // namespace
}  // namespace reprise::kernels
