// Sums of what codes name in tables: a lookup of 32 lanes hits 16 words of shared memory, which
// never share a bank. Tensor cores add up, as a product with zeros and ones.
#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/key_codes.h"

namespace reprise::kernels::cuda {

// The entry that byte `key` of codes names, of a word's tables. The byte is the lowest of an
// address in shared memory that base gives the rest of.
template <uint32_t offset>
__device__ inline uint32_t look_up(uint32_t codes, uint32_t base, uint32_t key) {
  uint32_t entry;
  asm("ld.shared.u32 %0, [%1+%2];"
      : "=r"(entry)
      : "r"(__byte_perm(codes, base, 0x7650 + key)), "n"(offset));
  return entry;
}

// Adds the four bytes of every lane's words: row 4 i + j of the product has byte j of the lanes
// that are the i-th of their quads, and column n the n-th quad.
class ByteAdder {
 public:
  __device__ ByteAdder() {
    const uint32_t row = threadIdx.x % 32 / 4, own = threadIdx.x % 4, one = 1u << row % 4 * 8;
    ones_[0] = row / 4 == own ? one : 0;
    ones_[1] = row / 4 + 2 == own ? one : 0;
    for (uint32_t i = 0; i < 2; ++i) {  // the same again, in registers that lie side by side
      ones_[2 + i] = __shfl_sync(~0u, ones_[i], threadIdx.x % 32);
    }
  }
  __device__ __forceinline__ void add(int32_t (&sums)[4], uint32_t first, uint32_t second) const {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
        "{%0,%1,%2,%3};"
        : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
        : "r"(ones_[0]), "r"(ones_[1]), "r"(ones_[2]), "r"(ones_[3]), "r"(first), "r"(second));
  }

 private:
  uint32_t ones_[4];
};

// Of kKeys keys a lane, 4 or 8: sums of the entries that codes of two planes name.
template <uint32_t kKeys, uint32_t kWords, uint32_t kWordBytes>
struct CodeSums {
  static constexpr uint32_t kParts = kKeys / 4;
  static constexpr uint32_t kPages = 32 * kKeys / kPageTokens;
  int32_t sums[kWords][kKeys][4] = {};  // of the words of four heads, as ByteAdder adds them

  // a, b: the lane's codes in two planes. base: the address of the first one's tables.
  __device__ __forceinline__ void add(const ByteAdder& adder, uint32_t base, const uint8_t* a,
                                      const uint8_t* b) {
    uint32_t first[kParts], second[kParts];
    load(a, first);
    load(b, second);
    add_part<0>(adder, base, first[0], second[0]);
    if constexpr (kParts > 1) add_part<1>(adder, base, first[1], second[1]);
  }

  // The largest of pages kPages / 4 t + 2 part and, 16 bits higher, of the page after it for head
  // j, in lanes 4 j + t and 4 j + t + 16.
  __device__ uint32_t top(uint32_t word, uint32_t part) const {
    int32_t best[2] = {};
#pragma unroll
    for (uint32_t key = 0; key < kKeys; ++key) {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t row = i / 2, column = i % 2;
        const int32_t sum = sums[word][key][i];
        if (kParts == 1) best[column] = max(best[column], sum);
        if (kParts == 2 && column == part) best[row] = max(best[row], sum);
      }
    }
    const auto two = static_cast<uint32_t>(best[0] | best[1] << 16);
    return __vmaxu2(two, __shfl_xor_sync(~0u, two, 16));
  }

 private:
  __device__ static void load(const uint8_t* from, uint32_t (&codes)[kParts]) {
    if constexpr (kParts == 1) {
      codes[0] = *reinterpret_cast<const uint32_t*>(from);
    } else {
      const uint2 two = *reinterpret_cast<const uint2*>(from);
      codes[0] = two.x;
      codes[1] = two.y;
    }
  }

  // Of four keys.
  template <uint32_t part>
  __device__ __forceinline__ void add_part(const ByteAdder& adder, uint32_t base, uint32_t a,
                                           uint32_t b) {
    constexpr uint32_t kCodes = 0x3c3c3c3c;
    const uint32_t a_low = a << 2 & kCodes, a_high = masked_or(a >> 2, kCodes, 0x40404040);
    const uint32_t b_low = masked_or(b << 2, kCodes, 0x80808080);
    const uint32_t b_high = masked_or(b >> 2, kCodes, 0xc0c0c0c0);
    add_word<0>(adder, sums[0] + 4 * part, base, a_low, a_high, b_low, b_high);
    if constexpr (kWords > 1) {
      add_word<1>(adder, sums[1] + 4 * part, base, a_low, a_high, b_low, b_high);
    }
    if constexpr (kWords > 2) {
      add_word<2>(adder, sums[2] + 4 * part, base, a_low, a_high, b_low, b_high);
      add_word<3>(adder, sums[3] + 4 * part, base, a_low, a_high, b_low, b_high);
    }
  }

  template <uint32_t word>
  __device__ __forceinline__ static void add_word(const ByteAdder& adder, int32_t (*four)[4],
                                                  uint32_t base, uint32_t a_low, uint32_t a_high,
                                                  uint32_t b_low, uint32_t b_high) {
    constexpr uint32_t kOffset = word * kWordBytes;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {  // two entries fit in a byte
      adder.add(four[i], look_up<kOffset>(a_low, base, i) + look_up<kOffset>(a_high, base, i),
                look_up<kOffset>(b_low, base, i) + look_up<kOffset>(b_high, base, i));
    }
  }
};

}  // namespace reprise::kernels::cuda
