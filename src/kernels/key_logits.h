// Logits of query rows against keys of one KV head, without values: what methods rank keys by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/attention.h"

namespace reprise::kernels {

struct KeyLogitsArgs {
  const KvLayout* layout = nullptr;
  size_t rows = 0;
  const float* q = nullptr;         // [rows, head_dim] rotated
  size_t q_stride = 0;              // floats between rows
  std::span<const PageSpan> pages;  // v and bias are not looked at, nor index
  std::span<const uint16_t> pairs;  // pairs of dims that are read; empty = all
  float scale = 1.0f;               // applied to q.k
  float soft_cap = 0.0f;            // logit = cap tanh(logit / cap) when > 0
  size_t rope_pairs = 0;            // pairs rotated when a page has cos_sin
  bool accumulate = false;          // adds to out; not with a soft cap
  float* out = nullptr;             // [rows, 16 pages]; -inf in slots that are not read
  size_t out_stride = 0;            // floats between rows
};

/// out[r][16 p + t] = scale q_r . k of slot t of page p. Products and sums are in float, so a
/// result does not depend on the other rows or pages. Uses no threads.
void key_logits(const KeyLogitsArgs& args);

/// best[16 p + t] = the row r with the largest q_r . k - offsets[r] for slot t of page p, the
/// lowest among equals: the nearest centroid of a key. Of args, rows, q, pages (not rotated) and
/// pairs count. offsets: [rows]; slots that are not set get any row.
void best_rows(const KeyLogitsArgs& args, const float* offsets, int32_t* best);

/// Smallest and largest value of every dim over the slots of a K tile that are set: the bounds of
/// Quest (Tang et al. 2024, eq. 1). low, high: [head_dim]; slots is not empty.
void key_bounds(const KvLayout& layout, const std::byte* k_tile, uint16_t slots, float* low,
                float* high);

}  // namespace reprise::kernels
