// What a layer's kernels ask of its sequences' evidence.
#pragma once

#include "kernels/cuda/row_evidence.h"

namespace reprise::kernels::cuda {

// Whether heads of a sequence vote whose best key does not stand out. The same until the next
// layer's scan.
__device__ inline bool is_open(const EvidenceArgs& args, uint32_t sequence) {
  const RowEvidence* state = args.states != nullptr ? args.states[sequence] : nullptr;
  if (state == nullptr) return false;
  return state->past + static_cast<float>(state->sums[args.turn % 3]) >= args.open;
}

}  // namespace reprise::kernels::cuda
