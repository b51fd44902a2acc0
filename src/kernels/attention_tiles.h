// Pages brought into the form that the AVX-512 and AMX kernels multiply, where the stored form is
// another: rotated at read, f16, f32 or q8_0.
#pragma once

#include "kernels/attention.h"

namespace reprise::kernels {

// K as stored bf16 tiles are: out [head_dim/2][16 tokens] pairs of bf16.
void bf16_k_tile_avx512(const AttendArgs& args, const PageSpan& page, uint32_t* out);
// V likewise: out [8 token pairs][stride], the first head_dim of each row written.
void bf16_v_tile_avx512(const AttendArgs& args, const PageSpan& page, uint32_t* out, size_t stride);
// out [head_dim][16 tokens]
void float_k_tile_avx512(const AttendArgs& args, const PageSpan& page, float* out);
// out [16 tokens][stride], the first head_dim of each row written.
void float_v_tile_avx512(const AttendArgs& args, const PageSpan& page, float* out, size_t stride);

}  // namespace reprise::kernels
