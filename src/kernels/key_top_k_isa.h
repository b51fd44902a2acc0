// The parts of key_top_k of one instruction set each; chosen in key_top_k.cc. Static inline
// functions: each instruction set compiles its own.
#pragma once

#include "kernels/key_top_k.h"

namespace reprise::kernels {

/// Scores of some rows and consecutive pages: [rows][stride], 16 a page. Those of slots that are
/// not set hold anything.
struct ScoreBlock {
  const float* scores = nullptr;
  size_t stride = 0, rows = 0;
  const PageSpan* pages = nullptr;
  size_t count = 0;  // of the pages
};

// Puts a key that is better than the last of a list into its place. What has the same score is
// later in the sequence, because scans run from the end to the beginning.
static inline void insert_ranked(RankedKey* list, size_t k, float score, int32_t key) {
  size_t at = k - 1;
  for (; at > 0 && list[at - 1].score < score; --at) list[at] = list[at - 1];
  list[at].score = score;
  list[at].key = key;
}

/// Offers a block's keys, the last one first, to the lists of its rows: best [rows, k].
void offer_ref(const ScoreBlock& block, size_t k, RankedKey* best);
void offer_avx512(const ScoreBlock& block, size_t k, RankedKey* best);

// All of key_top_k for bf16 and q8_0 pages; best holds empty lists.
void key_top_k_amx(const KeyTopKArgs& args, std::byte* scratch);

}  // namespace reprise::kernels
