// How many blocks share the codes of a row and KV head.
#pragma once

#include <algorithm>

#include "kernels/cuda/key_codes.h"
#include "kernels/cuda/launch.cuh"

namespace reprise::kernels::cuda {

inline constexpr uint32_t kScoreWarps = 8;

/// Blocks of a multiprocessor.
constexpr uint32_t score_blocks(uint32_t words) { return words == 1 ? 4 : 2; }

/// Every multiprocessor gets its blocks while there is work for them.
inline uint32_t code_splits(const CodeSearchArgs& args) {
  const uint32_t n_kv_head = args.rows.shape.n_kv_head, words = code_words(args.n_head / n_kv_head);
  const uint32_t resident = device_limits().multiprocessors * score_blocks(words);
  const uint32_t units = args.rows.capacity / kBlockPages + kScoreWarps;  // and sure pages
  return std::clamp(resident / (args.rows.count * n_kv_head), 1u,
                    (units + kScoreWarps - 1) / kScoreWarps);
}

}  // namespace reprise::kernels::cuda
