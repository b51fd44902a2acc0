// K tiles that stand alone, for key_logits(): rows that are compared with and have no values.
#pragma once

#include <cstddef>

namespace reprise::kernels {

/// Writes one key into slot (< 16) of a bf16 K tile (see KvLayout). k: [head_dim].
void store_bf16_k(std::byte* k_tile, size_t slot, const float* k, size_t head_dim);

}  // namespace reprise::kernels
