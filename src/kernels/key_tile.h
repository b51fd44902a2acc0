// K tiles that stand alone: rows that are compared with by key_logits(), or only kept.
#pragma once

#include <cstddef>

#include "kernels/kv_page.h"

namespace reprise::kernels {

/// Writes one key into slot (< 16) of a K tile. k: [head_dim].
void store_k(const KvLayout& layout, std::byte* k_tile, size_t slot, const float* k);

}  // namespace reprise::kernels
