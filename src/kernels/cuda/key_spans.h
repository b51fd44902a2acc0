// From votes for keys to the keys that are read, as if nothing lay between them (ReAttention,
// arXiv 2407.15176, eq. 3): first keys, spans around the keys with most votes, last keys.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/kept_scans.h"
#include "kernels/cuda/paged_prefill.h"
#include "kernels/cuda/row_agreement.h"
#include "kernels/cuda/top_keys.h"

namespace reprise::kernels::cuda {

/// Cosines and sines of positions from 1 - kPageTokens on, [..][pairs][2], times the rope's factor.
struct PositionAngles {
  const float* rows = nullptr;
  uint32_t pairs = 0;
};

inline constexpr uint32_t kMaxSpans = 1024;
inline constexpr uint32_t kMaxFilled = 4096;  // keys of all spans that more are to fill

struct KeySpansArgs {
  VoteTables votes;                    // emptied
  const int32_t* positions = nullptr;  // [batch] of the last row of each sequence
  uint32_t batch = 0;
  uint32_t rows = 1;  // of a sequence
  MiddleKeys middle;
  uint32_t spans = 0, span = 1;  // at most kMaxSpans, with regions; tokens of one
  uint32_t agreed_spans = 0;     // in place of spans where there are regions
  bool fill = false;   // more keys win, as long as all spans hold spans * span keys at most
  KeptScansArgs kept;  // votes are noted there, of rows that scan
  /// With states: sequences that it does not open read their last `wide` keys, above middle.local,
  /// and spans before those.
  EvidenceArgs evidence;
  int32_t wide = 0;
  /// Where not null: [batch] whose regions are read as spans around their middles; sequences
  /// without any read their last `wide` keys.
  RowAgreement* const* agreement = nullptr;
  int32_t* keys = nullptr;  // [batch] out: how many are read; 0: there is no sequence
  // Where not null: lists for decode rows, in which each page holds a run of neighbours.
  const uint32_t* pages = nullptr;  // [batch, capacity] page tables
  uint32_t capacity = 0;
  uint32_t* list_pages = nullptr;   // [batch, list_capacity] out, as KeyLists
  uint16_t* list_slots = nullptr;   // the same
  uint32_t* list_angles = nullptr;  // the same, as KeyAngles::rows of PositionAngles
  int32_t* list_keys = nullptr;     // [batch] out
  uint32_t list_capacity = 0;       // at least span_list_capacity()
  // Where not null: for rows of a prompt.
  int32_t* tokens = nullptr;       // [batch, token_capacity] out: positions of the keys, ascending
  uint32_t token_capacity = 0;     // at least span_tokens()
  PrefillRows* prefill = nullptr;  // [batch] out: the rows, from 0 on, where they stand among keys
};

/// The most keys that are read where there is a middle; local: also of sequences that are not open.
constexpr uint32_t span_tokens(const MiddleKeys& middle, uint32_t spans, uint32_t span) {
  return static_cast<uint32_t>(middle.sink + middle.local) + spans * span;
}

/// Pages of the longest list for page tables of so many pages.
constexpr uint32_t span_list_capacity(const MiddleKeys& middle, uint32_t spans, uint32_t span,
                                      bool fill, uint32_t capacity) {
  constexpr uint32_t kMore = 2 * kPageTokens - 2;  // a run of n keys touches (n + 30) / 16 pages
  const auto pages = [](uint32_t tokens) { return (tokens + kMore) / kPageTokens; };
  const auto sink = static_cast<uint32_t>(middle.sink), local = static_cast<uint32_t>(middle.local);
  // Filled, runs are of any length; two of them may be cut short by the middle's ends.
  const uint32_t of_spans =
      fill ? (spans * span + (spans + 2) * kMore) / kPageTokens : spans * pages(span);
  const uint32_t packed = pages(sink) + of_spans + pages(local);
  const auto all = static_cast<uint32_t>(
      middle.activate > middle.sink + middle.local ? middle.activate : middle.sink + middle.local);
  const uint32_t whole = pages(all) < capacity ? pages(all) : capacity;
  return packed > whole ? packed : whole;
}

/// The `spans` keys with most votes (of equal ones those with the best score, then the later ones)
/// are widened to spans inside the middle; what is read is their union, the first keys and the last
/// ones, which follow the middle or are more. Sequences without a middle read everything.
cudaError_t key_spans(const KeySpansArgs& args, cudaStream_t stream);

struct PackedQueriesArgs {
  const float* q = nullptr;  // [batch, rows, n_head, head_dim] before rotation
  uint32_t batch = 0, rows = 1, n_head = 0, head_dim = 0;
  const int32_t* keys = nullptr;  // [batch] the last row stands at the last of so many
  PositionAngles angles;
  float scale = 1.0f;
  __nv_bfloat16* rounded = nullptr;  // the shape of q, out; null: not wanted
  float* exact = nullptr;            // the same
};
cudaError_t rotate_packed_queries(const PackedQueriesArgs& args, cudaStream_t stream);

}  // namespace reprise::kernels::cuda
