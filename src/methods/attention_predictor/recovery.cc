#include "methods/attention_predictor/recovery.h"

#include "methods/top_k.h"

namespace reprise {
namespace {

struct Sum {
  double recovery = 0.0;
  size_t rows = 0;
};

/// Appends to seen what a head's row shows when only some blocks are read; returns the share that
/// they hold. pooled: scores as histories have them.
float read_some(std::span<const int32_t> picks, const BlockBudget::Choice& choice,
                std::span<const float> scores, std::span<const float> pooled, ScoreRow& seen) {
  const size_t begin = seen.read.size();
  const auto add = [&](size_t from, size_t to) {
    for (; from < to; ++from) seen.read.push_back(static_cast<int32_t>(from));
  };
  add(0, choice.first);
  for (const int32_t pick : picks) seen.read.push_back(static_cast<int32_t>(choice.first) + pick);
  add(choice.last, seen.blocks);
  float held = 0.0f;
  const std::span read = std::span(seen.read).subspan(begin);
  for (const int32_t block : read) held += scores[static_cast<size_t>(block)];
  for (const int32_t block : read) seen.scores.push_back(pooled[static_cast<size_t>(block)] / held);
  seen.offsets.push_back(static_cast<uint32_t>(seen.read.size()));
  return held;
}

Sum follow(const Recording& recording, uint32_t layer, const RecoveryCase& how,
           Predictor* predictor) {
  const std::vector<ScoreRow>& rows = recording.layers[layer];
  const std::vector<ScoreRow>& pooled = recording.of(how.pool)[layer];
  Sum sum;
  std::vector<float> forecast;
  std::vector<int32_t> picks;
  for (size_t i = 0; i < rows.size(); ++i) {
    const ScoreRow& row = rows[i];
    ScoreRow seen;
    seen.begin_part(row.heads, row.blocks);
    const int32_t end = recording.first + static_cast<int32_t>(i) + 1;
    const BlockBudget::Choice choice = how.budget.choice(end);
    const bool calibrates =
        how.period > 0 && (static_cast<uint32_t>(end) + layer) % how.period == 0;
    forecast.resize(choice.candidates());
    for (size_t head = 0; head < row.heads && i >= how.warm; ++head) {
      const auto scores = row.scores_of(head), history = pooled[i].scores_of(head);
      const auto known = predictor != nullptr ? history : scores;
      if (predictor != nullptr && !calibrates)
        predictor->forecast(head, choice.first, choice.last, forecast.data());
      else
        std::copy_n(&known[choice.first], forecast.size(), forecast.begin());
      top_k(forecast, choice.count, picks);
      sum.recovery += read_some(picks, choice, scores, history, seen);
      ++sum.rows;
    }
    if (predictor != nullptr) predictor->push(calibrates || i < how.warm ? pooled[i] : seen);
  }
  return sum;
}

}  // namespace

double closed_loop_recovery(std::span<const Recording> recordings, const RecoveryCase& how,
                            uint32_t first_layer, const MakePredictor& make, ThreadPool& pool) {
  if (recordings.empty()) return 0.0;
  const size_t layers = recordings.front().layers.size() - first_layer;
  std::vector<Sum> sums(recordings.size() * layers);
  pool.run(sums.size(), [&](size_t task, int) {
    const Recording& recording = recordings[task / layers];
    const auto layer = first_layer + static_cast<uint32_t>(task % layers);
    const auto predictor = make ? make() : nullptr;
    sums[task] = follow(recording, layer, how, predictor.get());
  });
  Sum total;
  for (const Sum& sum : sums) {
    total.recovery += sum.recovery;
    total.rows += sum.rows;
  }
  return total.rows == 0 ? 0.0 : total.recovery / static_cast<double>(total.rows);
}

}  // namespace reprise
