// Whole pages of one instruction set; chosen in kv_page.cc.
#pragma once

#include "kernels/kv_page.h"

namespace reprise::kernels {

/// All 16 tokens of a bf16 page, head_dim a multiple of 32. k, v: [16, n_kv_head, head_dim].
void store_page_avx512(const KvLayout& layout, std::byte* page, const float* k, const float* v);

}  // namespace reprise::kernels
