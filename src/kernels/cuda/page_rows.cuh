// The pages of a row that chooses some of them.
#pragma once

#include "kernels/cuda/page_bounds.h"

namespace reprise::kernels::cuda {

__device__ inline uint32_t full_pages(const PageRows& rows, uint32_t row) {
  return static_cast<uint32_t>(rows.positions[row]) / kPageTokens;
}

__device__ inline bool has_own_page(const PageRows& rows, uint32_t row) {
  return rows.positions[row] >= 0 && full_pages(rows, row) < rows.capacity;
}

// Whether a row may not read all that it sees.
__device__ inline bool chooses(const PageRows& rows, uint32_t row) {
  return has_own_page(rows, row) && full_pages(rows, row) >= rows.budget_pages;
}

}  // namespace reprise::kernels::cuda
