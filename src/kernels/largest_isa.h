// The choice of the largest scores of one instruction set each; chosen in largest.cc.
#pragma once

#include "kernels/largest.h"

namespace reprise::kernels {

void largest_ref(const float* scores, size_t n, size_t k, int32_t* indices);
/// orders: [n] scratch.
void largest_avx512(const float* scores, size_t n, size_t k, int32_t* orders, int32_t* indices);

}  // namespace reprise::kernels
