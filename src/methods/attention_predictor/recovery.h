// Recovery rate of predictors on recorded attention.
#pragma once

#include <functional>
#include <memory>

#include "base/thread_pool.h"
#include "methods/attention_predictor/block_choice.h"
#include "methods/attention_predictor/recording.h"

namespace reprise {

struct RecoveryCase {
  BlockBudget budget{512, 64, 64};
  uint32_t period = 8;  // decode steps of a layer from one row over every key to the next; 0: none
  uint32_t warm = 32;   // rows that are taken as a prompt's
  BlockPool pool = BlockPool::kSum;  // of the predictor's history; recovery is of sums
};

/// Makes the predictor of a layer; null: the best blocks are known.
using MakePredictor = std::function<std::unique_ptr<Predictor>()>;

/// Share of attention that the keys hold which a policy with this predictor would read, as a mean
/// over rows, heads and layers from first_layer on: every row sees what the chosen keys alone show.
/// Calibrations are by scores: what they read is best, and no forecast. (Dense ones read it all.)
double closed_loop_recovery(std::span<const Recording> recordings, const RecoveryCase& how,
                            uint32_t first_layer, const MakePredictor& make, ThreadPool& pool);

}  // namespace reprise
