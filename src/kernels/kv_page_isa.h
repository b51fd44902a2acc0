// Pages and tokens with one instruction set; chosen in kv_page.cc.
#pragma once

#include "kernels/kv_page.h"

namespace reprise::kernels {

/// All 16 tokens of a page of bf16 or bf12, head_dim a multiple of 32. k, v: [16, n_kv_head,
/// head_dim].
void store_page_avx512(const KvLayout& layout, std::byte* page, const float* k, const float* v);

/// See store_bf16_page().
void store_bf16_page_avx512(const KvLayout& layout, std::byte* page, const Bf16Page& from);

/// One token of bf16, head_dim a multiple of 32; see store_token() and copy_token().
void store_token_avx512(const KvLayout& layout, std::byte* page, size_t slot, const float* k,
                        const float* v);
void copy_token_avx512(const KvLayout& layout, size_t head, const std::byte* from, size_t from_slot,
                       std::byte* to, size_t to_slot);

/// Where a token lies in a bf12 tile: dims d and d + 1 are elements first + d / 2 stride and step
/// more.
struct Bf12Row {
  std::byte* tile;
  size_t head_dim, slot, first, step, stride;
};

/// One token. row: [head_dim].
void store_bf12_row_avx512(const Bf12Row& to, const float* row);

}  // namespace reprise::kernels
