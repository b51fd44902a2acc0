#include "methods/attention_predictor/recovery.h"

#include <numeric>

#include "methods/top_k.h"

namespace reprise {
namespace {

struct Sum {
  double recovery = 0.0;
  size_t rows = 0;
};

/// What a head's row shows when only some blocks are read; returns the share that they hold.
float hide_unread(std::span<const int32_t> picks, const BlockBudget::Choice& choice, float* scores,
                  uint8_t* read, size_t blocks) {
  std::fill(read + choice.first, read + choice.last, uint8_t{0});
  for (const int32_t pick : picks) read[choice.first + static_cast<size_t>(pick)] = 1;
  float held = 0.0f;
  for (size_t i = 0; i < blocks; ++i) held += read[i] ? scores[i] : 0.0f;
  for (size_t i = 0; i < blocks; ++i) scores[i] = read[i] ? scores[i] / held : 0.0f;
  return held;
}

Sum follow(const std::vector<ScoreRow>& rows, int32_t first, uint32_t layer,
           const RecoveryCase& how, Predictor* predictor) {
  Sum sum;
  std::vector<float> forecast;
  std::vector<int32_t> picks;
  for (size_t i = 0; i < rows.size(); ++i) {
    ScoreRow row = rows[i];
    const int32_t end = first + static_cast<int32_t>(i) + 1;
    const BlockBudget::Choice choice = how.budget.choice(end);
    const bool calibrates =
        how.period > 0 && (static_cast<uint32_t>(end) + layer) % how.period == 0;
    forecast.resize(choice.candidates());
    for (size_t head = 0; head < row.heads && i >= how.warm; ++head) {
      float* scores = &row.scores[head * row.blocks];
      if (predictor != nullptr)
        predictor->forecast(head, choice.first, choice.last, forecast.data());
      else
        std::copy(scores + choice.first, scores + choice.last, forecast.begin());
      top_k(forecast, choice.count, picks);
      std::vector<float> seen(scores, scores + row.blocks);
      sum.recovery += hide_unread(picks, choice, calibrates ? seen.data() : scores,
                                  &row.read[head * row.blocks], row.blocks);
      ++sum.rows;
    }
    if (calibrates) std::ranges::fill(row.read, uint8_t{1});
    if (predictor != nullptr) predictor->push(row);
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
    sums[task] = follow(recording.layers[layer], recording.first, layer, how, predictor.get());
  });
  Sum total;
  for (const Sum& sum : sums) {
    total.recovery += sum.recovery;
    total.rows += sum.rows;
  }
  return total.rows == 0 ? 0.0 : total.recovery / static_cast<double>(total.rows);
}

}  // namespace reprise
