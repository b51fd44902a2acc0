// Copies of pages whose position-free keys are rotated, for rows that read them many times.
#pragma once

#include "kernels/cuda/paged_decode.h"

namespace reprise::kernels::cuda {

/// How copies are stored: codes that are rotated would be rounded once more.
REPRISE_HOST_DEVICE constexpr KvType rotated_type(KvType type) {
  return type == KvType::kFP8 ? KvType::kF16 : type;
}

struct RotatedPagesArgs {
  PagedKv kv;                       // position-free keys
  const uint32_t* pages = nullptr;  // key i is token i % 16 of page pages[i / 16]
  uint32_t count = 0;               // pages that are written, or at most
  // Where not null: only these keys, [*keys] of them, are there.
  const int32_t* tokens = nullptr;
  const int32_t* keys = nullptr;
  KeyAngles angles;
  void* out = nullptr;  // [count][n_kv_head][2][tile_bytes(rotated_type(kv.type), head_dim)]
};

/// Page i of out holds the keys and values of pages[i], key j of all turned to position j; what
/// follows the last of named keys in its page is finite.
/// cudaErrorNotSupported: head_dim that is not a multiple of 8 (FP8: 32).
cudaError_t rotate_pages(const RotatedPagesArgs& args, cudaStream_t stream);

}  // namespace reprise::kernels::cuda
