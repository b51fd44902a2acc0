// Prefill attention over paged KV on a CUDA device: rows of ascending positions, causal.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/cuda/paged_decode.h"

namespace reprise::kernels::cuda {

/// Rows of one sequence in a call.
struct PrefillRows {
  uint32_t first = 0;    // row of q, out and lse
  uint32_t count = 0;    // at consecutive positions, where PagedPrefillArgs names no others
  int32_t position = 0;  // of the first row
};

struct PagedPrefillArgs {
  PagedKv kv;                              // holds keys up to each row's own position
  const PrefillRows* sequences = nullptr;  // [batch]; long contexts first balance best
  const uint32_t* pages = nullptr;  // [batch, capacity] key i is token i % 16 of page pages[i / 16]
  uint32_t batch = 0, capacity = 0, n_head = 0;
  // All that sequences name lie in [first_row, first_row + rows).
  uint32_t first_row = 0, rows = 0;
  // Of any row, at most; what there is to share out among the blocks of few rows.
  uint32_t keys = std::numeric_limits<uint32_t>::max();
  const void* q = nullptr;             // [rows, n_head, head_dim] bf16, rotated; not yet scaled
  const int32_t* positions = nullptr;  // [rows] ascending within a sequence; null: consecutive
  float scale = 1.0f;                  // > 0
  float soft_cap = 0.0f;               // logit = cap tanh(logit / cap) when > 0
  int32_t window = 0;  // when > 0, the row at position p sees keys > p - window only
  // Rows see keys of [first_key, end_key) only; every row must see at least one.
  int32_t first_key = 0, end_key = std::numeric_limits<int32_t>::max();
  // The row at position p sees keys before p + 1 - lag, rounded down to a multiple of align.
  int32_t lag = 0, align = 1;
  void* out = nullptr;        // [rows, n_head, head_dim] normalised
  bool f32_out = false;       // else bf16
  float* lse = nullptr;       // [rows, n_head] natural log
  void* workspace = nullptr;  // paged_prefill_workspace() bytes, zeroed once; of one stream
};

/// Where few rows would leave most of a device idle, the keys are shared out among as many blocks
/// (FlashDecoding, Dao et al. 2023): what they make of them is merged from the workspace.
inline constexpr uint32_t kSplitBlocks = 132, kMostTileRows = 192;
inline constexpr size_t kUnsplitPrefillWorkspace = 16;  // where PagedPrefillArgs::keys is 0
constexpr size_t paged_prefill_workspace(uint32_t head_dim) {
  return kUnsplitPrefillWorkspace +
         size_t{kSplitBlocks} * kMostTileRows * (head_dim + 1) * sizeof(float);
}

/// out = softmax(scale q K^T) V and lse. All pointers are of the device. Pages that no row sees are
/// not read; tokens of a page that are not seen may hold anything finite. head_dim 64, 96, 128 or
/// 256; n_head / n_kv_head from 1 to 16; otherwise cudaErrorNotSupported.
cudaError_t paged_prefill(const PagedPrefillArgs& args, cudaStream_t stream);

}  // namespace reprise::kernels::cuda
