#pragma once

#include "kernels/cuda/row_turns.h"

namespace reprise::kernels::cuda {

/// Whether the row at a position has its turn.
__device__ inline bool has_turn(const RowTurns& turns, int32_t position) {
  const auto end = static_cast<uint32_t>(position) + 1;
  return turns.period > 0 && end > turns.beyond && (end + turns.offset) % turns.period == 0;
}

}  // namespace reprise::kernels::cuda
