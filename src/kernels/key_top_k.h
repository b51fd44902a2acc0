// The k best keys of query rows, found while keys are scanned: scores are never all in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/attention.h"

namespace reprise::kernels {

/// A key and its score. Larger scores come first, and of equal ones the later key.
struct RankedKey {
  float score = 0;
  int32_t key = -1;  // index in the sequence; -1: there are fewer than k keys
};

inline bool ranks_before(const RankedKey& a, const RankedKey& b) {
  return a.score > b.score || (a.score == b.score && a.key > b.key);
}

struct KeyTopKArgs {
  const KvLayout* layout = nullptr;
  Phase phase = Phase::kDecode;
  size_t rows = 0;
  const float* q = nullptr;         // [rows, head_dim], 64-byte aligned rows are faster
  size_t q_stride = 0;              // floats between rows
  std::span<const PageSpan> pages;  // ascending; v, bias and cos_sin are not looked at
  size_t k = 0;                     // at least 1
  RankedKey* best = nullptr;        // [rows, k] in order
};

/// best[r] = the k keys of the pages with the largest q_r . k, exactly: of the scores that the
/// kernel computes none is missed, and ties go to the later key. Products are of floats, in prefill
/// of bf16 where the instruction set has them and the pages are bf16 or q8_0; sums are in float. A
/// row's result does not depend on the other rows, nor on how a scan is split into calls whose
/// lists are merged by ranks_before. Keys whose score is NaN or -inf are never found. Uses no
/// threads; scratch is [key_top_k_scratch_bytes(args)], aligned as floats.
void key_top_k(const KeyTopKArgs& args, std::byte* scratch);
size_t key_top_k_scratch_bytes(const KeyTopKArgs& args);

}  // namespace reprise::kernels
