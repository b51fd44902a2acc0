// MAC-Attention on a CUDA device: decode rows whose queries are like recent ones reuse those rows'
// attention over keys that are long past, and read only the first keys and recent ones.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/cuda/paged_prefill.h"

namespace reprise::kernels::cuda {

/// What is known of a stored result of one query head. The error that reusing it is supposed to
/// bring: sqrt(share peak) (drift + distance to the query) / length of the query.
struct alignas(16) MacEntry {
  int32_t position;  // tag; -1: there is none
  int32_t anchor;    // position of the computed result that its chain of reuse began with
  float lse;         // natural log, over the keys [sink, cut(position))
  float share;       // of its position's attention that those keys held; without a result: peak
  float drift;       // sum of the distances of the matches it is built on
  float peak;        // largest share of its head up to its position, fading over a window
  uint32_t depth;    // matches since the anchor
};

/// What reuse has saved one KV head of a ring: see MacRules::guarded. Starts as zeros.
struct MacGuardState {
  float saved;      // bytes a step, a moving average
  float missed;     // share of steps that read keys far back, likewise
  uint32_t seen;    // steps of these averages
  uint32_t pauses;  // tries in a row in which reuse would not have paid
  int32_t tried;    // position of the last step that was seen
  int32_t rested;   // of the last one that left no result
  /// Bytes that a sparse list named between sinks and band at the last even and odd position.
  float listed[2];
};

/// Sums over the decode rows of a ring and KV heads, but where it says heads: query heads.
struct MacCounters {
  unsigned long long steps;     // that may reuse
  unsigned long long compared;  // of them
  unsigned long long group_hits;
  unsigned long long head_hits;  // of compared heads: with a match
  unsigned long long reused_heads;
  unsigned long long keys, skipped;  // of steps: that full attention reads; of them not read
  unsigned long long lag, depth;     // over reused heads
  unsigned long long nonfinite;      // results that were not stored
  double distance, share;            // over reused heads: to the match, MacEntry::share
};

/// Rings of one layer: the result of position p is in slot p % window. A sequence owns one ring,
/// whose layers lie side by side: shapes below are of one layer, as if the others' lay between its
/// rings.
struct MacRings {
  void* q = nullptr;                // [rings][n_kv_head][window][group][head_dim] bf16, not rotated
  void* out = nullptr;              // the same shape, float
  MacEntry* entries = nullptr;      // [rings][n_kv_head][window][group]; bytes of 0xff: empty
  MacGuardState* guards = nullptr;  // [rings][n_kv_head]
  MacCounters* counters = nullptr;  // [rings]
  uint32_t window = 0, layers = 1;  // layers: of a ring
  /// [rings][n_kv_head][window][group][head_dim / 32] of queries and results, which are codes of 8
  /// bits then; null: they are not.
  float *q_scales = nullptr, *out_scales = nullptr;

  bool coded() const { return q_scales != nullptr; }
};

/// Of a launch that compares, in bytes that it could read meanwhile: see mac_guard.cuh. From times
/// on an H200, which reads 4.7 MB a microsecond.
struct MacCosts {
  float meeting = 8e6f;  // in any case
  float far = 45e6f;     // where some KV head reads keys far back
  float pair = 0.6e6f;   // of each row and KV head that compares, beside its ring
};

/// See src/methods/mac/options.h.
struct MacRules {
  int32_t sink = 64, band = 256, align = 16, min_context = 2048;
  int32_t max_gap = 511;  // below the window
  int32_t max_age = std::numeric_limits<int32_t>::max();
  float distance2 = 0.0f;                                    // matches are nearer, squared
  float max_error = std::numeric_limits<float>::infinity();  // of what is supposed, see MacEntry
  bool split = false;                                        // heads of a group decide alone
  bool anchored = false;  // results built on reused ones are not stored
  bool guarded = false;   // rests where comparing does not pay: see mac_guard.cuh
  MacCosts costs;
};

inline constexpr uint32_t kNoRing = ~0u;

struct MacArgs {
  PagedKv kv;                       // holds keys up to each row's position
  const uint32_t* pages = nullptr;  // [batch, capacity] key i is token i % 16 of page i / 16
  /// What is read where nothing is reused, beside the first keys and the band; without slots and
  /// rows.
  KeyLists lists;
  /// As lists.pages: which of the sequence's pages they are, ascending; null: lists name all keys.
  const uint32_t* numbers = nullptr;
  const int32_t* positions = nullptr;  // [batch]; < 0: no row
  const uint32_t* rings = nullptr;     // [batch]; kNoRing: everything is read, nothing is stored
  uint32_t batch = 0, capacity = 0, n_head = 0;
  const float* q_plain = nullptr;       // [batch, n_head, head_dim] before rotation
  const float* q = nullptr;             // the same, rotated
  float scale = 1.0f, soft_cap = 0.0f;  // as in PagedDecodeArgs
  MacRings ring;
  MacRules rules;
  float* out = nullptr;       // [batch, n_head, head_dim] normalised
  float* lse = nullptr;       // [batch, n_head] natural log; -inf where nothing is read
  void* workspace = nullptr;  // mac_workspace() bytes, zeroed once; of one stream
  /// Begins before kernels ahead in the stream have ended. They may write q, q_plain and the keys
  /// of the rows themselves; what else is read must be older.
  bool overlap = true;
};

size_t mac_workspace(const MacRules& rules, uint32_t max_batch, uint32_t n_head, uint32_t n_kv_head,
                     uint32_t head_dim);

/// One step of one layer: finds matches, attends, stores the rows' results in their rings.
/// Everything is decided on the device, so a captured call may be replayed. Blocks wait for one
/// another: nothing may keep them from running at once but what ends by itself. head_dim 64, 96,
/// 128 or 256, n_head / n_kv_head from 1 to 16, otherwise cudaErrorNotSupported, as are batches
/// whose lists do not fit in shared memory (above about 1,000 KV heads of all rows).
cudaError_t mac_decode(const MacArgs& args, cudaStream_t stream);

/// Rows of a prompt, of one layer, whose results over the keys [sink, cut(position)) go to a ring.
/// As many as the window holds follow nothing: one of them takes the place of that entry.
struct MacSeedArgs {
  MacRings ring;
  uint32_t number = 0;  // of the ring
  bool follows = true;  // peaks do from the ring's entry of the position before the rows
  PrefillRows rows;     // at most the window; first: in what follows
  uint32_t n_head = 0, n_kv_head = 0, head_dim = 0;
  const float* q_plain = nullptr;   // [rows, n_head, head_dim] before rotation
  const float* out = nullptr;       // [rows, n_head, head_dim]
  const float* lse = nullptr;       // [rows, n_head] natural log
  const float* full_lse = nullptr;  // the same, over all keys that the rows see
};
cudaError_t mac_seed(const MacSeedArgs& args, cudaStream_t stream);

/// Forgets the positions from one on among so many entries.
cudaError_t mac_forget(MacEntry* entries, size_t count, int32_t position, cudaStream_t stream);

}  // namespace reprise::kernels::cuda
