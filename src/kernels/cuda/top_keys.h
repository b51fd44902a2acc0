// The keys with the largest products with queries, before rotation, found while keys are scanned:
// scores are never in device memory (ReAttention, arXiv 2407.15176, eq. 2). Sizes of launches do
// not depend on lengths, which are read on the device, so that calls may be captured and replayed
// as sequences grow.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/paged_decode.h"
#include "kernels/cuda/row_evidence.h"

namespace reprise::kernels::cuda {

/// A key and its score in one word, of which the larger comes first: the larger score, and of equal
/// ones the later key. 0: there is none.
using RankedWord = uint64_t;

REPRISE_HOST_DEVICE constexpr int32_t key_of(RankedWord word) {
  return static_cast<int32_t>(static_cast<uint32_t>(word));
}
/// Bits of a float whose order as integers is that of the floats.
REPRISE_HOST_DEVICE constexpr uint32_t score_bits(RankedWord word) {
  const auto order = static_cast<uint32_t>(word >> 32);
  return (order >> 31) != 0 ? order ^ 0x80000000u : ~order;
}

/// Which keys rows choose among. The rows of a sequence stand at consecutive positions, the last at
/// the sequence's end; what lies between its first keys and its last ones, and before the rows, is
/// the middle.
struct MiddleKeys {
  int32_t sink = 0, local = 1;  // first and last keys; local > 0
  int32_t activate = 0;         // sequences of up to so many tokens have no middle
};

struct KeyRange32 {
  int32_t begin = 0, end = 0;
};

/// last: position of the last of so many rows; < 0: there is no sequence.
REPRISE_HOST_DEVICE constexpr KeyRange32 middle_of(const MiddleKeys& keys, int32_t last,
                                                   uint32_t rows) {
  const int32_t length = last + 1, first = length - static_cast<int32_t>(rows);
  const int32_t end = first < length - keys.local ? first : length - keys.local;
  if (length <= keys.activate || end <= keys.sink) return {};
  return {keys.sink, end};
}

/// Votes of the rows of a sequence: a hash table of keys. Zero between votes and what reads them.
struct VoteTables {
  uint32_t slots = 0;         // vote_slots(): a power of two
  uint32_t* keys = nullptr;   // [batch, slots] key + 1; 0: the slot is free
  uint32_t* votes = nullptr;  // [batch, slots]
  uint32_t* best = nullptr;   // [batch, slots] upper half of the largest word
  uint32_t* used = nullptr;   // [batch, slots] slots in use, in any order
  uint32_t* count = nullptr;  // [batch] of used
};

constexpr uint32_t vote_slots(uint32_t votes) {
  uint32_t slots = 64;
  while (slots < 2 * votes) slots *= 2;
  return slots;
}

/// Where a key (key + 1) is looked for first.
REPRISE_HOST_DEVICE constexpr uint32_t first_vote_slot(const VoteTables& tables, uint32_t key) {
  return key * 0x9e3779b1u & (tables.slots - 1);
}

inline constexpr uint32_t kMaxTopKeys = 128;
inline constexpr float kVoteParts = 1024.0f;

struct TopKeysArgs {
  PagedKv kv;                          // keys as they were before rotation
  const uint32_t* pages = nullptr;     // [batch, capacity] page tables
  const int32_t* positions = nullptr;  // [batch] of the last row of each
  uint32_t batch = 0, capacity = 0;
  uint32_t rows = 1;    // of a sequence
  uint32_t stride = 1;  // the last row votes, the one so many before it, and so on
  MiddleKeys middle;
  uint32_t n_head = 0;
  const float* q = nullptr;       // [batch, rows, n_head, head_dim] before rotation
  const float* angles = nullptr;  // [pairs][2] that queries are turned by; null: they are not
  uint32_t pairs = 0;
  uint32_t k = 1;               // 1 to kMaxTopKeys
  RankedWord* found = nullptr;  // [batch, voters(), n_head, k] out, in order; null: not wanted
  VoteTables votes;             // every key that was found gets a vote; keys null: not wanted
  uint32_t votes_each = kMaxTopKeys;  // of what a query found so many cast votes, the best first
  // > 0: they share kVoteParts votes as softmax of so many times their scores divides them.
  float soft = 0.0f;
  const float* least = nullptr;  // [batch, voters(), n_head] that a key must score for its vote
  // By so much the best must score more than that of rank lead_rank, 1 to k, to stand out and vote;
  // where there are fewer keys, it does.
  float lead = 0.0f;
  uint32_t lead_rank = 1;
  EvidenceArgs evidence;            // whether those vote, too, that do not stand out
  const uint8_t* voting = nullptr;  // [n_head] 0: what the head found gets no votes; null: it does
  // [batch, voters(), n_head] out: the best key + 1 of heads that vote and stand out, 0: of others;
  // null: not wanted
  uint32_t* leaders = nullptr;
  uint32_t* floors = nullptr;  // [batch, voters(), n_head] zero, before and after a call
  void* workspace = nullptr;   // top_keys_workspace() bytes

  REPRISE_HOST_DEVICE constexpr uint32_t voters() const { return (rows + stride - 1) / stride; }
};

/// For calls of up to so many sequences with so many voters each.
size_t top_keys_workspace(uint32_t batch, uint32_t voters, uint32_t n_head, uint32_t n_kv_head,
                          uint32_t k);

/// The k keys of the middle with the largest q k, for every voter and head, exactly: of the scores
/// that tensor cores compute of keys and of queries rounded to bf16 none is missed, and ties go to
/// the later key. Keys whose score is NaN or -inf are never found. Sequences without a middle are
/// left out. head_dim 64, 96, 128 or 256; otherwise cudaErrorNotSupported.
cudaError_t top_keys(const TopKeysArgs& args, cudaStream_t stream);

}  // namespace reprise::kernels::cuda
