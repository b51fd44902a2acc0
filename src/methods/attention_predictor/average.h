// The exponential average of past rows: what a trained network is measured against.
#pragma once

#include "methods/attention_predictor/predictor.h"
#include "methods/attention_predictor/shortlist.h"

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
  /// The forecasts of blocks that the last rows did not read are looked at now and then.
  void best(size_t head, size_t first, size_t last, size_t count,
            std::vector<int32_t>& blocks) override;
  void fetch() const override;
  void clear() override;
  uint64_t bytes() const override;
  void save(StateWriter& out) const override;
  void load(StateReader& in, size_t max_blocks) override;

 private:
  void grow(size_t blocks);
  std::span<float> averages_of(size_t head) {
    return std::span(averages_).subspan(head * stride_, blocks_);
  }
  std::span<float> take_back(size_t head);
  void add_whole(size_t head, std::span<const float> scores, float factor);
  void add_part(size_t head, std::span<const int32_t> read, std::span<const float> scores,
                float factor);
  float expected_elsewhere(size_t head);

  struct Head {
    int64_t total = 0;   // of its averages, exactly, in units of kShareUnit; where nothing fades
    bool added = false;  // total is known
    Shortlist shortlist;
  };
  size_t heads_;
  float factor_, fade_;
  size_t blocks_ = 0, stride_ = 0;
  std::vector<float> averages_;  // [heads, stride]
  std::vector<Head> known_;      // [heads]
  std::vector<float> before_;    // averages of what a row read
  std::vector<float> after_;     // and what they become
};

}  // namespace reprise
