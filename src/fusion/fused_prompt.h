// A prompt of which parts are loaded instead of computed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "store/chunk_store.h"

namespace reprise {

/// Tokens [begin, end) of the prompt, in the store or not.
struct PromptChunk {
  int32_t begin = 0, end = 0;
  const StoredChunk* stored = nullptr;  // null: its rows are computed
};

struct FusedPrompt {
  std::span<const int32_t> tokens;
  std::vector<PromptChunk> chunks;  // ascending, disjoint
  int32_t question = 0;             // where it begins; it goes to the end, behind all chunks
  /// What computing a row takes, where chunks are to be computed if that is faster than reading
  /// them; else 0.
  double row_ms = 0;

  int32_t end() const { return static_cast<int32_t>(tokens.size()); }
};

/// What a fusion cost. Rows of one layer.
struct FusionCost {
  uint64_t loaded_chunks = 0;    // in whole or in part
  uint64_t rounded_chunks = 0;   // of those, kept in a form that rounds
  uint64_t loaded_rows = 0;      // of which KV was loaded
  uint64_t candidate_rows = 0;   // of those, not known to be exact
  uint64_t recomputed_rows = 0;  // of those, computed again
  uint64_t few_rows = 0;         // of those, read a part of the keys before them
  double mean_position = 0;      // of those that were computed again, as part of the prompt
  uint64_t computed_rows = 0;    // others: question, missing chunks, what lies between
  uint64_t loaded_bytes = 0;
  uint64_t damaged_chunks = 0;              // computed, since they could not be read
  uint64_t slow_chunks = 0;                 // computed, since reading them takes longer
  double reading_ms = 0, computing_ms = 0;  // of these, as was expected
  double compute_ms = 0;                    // of the rows that were computed, without waits
  double wait_ms = 0;                       // for reads
  double place_ms = 0;                      // rotating loaded keys and storing them in pages
  double select_ms = 0;                     // choosing rows, layers that only this needs included
  double total_ms = 0;
};

}  // namespace reprise
