// What AttentionPredictor does on the CPU over a small text, told exact shares of attention.
#pragma once

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "attention/cuda/device_policy.h"
#include "cuda/page_shares_case.h"
#include "methods/attention_predictor/attention_predictor.h"
#include "methods/attention_predictor/average.h"
#include "methods/random_net.h"

namespace reprise::test {

using namespace kernels::cuda;

inline constexpr uint32_t kLayers = 2, kPages = 50, kRows = 140;
inline constexpr int32_t kFirst = 570;  // position of row 0

inline ModelConfig small_config() {
  ModelConfig config;
  config.n_layer = kLayers;
  config.n_head = 4;
  config.n_kv_head = 2;
  config.head_dim = 64;
  config.window.assign(kLayers, 0);
  return config;
}

// One text, whose rows other sequences read, too.
struct Text {
  explicit Text(bool largest)
      : attention({KvType::kBF16, 4, 2, 64, largest}, kPages, kLayers * kRows, kQueryUnit),
        table(kPages),
        positions(kRows),
        keys(kRows) {
    std::iota(table.rbegin(), table.rend(), 0u);
    std::iota(positions.begin(), positions.end(), kFirst);
    std::iota(keys.begin(), keys.end(), kFirst + 1);
  }
  Attention attention;
  std::vector<uint32_t> table;
  std::vector<int32_t> positions, keys;
};

// What the CPU chooses and learns in one layer.
class Reference {
 public:
  Reference(const Text& text, const AttentionPredictorPolicy& policy, uint32_t layer)
      : text_(text),
        options_(policy.options()),
        budget_(policy.budgets()[layer]),
        layer_(layer),
        predictor_(make_predictor(policy, false)),
        changes_(make_predictor(policy, true)) {}

  bool calibrates(uint32_t row) const {
    const auto end = static_cast<uint32_t>(kFirst) + row + 1;
    return options_.period > 0 && (end + layer_) % options_.period == 0;
  }
  void push_whole(uint32_t row) { push(whole(row)); }

  // Pages that a row reads, for each KV head.
  std::vector<std::vector<uint32_t>> choose(uint32_t row, bool calibrates) {
    const int32_t end = kFirst + static_cast<int32_t>(row) + 1;
    const BlockBudget::Choice choice = budget_.choice(end);
    const ScoreRow scored = calibrates ? whole(row) : ScoreRow();
    std::vector<std::vector<uint32_t>> read(2);
    for (size_t head = 0; head < read.size(); ++head) {
      std::vector<int32_t> blocks;
      if (calibrates && options_.calibrate == "dense") {
        blocks.resize(choice.candidates());
        std::iota(blocks.begin(), blocks.end(), 0);
      } else if (calibrates) {
        top_k(scored.scores_of(head).subspan(choice.first, choice.candidates()), choice.count,
              blocks);
      } else {
        predictor_->best(head, choice.first, choice.last, choice.count, blocks);
      }
      for (uint32_t page = 0; page < choice.first; ++page) read[head].push_back(page);
      for (const int32_t block : blocks) {
        read[head].push_back(static_cast<uint32_t>(block) + static_cast<uint32_t>(choice.first));
      }
      for (auto page = static_cast<uint32_t>(choice.last); page * 16 < static_cast<uint32_t>(end);
           ++page) {
        read[head].push_back(page);
      }
    }
    return read;
  }

  // Logarithms of sums over what each query head reads.
  std::vector<float> lse(uint32_t row, const std::vector<std::vector<uint32_t>>& read) const {
    const uint32_t end = static_cast<uint32_t>(kFirst) + row + 1;
    std::vector<float> all(size_t{kLayers} * kRows * 4);
    for (uint32_t head = 0; head < 4; ++head) {
      std::vector<uint32_t> pages;
      for (const uint32_t page : read[head / 2]) pages.push_back(text_.table[page]);
      const auto keys = static_cast<uint32_t>(pages.size() * 16) - (16 - 1 - (end - 1) % 16);
      all[q_row(row) * 4 + head] = text_.attention.lse(q_row(row), head, pages, keys);
    }
    return all;
  }
  void push_read(uint32_t row, const std::vector<std::vector<uint32_t>>& read) {
    const auto total = lse(row, read);
    ScoreRow scores;
    scores.begin_part(2, (static_cast<size_t>(kFirst) + row) / 16 + 1);
    for (uint32_t head = 0; head < 2; ++head) {
      for (const uint32_t page : read[head]) {
        scores.read.push_back(static_cast<int32_t>(page));
        scores.scores.push_back(share(row, head, page, total));
      }
      scores.offsets.push_back(static_cast<uint32_t>(scores.read.size()));
    }
    push(scores);
  }
  // How much better a row's worst page of one choice is than the best of another one's that is not
  // in it, less what rounding may do to a network's forecasts.
  double lost(uint32_t row, uint32_t head, const std::vector<uint32_t>& want,
              const std::vector<uint32_t>& got) {
    const BlockBudget::Choice choice = budget_.choice(kFirst + static_cast<int32_t>(row) + 1);
    std::vector<float> forecasts(choice.candidates()), changes(forecasts);
    predictor_->forecast(head, choice.first, choice.last, forecasts.data());
    if (changes_ != nullptr) {
      changes_->forecast(head, choice.first, choice.last, changes.data());
    }
    double best = -1e9, worst = 1e9;
    const auto missing = [&](uint32_t page, const std::vector<uint32_t>& from) {
      return std::ranges::find(from, page) == from.end();
    };
    for (const uint32_t page : want) {
      if (!missing(page, got)) continue;
      const size_t at = page - choice.first;
      best = std::max(best, forecasts[at] - kHalfError * changes[at]);
    }
    for (const uint32_t page : got) {
      if (!missing(page, want)) continue;
      if (page < choice.first || page >= choice.last) return 1e9;
      const size_t at = page - choice.first;
      worst = std::min(worst, forecasts[at] + kHalfError * changes[at]);
    }
    return best - worst;
  }
  uint32_t q_row(uint32_t row) const { return layer_ * kRows + row; }

 private:
  // changes: what comes of inputs, if there is a network.
  static std::unique_ptr<Predictor> make_predictor(const AttentionPredictorPolicy& policy,
                                                   bool changes) {
    const AttentionPredictorOptions& own = policy.options();
    if (policy.network() == nullptr) {
      if (changes) return nullptr;
      return std::make_unique<AveragePredictor>(2, own.factor, own.period);
    }
    const ForecastNet& net = *policy.network();
    return std::make_unique<NetworkPredictor>(
        2, std::make_shared<const ForecastNet>(changes ? magnitudes_of(net, false) : net),
        own.factor, own.period);
  }
  void push(const ScoreRow& row) {
    predictor_->push(row);
    if (changes_ != nullptr) changes_->push(row);
  }
  float share(uint32_t row, uint32_t head, uint32_t page, const std::vector<float>& total) const {
    const uint32_t left = static_cast<uint32_t>(kFirst) + row + 1 - page * 16;
    return static_cast<float>(
        text_.attention.share(q_row(row), head, text_.table[page], std::min(left, 16u), total)
            .value);
  }
  ScoreRow whole(uint32_t row) const {
    const uint32_t pages = (static_cast<uint32_t>(kFirst) + row) / 16 + 1;
    std::vector<std::vector<uint32_t>> all(2, std::vector<uint32_t>(pages));
    for (auto& own : all) std::iota(own.begin(), own.end(), 0u);
    const auto total = lse(row, all);
    ScoreRow scores;
    scores.reset(2, pages);
    for (uint32_t i = 0; i < 2 * pages; ++i) {
      scores.scores[i] = share(row, i / pages, i % pages, total);
    }
    return scores;
  }

  const Text& text_;
  AttentionPredictorOptions options_;
  BlockBudget budget_;
  uint32_t layer_;
  std::unique_ptr<Predictor> predictor_, changes_;
};

}  // namespace reprise::test
