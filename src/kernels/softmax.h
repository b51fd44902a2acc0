// Softmax of one row of logits: what methods rank keys by.
#pragma once

#include <cstddef>

namespace reprise::kernels {

/// x <- exp(x - lse), in place; returns lse = ln(sum of exp(x)). Logits of -inf get weight 0; when
/// there is nothing else (or n = 0), all weights are 0 and lse is -inf. Relative error of a weight
/// below 2e-7 (5 + max(x) - x); weights below 2^-126 may be 0.
float softmax(float* x, size_t n);

/// shares[p] <- the sum, or the largest if `largest`, of exp(x - lse) of page p's logits
/// x[16 p .. 16 p + 15]: 0 where lse is -inf. With lse at least their largest, relative error of a
/// weight as softmax()'s beside what the rounding of lse makes.
void page_shares(const float* x, size_t pages, bool largest, float lse, float* shares);

/// shares[p] += factor times the sum, or the largest if `largest`, of what softmax() makes of page
/// p's logits x[16 p .. 16 p + 15]. x is used up.
void add_page_shares(float* x, size_t pages, bool largest, float factor, float* shares);

}  // namespace reprise::kernels
