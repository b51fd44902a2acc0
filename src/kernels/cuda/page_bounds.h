// Channel-wise largest and smallest keys of full pages, and the pages whose bounds of q.k are best
// (Quest, Tang et al. 2024). Sizes of launches depend on capacities only, so that calls may be
// captured and replayed as sequences grow.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/paged_decode.h"
#include "kernels/cuda/row_turns.h"

namespace reprise::kernels::cuda {

/// Bounds lie by page id: [pool pages][n_kv_head][2][head_dim], the largest values before the
/// smallest, rounded outward.
struct PageBoundsArgs {
  PagedKv kv;
  const int32_t* positions = nullptr;   // [rows] whose keys were stored; < 0: none was
  const uint32_t* sequences = nullptr;  // [rows] row of pages
  uint32_t rows = 0;
  const uint32_t* pages = nullptr;  // [layers, table_rows, capacity] page tables
  uint32_t layers = 1, table_rows = 0, capacity = 0;
  bool before = false;              // the key before each row's own was stored, not its own
  __nv_bfloat16* bounds = nullptr;  // out
};

/// Bounds of the pages that were filled: those whose last slot got the stored key. Positions beyond
/// the table and entries that are ~0 are left out. cudaErrorNotSupported as rotate_and_store
/// (heads.h).
cudaError_t update_page_bounds(const PageBoundsArgs& args, cudaStream_t stream);

/// Pages by id: those listed, or a range.
struct PageIds {
  const uint32_t* ids = nullptr;  // [count], may lie in page-locked host memory; null: first + i
  uint32_t first = 0, count = 0;
};
/// Bounds of pages, whatever is in them. Errors as above; cudaErrorInvalidValue: kv names no pages.
cudaError_t bound_pages(const PagedKv& kv, const PageIds& pages, __nv_bfloat16* bounds,
                        cudaStream_t stream);

/// Rows that choose pages, one of a sequence. A row has a page of its own, that of its position,
/// and full pages before it; it has none when its position is < 0 or beyond the table.
struct PageRows {
  const int32_t* positions = nullptr;  // [count]
  const uint32_t* pages = nullptr;     // [count, capacity] page tables
  uint32_t count = 0, capacity = 0;
  uint32_t budget_pages = 0;  // > 0, that a KV head may read; rows with fewer full pages read all
};

struct PageScoreArgs {
  PageRows rows;
  const __nv_bfloat16* bounds = nullptr;  // of all full pages
  uint32_t n_head = 0, n_kv_head = 0, head_dim = 0;
  const __nv_bfloat16* q = nullptr;  // [count, n_head, head_dim] rotated
  float* scores = nullptr;           // [count, n_kv_head, capacity] out
};

/// score of a full page = max over a KV head's query heads of sum_d max(q_d high_d, q_d low_d)
/// (eq. 2). Rows that read all are left out. All but queries is older than the launches ahead in
/// the stream that may not have ended. head_dim 64, 96, 128 or 256; n_head / n_kv_head from 1 to
/// 16; otherwise cudaErrorNotSupported.
cudaError_t score_pages(const PageScoreArgs& args, cudaStream_t stream);

struct TopPagesArgs {
  PageRows rows;
  uint32_t n_kv_head = 0;
  uint32_t sink_pages = 0;               // first ones, which are always chosen
  uint32_t recent_tokens = 0;            // pages of these last keys are always chosen, too
  RowTurns turns;                        // if it has a period: of rows that have their turn only
  bool whole = false;                    // every page is chosen
  const float* scores = nullptr;         // [count, n_kv_head, capacity]
  const uint32_t* score_rows = nullptr;  // [count] which row of scores a row has; null: its own
  uint32_t* lists = nullptr;    // [count, n_kv_head, list_capacity] out: page ids, in order
  uint32_t* numbers = nullptr;  // as lists, if not null, out: where the pages stand in the table
  int32_t* keys = nullptr;      // [count, n_kv_head] out: tokens of a list, to the row's own
  uint32_t list_capacity = 0;   // >= min(budget_pages, capacity); whole: >= capacity
  // Layers, and how many elements lie from one's arrays to the next one's.
  uint32_t layers = 1;
  size_t page_stride = 0, score_stride = 0, list_stride = 0, key_stride = 0;
};

/// Lists, as KeyLists without slots, of the budget_pages - 1 best full pages and, last, the row's
/// own page. Ties go to the lower index; NaN counts as less than everything. Positions, page tables
/// and score_rows are older than the launches ahead in the stream that may not have ended.
cudaError_t top_pages(const TopPagesArgs& args, cudaStream_t stream);

}  // namespace reprise::kernels::cuda
