// What forecasts attention from its history: one object holds the history of one layer's heads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/state_bytes.h"

namespace reprise {

/// Attention of one query row, pooled by blocks: the history that is forecast from.
struct ScoreRow {
  size_t heads = 0, blocks = 0;
  std::vector<float> scores;  // [heads, blocks] share of attention; 0 where nothing was read
  std::vector<uint8_t> read;  // [heads, blocks] whether the row read the block

  void reset(size_t head_count, size_t block_count) {
    heads = head_count;
    blocks = block_count;
    scores.assign(heads * blocks, 0.0f);
    read.assign(heads * blocks, 0);
  }
};

/// Rows come in order of positions and never get shorter.
class Predictor {
 public:
  virtual ~Predictor() = default;
  virtual std::unique_ptr<Predictor> clone() const = 0;
  virtual void push(const ScoreRow& row) = 0;
  /// out: [last - first] how blocks [first, last) of a head rank at the next row; more is better.
  /// Heads may be asked for in parallel.
  virtual void forecast(size_t head, size_t first, size_t last, float* out) = 0;
  virtual void clear() = 0;
  virtual uint64_t bytes() const = 0;
  virtual void save(StateWriter& out) const = 0;
  /// Of a history of so many blocks at most. What cannot be is noted in `in`.
  virtual void load(StateReader& in, size_t max_blocks) = 0;
};

}  // namespace reprise
