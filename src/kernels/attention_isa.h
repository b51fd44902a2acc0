// The attention kernels of one instruction set each; chosen in attention.cc.
#pragma once

#include "kernels/attention.h"

namespace reprise::kernels {

void attend_ref(const AttendArgs& args, std::byte* scratch);
void attend_prefill_avx2(const AttendArgs& args, std::byte* scratch);
void attend_prefill_avx512(const AttendArgs& args, std::byte* scratch);
// Decode; heads as attend_heads() gets them.
void attend_decode_avx2(std::span<const AttendArgs> heads, std::byte* scratch);
void attend_decode_avx512(std::span<const AttendArgs> heads, std::byte* scratch);
void attend_decode_q8_avx512(std::span<const AttendArgs> heads, std::byte* scratch);     // q8_0
void attend_decode_float_avx512(std::span<const AttendArgs> heads, std::byte* scratch);  // f16, f32
// Decode of bf16 pages with head dims that are multiples of 32, prefill of bf16 and q8_0.
void attend_decode_amx(const AttendArgs& args, std::byte* scratch);
void attend_prefill_amx(const AttendArgs& args, std::byte* scratch);

inline constexpr size_t kMaxBlockPages = 16;

/// Pages that are read together; [0, slots) are in use and may be absent too.
struct PageBlock {
  size_t slots = 0;
  const PageSpan* pages[kMaxBlockPages];  // null = absent
};

/// Forms the block that starts at pages[first]; returns the page after it: the pages of one aligned
/// range of 16 size keys, each in the slot of its index, so that the blocks of a row do not depend
/// on where a list starts. size is a power of two.
size_t next_block(const AttendArgs& args, size_t first, size_t size, PageBlock& block);

}  // namespace reprise::kernels
