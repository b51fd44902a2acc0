#pragma once

#include "kernels/cuda/page_shares.h"

namespace reprise::kernels::cuda {

/// Whether a row at the position scores every key.
__device__ inline bool has_turn(const ShareTurns& turns, int32_t position) {
  const auto end = static_cast<uint32_t>(position) + 1;
  return turns.period > 0 && end > turns.beyond && (end + turns.offset) % turns.period == 0;
}

}  // namespace reprise::kernels::cuda
