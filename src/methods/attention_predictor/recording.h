// Attention of a text, recorded block by block: what predictors are trained on and compared by.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "methods/attention_predictor/predictor.h"
#include "model/model.h"
#include "reprise/error.h"
#include "reprise/progress.h"

namespace reprise {

struct Recording {
  int32_t first = 0;                          // position of the first row
  std::vector<std::vector<ScoreRow>> layers;  // [n_layer][rows], each over every key it sees
};

/// The last so many rows of tokens, read as one prompt: rows of a causal pass over a text are those
/// that decoding it would have. Errors: kOutOfMemory; those of the model.
Result<Recording> record_attention(Model& model, ThreadPool& pool, std::span<const int32_t> tokens,
                                   size_t rows);

}  // namespace reprise
