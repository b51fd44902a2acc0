// The softmax of one instruction set each; chosen in softmax.cc.
#pragma once

#include "kernels/softmax.h"

namespace reprise::kernels {

float softmax_ref(float* x, size_t n);
float softmax_avx2(float* x, size_t n);
float softmax_avx512(float* x, size_t n);

inline constexpr size_t kSharePage = 16;  // logits

void page_shares_ref(const float* x, size_t pages, bool largest, float lse, float* shares);
void page_shares_avx2(const float* x, size_t pages, bool largest, float lse, float* shares);
void page_shares_avx512(const float* x, size_t pages, bool largest, float lse, float* shares);

void add_page_shares_ref(float* x, size_t pages, bool largest, float factor, float* shares);
void add_page_shares_avx2(float* x, size_t pages, bool largest, float factor, float* shares);
void add_page_shares_avx512(float* x, size_t pages, bool largest, float factor, float* shares);

}  // namespace reprise::kernels
