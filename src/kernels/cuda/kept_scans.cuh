// A layer's part of what is kept of scans.
#pragma once

#include "kernels/cuda/kept_scans.h"

namespace reprise::kernels::cuda {

struct KeptScan {
  uint32_t* row;  // + 1
  uint32_t *prompt_end, *count, *keys, *votes, *best, *leaders;

  __device__ KeptScan(const KeptScansArgs& args, uint32_t sequence) {
    uint32_t* const words = args.states[sequence] + args.layer * args.shape.layer_words();
    row = words;
    prompt_end = words + 1;
    count = words + 2;
    keys = words + 3;
    votes = keys + args.shape.votes;
    best = votes + args.shape.votes;
    leaders = best + args.shape.votes;
  }
};

// Whether the scan of a row, which has been made, is to be kept.
__device__ inline bool keeps_scan(const KeptScansArgs& args, uint32_t sequence) {
  return args.states != nullptr && args.states[sequence] != nullptr && args.scanning[sequence] >= 0;
}

}  // namespace reprise::kernels::cuda
