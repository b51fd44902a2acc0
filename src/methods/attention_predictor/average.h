// The exponential average of past rows: what a trained network is measured against.
#pragma once

#include "methods/attention_predictor/predictor.h"

namespace reprise {

/// average <- factor average + (1 - factor) row where the row read; elsewhere it fades by
/// factor^(1/period), since the next row that reads everything comes after that many. What a row
/// read shares the attention that is not expected elsewhere, so that averages stay shares.
/// With factor 0 this is the last row.
class AveragePredictor : public Predictor {
 public:
  /// period: rows from one that reads everything to the next; 0 = there is none.
  AveragePredictor(size_t heads, float factor, uint32_t period);

  std::unique_ptr<Predictor> clone() const override {
    return std::make_unique<AveragePredictor>(*this);
  }
  /// What is left, after a row, of the average of a block that it did not read.
  float fade() const { return fade_; }
  void push(const ScoreRow& row) override;
  void forecast(size_t head, size_t first, size_t last, float* out) override;
  void clear() override;
  uint64_t bytes() const override { return averages_.capacity() * sizeof(float); }
  void save(StateWriter& out) const override;
  void load(StateReader& in, size_t max_blocks) override;

 private:
  void grow(size_t blocks);
  void add_part(std::span<const int32_t> read, std::span<const float> scores, float factor,
                float* average);

  size_t heads_;
  float factor_, fade_;
  size_t blocks_ = 0, stride_ = 0;
  std::vector<float> averages_;  // [heads, stride]
  std::vector<float> before_;    // averages of what a row read
};

}  // namespace reprise
