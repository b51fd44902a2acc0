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
  using Rows = std::vector<std::vector<ScoreRow>>;  // [n_layer][rows], each over every key it sees

  int32_t first = 0;  // position of the first row
  Rows layers;        // sums over the keys of a block
  Rows largest;       // the best key of a block; empty where it is not asked for

  const Rows& of(BlockPool pool) const { return pool == BlockPool::kMax ? largest : layers; }
};

/// The last so many rows of tokens, read as one prompt: rows of a causal pass over a text are those
/// that decoding it would have. largest: whether blocks' best keys are recorded, too. progress:
/// stage "record", in tokens. Errors: kCancelled; kOutOfMemory; those of the model.
Result<Recording> record_attention(Model& model, ThreadPool& pool, std::span<const int32_t> tokens,
                                   size_t rows, bool largest, const ProgressFn& progress);

}  // namespace reprise
