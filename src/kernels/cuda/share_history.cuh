#pragma once

#include "kernels/cuda/page_shares.h"

namespace reprise::kernels::cuda {

/// What the network sees of a share.
__device__ inline float history_value(const ShareHistory& history, float share) {
  return history.roots ? sqrtf(share) : share;
}

/// Where the row of a position lies, [capacity]; list: slot n_kv_head + KV head.
__device__ inline float* history_row(const ShareHistory& history, size_t list, int32_t position,
                                     uint32_t capacity) {
  const uint32_t row = static_cast<uint32_t>(position) % history.count;
  return history.rows + (list * history.count + row) * capacity;
}

}  // namespace reprise::kernels::cuda
