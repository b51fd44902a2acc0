// By what fusion chooses rows of stored chunks; scalar references in fusion/question_scores.h and
// fusion/row_choice.h.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/paged_decode.h"

namespace reprise::kernels::cuda {

/// Rows of a question and the keys that they are held against, all heads as one vector.
struct QuestionScoresArgs {
  PagedKv kv;                               // rotated keys
  const uint32_t* pages = nullptr;          // key i is token i % 16 of page pages[i / 16]
  const __nv_bfloat16* q = nullptr;         // [rows, n_head, head_dim] rotated
  const int32_t* positions = nullptr;       // [rows] ascending, below keys
  const uint8_t* candidates = nullptr;      // [keys] 1: its score is wanted
  uint32_t rows = 0, n_head = 0, keys = 0;  // rows: at most kScoredRows
  // Keys from here on are the question's own, which rows from their position on see.
  int32_t first_own = 0;
  float scale = 1.0f;
  float* workspace = nullptr;  // [question_scores_workspace(rows, keys)], first [rows, keys] logits
  float* scores = nullptr;     // [keys] in, out; those of other keys than candidates mean nothing
};

inline constexpr uint32_t kScoredRows = 64;
size_t question_scores_workspace(uint32_t rows, uint32_t keys);

/// scale q.k of candidates and the question's own keys, -inf of others. Devices that have some of
/// the heads add theirs up. head_dim: a multiple of 32, else cudaErrorNotSupported.
cudaError_t question_logits(const QuestionScoresArgs& args, cudaStream_t stream);
/// Adds to the score of every candidate its weights in the softmax of each row's logits.
cudaError_t question_weights(const QuestionScoresArgs& args, cudaStream_t stream);

/// The same head by head, against every key before a row.
struct HeadScoresArgs {
  PagedKv kv;                               // rotated keys
  const uint32_t* pages = nullptr;          // as above
  const __nv_bfloat16* q = nullptr;         // [rows, n_head, head_dim] rotated
  const int32_t* positions = nullptr;       // [rows] ascending, below keys
  uint32_t rows = 0, n_head = 0, keys = 0;  // rows: at most kScoredRows
  float scale = 1.0f, soft_cap = 0.0f;      // logit = cap tanh(scale q.k / cap) when > 0
  float* workspace = nullptr;               // [head_scores_workspace()]
  float* scores = nullptr;  // [keys] in, out; those of keys that no row sees mean nothing
};

size_t head_scores_workspace(uint32_t rows, uint32_t n_head, uint32_t n_kv_head, uint32_t keys);

/// Puts norms of values into the workspace, where head_scores() finds them: once before all rows
/// that are held against the same keys.
cudaError_t value_norms(const HeadScoresArgs& args, cudaStream_t stream);
/// Adds to the score of every key its weights in the softmax of each row's logits by each head,
/// times the norm of its value. Keys are multiplied in bf16. Devices that have some of the heads
/// add scores up. head_dim: a multiple of 16 up to 256, else cudaErrorNotSupported.
cudaError_t head_scores(const HeadScoresArgs& args, cudaStream_t stream);

struct ValueDeviationArgs {
  PagedKv kv;
  const uint32_t* pages = nullptr;     // as above
  const float* v = nullptr;            // [rows, n_kv_head, head_dim]
  const int32_t* positions = nullptr;  // [rows]
  uint32_t rows = 0;
  float* out = nullptr;  // [rows]
};

/// out = the squared distance of v to the values that pages hold.
cudaError_t value_deviation(const ValueDeviationArgs& args, cudaStream_t stream);

}  // namespace reprise::kernels::cuda
