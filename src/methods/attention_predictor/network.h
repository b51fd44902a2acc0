// The network of the paper as a predictor.
#pragma once

#include <memory>
#include <vector>

#include "kernels/score_net.h"
#include "methods/attention_predictor/average.h"

namespace reprise {

/// A trained network and how it is used.
struct ForecastNet {
  kernels::ScoreNet net;
  uint32_t rows = 64;                // of history
  BlockPool pool = BlockPool::kSum;  // of the scores that it knows
  /// As published: scores go in as they are, zeros for blocks that a row did not read, and what
  /// comes out is the forecast. Otherwise square roots of scores go in, of blocks that a row did
  /// not read what the average expected there, and what comes out is added to the root of the
  /// average.
  bool published = false;
};

/// Exact, and cheaper than the network as published: the part of a row in the mean over time
/// depends on two rows before and after it, so that it is kept while the row stays inside the
/// history; a step computes five rows of the second convolution.
class NetworkPredictor : public Predictor {
 public:
  /// factor and period: of the average.
  NetworkPredictor(size_t heads, std::shared_ptr<const ForecastNet> net, float factor,
                   uint32_t period);

  std::unique_ptr<Predictor> clone() const override {
    return std::make_unique<NetworkPredictor>(*this);
  }
  void push(const ScoreRow& row) override;
  void forecast(size_t head, size_t first, size_t last, float* out) override;
  void clear() override;
  uint64_t bytes() const override;
  void save(StateWriter& out) const override;
  void load(StateReader& in, size_t max_blocks) override;

 private:
  struct Window {  // columns and rows, by number since the start, that the network sees
    size_t first, last;
    int64_t oldest, newest;
  };
  struct Head {
    std::vector<float> rows;         // [ring, stride] what goes into the network
    std::vector<float> parts;        // [ring, stride] projections of rows that see no edge of time
    int64_t known = -1;              // newest row whose part is kept
    size_t first = 0, last = 0;      // columns of the parts
    std::vector<float> inner, edge;  // scratch
  };

  void grow(size_t blocks);
  float* at(std::vector<float>& ring, int64_t row) const {
    return &ring[static_cast<size_t>(row % static_cast<int64_t>(net_->rows)) * stride_];
  }
  int64_t oldest() const {
    return std::max<int64_t>(0, pushed_ - static_cast<int64_t>(net_->rows));
  }
  /// The projection of a row over the columns of the window; out: [last - first].
  void project(Head& head, const Window& window, int64_t row, float* out) const;
  /// Scores of all blocks of a row, as far as it tells them.
  void fill_in(size_t head, const ScoreRow& row);
  void expect(size_t head, std::span<const int32_t> read, std::span<const float> scores,
              size_t blocks);
  void keep_parts(Head& head, const Window& window) const;

  size_t heads_;
  std::shared_ptr<const ForecastNet> net_;
  AveragePredictor average_;  // empty as published
  size_t blocks_ = 0, stride_ = 0;
  int64_t pushed_ = 0;
  std::vector<Head> histories_;  // [heads]
  std::vector<float> expected_;  // [blocks] of a head
};

}  // namespace reprise
