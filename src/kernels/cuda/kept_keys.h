// Tokens of one sequence that policies keep when they give up its pages: how they are weighed,
// chosen and copied into side pages. Side pages have as many tokens of every KV head, each head its
// own; they are pages like a sequence's.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/paged_decode.h"

namespace reprise::kernels::cuda {

/// Keys of a layer, numbered in this order: tokens [0, side) of side pages, then tokens [begin,
/// end) of the sequence.
struct KeptKeys {
  const uint32_t* side_pages = nullptr;
  const uint32_t* pages = nullptr;  // page table of the sequence
  int32_t side = 0, begin = 0, end = 0;
};

/// What a token received: the attention of rows that saw it, and how many they were.
using KeyWeight = float2;

struct KeyVotesArgs {
  PagedKv kv;
  KeptKeys keys;
  uint32_t n_head = 0;
  const __nv_bfloat16* q = nullptr;     // [rows, n_head, head_dim] rotated
  const float* lse = nullptr;           // [rows, n_head] natural log, over the keys that a row sees
  uint32_t rows = 0;                    // > 0
  int32_t first = 0;                    // position of the first; they are consecutive
  float scale = 1.0f, soft_cap = 0.0f;  // as PagedDecodeArgs
  float* votes = nullptr;               // [n_head, stride] out
  uint32_t stride = 0;                  // at least as many as keys
};

/// votes = sum over the rows that see a key of its attention probability, for every query head.
/// cudaErrorNotSupported as paged_decode().
cudaError_t key_votes(const KeyVotesArgs& args, cudaStream_t stream);

struct PoolVotesArgs {
  const float* votes = nullptr;  // [n_head, stride]
  uint32_t n_head = 0, n_kv_head = 0, keys = 0, stride = 0;
  uint32_t kernel = 1;            // neighbouring keys that are pooled
  bool average = false;           // or the largest; beyond the edges stands zero
  bool largest_of_heads = false;  // or the sum
  float* scores = nullptr;        // [n_kv_head, stride] out
  uint32_t always = 0;            // keys before this one score infinity
};

/// Scores of SnapKV (Li et al. 2024): votes pooled over neighbours, then joined over the query
/// heads of a KV head.
cudaError_t pool_votes(const PoolVotesArgs& args, cudaStream_t stream);

struct AddVotesArgs {
  const float* votes = nullptr;  // [n_head, stride]
  uint32_t n_head = 0, n_kv_head = 0, stride = 0;
  KeptKeys keys;
  uint32_t rows = 0;  // that voted
  int32_t first = 0;  // position of the first
  // [n_kv_head, side_tokens + ring] from before: of side tokens, then, at position % ring, of own
  // tokens before known.
  const KeyWeight* weights_before = nullptr;
  uint32_t side_tokens = 0, ring = 1;
  int32_t known = 0;
  bool per_row = false;          // scores are divided by the rows that saw a key
  KeyWeight* weights = nullptr;  // [n_kv_head, stride] out
  float* scores = nullptr;       // [n_kv_head, stride] out
};

/// Scores of H2O (Zhang et al. 2023): votes summed over the query heads of a KV head, on top of
/// what keys had received before.
cudaError_t add_votes(const AddVotesArgs& args, cudaStream_t stream);

struct ChooseKeysArgs {
  const float* scores = nullptr;  // [n_kv_head, stride]
  uint32_t n_kv_head = 0, stride = 0;
  uint32_t candidates = 0;   // keys [0, candidates) are ranked,
  uint32_t chosen = 0;       // so many of them are kept,
  uint32_t tail = 0;         // and so many that follow them
  uint32_t* kept = nullptr;  // [n_kv_head, chosen + tail] out, ascending
};

/// Ties go to the lower index; NaN counts as less than everything. chosen <= candidates.
cudaError_t choose_keys(const ChooseKeysArgs& args, cudaStream_t stream);

struct CompactKeysArgs {
  PagedKv kv;  // pages are written
  KeptKeys keys;
  const uint32_t* kept = nullptr;  // [n_kv_head, count] indices of keys, ascending
  uint32_t count = 0;
  // Where not null: the weights [n_kv_head, stride] of all keys. Those of slots and of own tokens
  // from ring_begin on go to weights_after, as AddVotesArgs::weights_before, and keys.end to until.
  const KeyWeight* weights = nullptr;
  uint32_t stride = 0, side_tokens = 0, ring = 1;
  int32_t ring_begin = 0;
  KeyWeight* weights_after = nullptr;
  int32_t* until = nullptr;  // [n_kv_head]
};

/// Copies keys and values of the kept tokens into slots 0, 1, ... of keys.side_pages, which may
/// hold some of them already.
cudaError_t compact_keys(const CompactKeysArgs& args, cudaStream_t stream);

/// What a policy knows of a decode row's sequence; the same in every layer.
struct KeptRow {
  int32_t side = 0, begin = 0;   // as KeptKeys; not used where they follow from the position
  KeyWeight* weights = nullptr;  // H2oStepArgs
  int32_t* until = nullptr;
};

/// Lists, as KeyLists, of what rows keep, in all layers at once.
struct KeptLists {
  const uint32_t* tables = nullptr;       // [layers, table_rows, capacity] page tables
  const uint32_t* side_tables = nullptr;  // [layers, list_rows, side_capacity]
  const int32_t* positions = nullptr;     // [count] of rows first to first + count - 1
  const KeptRow* rows = nullptr;          // [count]
  uint32_t layers = 0, table_rows = 0, capacity = 0, first = 0, count = 0;
  /// recent > 0: the last so many tokens, and side tokens for those before them, heavy at most.
  int32_t heavy = 0, recent = 0;
  uint32_t* pages = nullptr;  // [layers, list_rows, list_capacity] out
  uint16_t* slots = nullptr;  // the same shape, out
  int32_t* keys = nullptr;    // [layers, list_rows] out
  uint32_t list_rows = 0, list_capacity = 0, side_capacity = 0;
};
cudaError_t kept_lists(const KeptLists& lists, cudaStream_t stream);

/// Decode rows of a layer, one of a sequence. Weights of a row: [layers][n_kv_head][heavy + ring],
/// slots of side tokens before tokens at position % ring, where ring = recent + 1; until: [layers]
/// [n_kv_head] positions below it have been accounted for.
struct H2oStepArgs {
  PagedKv kv;  // side pages are written
  uint32_t layer = 0, count = 0, n_head = 0;
  const KeptRow* rows = nullptr;         // [count]
  const int32_t* positions = nullptr;    // [count]
  const uint32_t* pages = nullptr;       // [count, capacity] page tables of the layer
  const uint32_t* side_pages = nullptr;  // [count, side_capacity]
  uint32_t capacity = 0, side_capacity = 0;
  uint32_t heavy = 0, recent = 1;
  bool per_row = false;                 // as AddVotesArgs
  const __nv_bfloat16* q = nullptr;     // [count, n_head, head_dim] rotated
  float scale = 1.0f, soft_cap = 0.0f;  // as PagedDecodeArgs
  float* logits = nullptr;              // [count, n_head, h2o_logits(heavy, recent)] scratch
};

/// Floats of a head's scratch.
REPRISE_HOST_DEVICE constexpr uint32_t h2o_logits(uint32_t heavy, uint32_t recent) {
  return ((heavy + kPageTokens - 1) / kPageTokens + recent / kPageTokens + 2) * kPageTokens;
}

/// One step of H2O: adds the row's attention over what is kept, and its own token, to their
/// weights; then the token that leaves the recent ones takes the side slot of the lightest, unless
/// it is the lightest itself. Of equal ones the later slot goes. A row at a position that was
/// accounted for already moves nothing. cudaErrorNotSupported as paged_decode().
cudaError_t h2o_step(const H2oStepArgs& args, cudaStream_t stream);

}  // namespace reprise::kernels::cuda
