// How much a question attends to rows of chunks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/rotation.h"
#include "base/thread_pool.h"
#include "kv/sequence_kv.h"
#include "model/config.h"

namespace reprise {

/// Queries of the question in one layer, before rotation.
struct QuestionRows {
  std::span<const Row> rows;  // ascending positions
  const float* q = nullptr;   // [rows, n_head, head_dim]
};

/// What the question is held against in a layer.
struct QuestionKeys {
  const ModelConfig& config;
  std::span<const RopeTable* const> ropes;  // [n_layer]
  uint32_t layer = 0;
  const SequenceKv& kv;                 // with the question's own keys and values
  std::span<const int32_t> candidates;  // ascending positions, before the question's
  bool rotated = true;                  // whether pages hold rotated keys
};

/// A3, eq. 3: softmax of q.k over candidates and the question's own keys, all heads as one vector,
/// summed over the question's rows. Returns [candidates].
std::vector<float> joint_attention(const QuestionKeys& keys, const QuestionRows& question,
                                   ThreadPool& pool);

/// What candidates add to the output of attention: the weight that each query head gives them among
/// all keys, as the model computes it, times the norm of their value (VATP, arXiv 2406.12335, has
/// its 1-norm), summed over heads and rows. Returns [candidates].
std::vector<float> head_attention(const QuestionKeys& keys, const QuestionRows& question,
                                  ThreadPool& pool);

}  // namespace reprise
