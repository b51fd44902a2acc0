// The softmax of one instruction set each; chosen in softmax.cc.
#pragma once

#include "kernels/softmax.h"

namespace reprise::kernels {

float softmax_ref(float* x, size_t n);
float softmax_avx2(float* x, size_t n);
float softmax_avx512(float* x, size_t n);

}  // namespace reprise::kernels
