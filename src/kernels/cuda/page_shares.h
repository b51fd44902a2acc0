// Shares of attention that pages get, and their exponential averages, by which pages are chosen
// (AttentionPredictor, arXiv 2502.04077, with an average in place of a network). Sizes of launches
// of decode rows depend on capacities only, so that calls may be captured and replayed.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/page_bounds.h"
#include "kernels/cuda/paged_decode.h"
#include "kernels/cuda/row_turns.h"

namespace reprise::kernels::cuda {

/// What rows got of every page, as a network looks back at it.
struct ShareHistory {
  float* rows = nullptr;  // [slots, n_kv_head, count, capacity], each position in its turn, with
                          // zeros beyond its page; null: none is kept
  uint32_t count = 0;
  // Square roots are kept, of rows as they may have been where they did not read everything: see
  // AverageSharesArgs. Otherwise shares of what was read, and zeros.
  bool roots = false;
};

struct WholeSharesArgs {
  PagedKv kv;
  RowTurns turns;                      // of the layer; other rows are left alone
  const int32_t* positions = nullptr;  // [rows]
  const uint32_t* pages = nullptr;     // [rows, capacity] page tables; one_table: [capacity]
  bool one_table = false;
  uint32_t rows = 0, n_head = 0;
  const __nv_bfloat16* q = nullptr;     // [rows, n_head, head_dim] rotated
  float scale = 1.0f, soft_cap = 0.0f;  // as PagedDecodeArgs
  bool largest = false;                 // the best key of a page stands for it, not the sum of all
  float factor = 0.0f;                  // weight of the past
  const uint32_t* slots = nullptr;      // [rows] row of averages
  float* averages = nullptr;            // [slots, n_kv_head, capacity] in, out; null: none
  float* shares = nullptr;              // [rows, n_kv_head, capacity] out
  uint32_t capacity = 0;
  float* logs = nullptr;   // [rows, n_head, capacity] scratch, twice as much if largest
  float2* sums = nullptr;  // [whole_shares_sums()] scratch
  ShareHistory history;    // out: shares, if there are averages
};

/// Enough for calls with as many rows or fewer.
size_t whole_shares_sums(uint32_t rows, uint32_t n_head, uint32_t n_kv_head);

/// share = mean over a KV head's query heads of the attention that every key of a page would get if
/// all were read; average = factor average + (1 - factor) share. choice, if not null: what
/// top_pages() is to choose for the same rows by what was written here.
cudaError_t whole_shares(const WholeSharesArgs& args, const TopPagesArgs* choice,
                         cudaStream_t stream);

struct AverageSharesArgs {
  const uint32_t* numbers = nullptr;  // [rows, n_kv_head, list_capacity] pages of the sequence
  const int32_t* keys = nullptr;      // [rows, n_kv_head] tokens of a list; its last page is the
                                      // sequence's
  const float* logs = nullptr;        // [rows, n_head, list_capacity] PagedDecodeArgs::page_logs
  const float* lse = nullptr;         // [rows, n_head] natural log, over what was read
  float* shares = nullptr;            // [rows, n_kv_head, list_capacity] scratch
  uint32_t rows = 0, n_head = 0, n_kv_head = 0, list_capacity = 0;
  float factor = 0.0f;              // weight of the past
  const uint32_t* slots = nullptr;  // [rows] row of averages
  float* averages = nullptr;        // [slots, n_kv_head, capacity] in, out
  uint32_t capacity = 0;
  float fade = 1.0f;                   // what is left of the average of a page that was not read
  RowTurns turns;                      // of the first layer; rows that have theirs are left alone
  const int32_t* positions = nullptr;  // [rows], if any may have, or there is a history
  // Out: what was read got (1 - e) share, what was not its faded average before the row; without
  // roots: share, and nothing.
  ShareHistory history;
  // Layers, whose turns follow one another, and how many elements lie from one's arrays to the
  // next one's; logs are so many times farther apart than lists as a KV head has query heads,
  // histories so many times farther than averages as they have rows.
  uint32_t layers = 1;
  size_t list_stride = 0, key_stride = 0, lse_stride = 0, average_stride = 0;
};

/// share = mean over a KV head's query heads of the attention that a page of a list got; average =
/// factor average + (1 - factor) (1 - e) share of pages that were read, where e is the sum of the
/// averages of those that were not, faded.
cudaError_t average_shares(const AverageSharesArgs& args, cudaStream_t stream);

struct WeighRowsArgs {
  const float* lse = nullptr;  // [rows, n_head] natural log
  uint32_t rows = 0, n_head = 0;
  bool first = false;        // the first of a history
  float factor = 0.0f;       // as AverageSharesArgs
  float* weighed = nullptr;  // [rows, n_head] out
};

/// Denominators with which key_votes() weighs rows as their average does.
cudaError_t weigh_rows(const WeighRowsArgs& args, cudaStream_t stream);

struct PoolSharesArgs {
  const float* votes = nullptr;  // [n_head, stride] of keys
  uint32_t n_head = 0, n_kv_head = 0, keys = 0, stride = 0;
  float past = 0.0f;          // weight of the averages before; 0: there is none
  float* averages = nullptr;  // [n_kv_head, capacity] in, out; zero beyond the keys
  uint32_t capacity = 0;
};

/// average = past average + mean over query heads of the votes of a page.
cudaError_t pool_shares(const PoolSharesArgs& args, cudaStream_t stream);

struct AverageRowsArgs {
  const float* shares = nullptr;       // [rows, n_kv_head, capacity], of whole rows
  const int32_t* positions = nullptr;  // [rows]
  uint32_t rows = 0, n_kv_head = 0, capacity = 0;
  bool first = false;         // the first of a history
  float factor = 0.0f;        // as AverageSharesArgs
  float* averages = nullptr;  // [n_kv_head, capacity] in, out; zero beyond the last row's page
  ShareHistory history;       // out: shares, of slot 0
};

/// average = factor average + (1 - factor) share, row after row.
cudaError_t average_rows(const AverageRowsArgs& args, cudaStream_t stream);

}  // namespace reprise::kernels::cuda
