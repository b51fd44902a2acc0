// Decode attention over paged KV on a CUDA device: one query row per sequence.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/kv_tile.h"

namespace reprise::kernels::cuda {

/// Pages of one layer. A page holds, per KV head, a K tile and then a V tile (kv_tile.h).
struct PagedKv {
  const void* pages = nullptr;  // [pages][n_kv_head][2][tile_bytes]
  KvType type = KvType::kBF16;
  uint32_t n_kv_head = 0, head_dim = 0;
};

/// What each sequence reads. Key i of a list is token i % 16 of page pages[i / 16].
struct KeyLists {
  const uint32_t* pages = nullptr;  // [rows, lists, capacity]
  const uint16_t* slots = nullptr;  // the same shape: tokens of a page that are read; null = all
  const int32_t* keys = nullptr;    // [rows, lists] tokens of the list
  uint32_t lists = 1;               // 1 (shared by all KV heads) or n_kv_head
  uint32_t capacity = 0;            // pages
  const uint32_t* rows = nullptr;   // [batch] which row a sequence reads; null = its own
};

/// Cosines and sines that rotate position-free keys as they are read: key i of a list stands at
/// position i, or as many after its page's own position as it has tokens before it there.
struct KeyAngles {
  const float* of_pages = nullptr;   // [..][pairs][2] of pages' positions, times the rope's factor
  const float* of_tokens = nullptr;  // [16][pairs][2] of positions 0 to 15
  uint32_t pairs = 0;
  // Of each page of KeyLists, its row of of_pages; null: page i of a list has row i, of position
  // 16 i.
  const uint32_t* rows = nullptr;
};

struct PagedDecodeArgs {
  PagedKv kv;
  KeyLists lists;
  KeyAngles angles;  // null: keys are rotated
  uint32_t batch = 0, n_head = 0;
  const float* q = nullptr;  // [batch, n_head, head_dim] rotated; rounded to f16 or, as KV, to bf16
  // The same, rotated in another way: what the first capped_pages pages of every list see.
  const float* q_capped = nullptr;
  uint32_t capped_pages = 0;
  float scale = 1.0f;
  float soft_cap = 0.0f;      // logit = cap tanh(logit / cap) when > 0
  float* out = nullptr;       // [batch, n_head, head_dim] normalised
  float* lse = nullptr;       // [batch, n_head] natural log; -inf where nothing is read
  void* workspace = nullptr;  // paged_decode_workspace() bytes, zeroed once; of one stream
  /// Lists, and the pages that they name but the last of each, are older than the launches ahead in
  /// the stream that may not have ended: they are fetched beside those.
  bool known_pages = false;
  // Out, null: not wanted: [batch, n_head, lists.capacity] of each page of a list log2 of the sum
  // of exponentials of its logits, or with page_peaks its largest logit in units of log2.
  float* page_logs = nullptr;
  bool page_peaks = false;
};

size_t paged_decode_workspace(uint32_t max_batch, uint32_t n_head, uint32_t n_kv_head,
                              uint32_t head_dim);

/// out = softmax(scale q K^T) V and lse. Lengths are read on the device, so a captured call may be
/// replayed as sequences grow. head_dim 64, 96, 128 or 256; n_head / n_kv_head from 1 to 16;
/// otherwise cudaErrorNotSupported.
cudaError_t paged_decode(const PagedDecodeArgs& args, cudaStream_t stream);

}  // namespace reprise::kernels::cuda
