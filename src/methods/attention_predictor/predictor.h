// What forecasts attention from its history: one object holds the history of one layer's heads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/state_bytes.h"
#include "methods/top_k.h"

namespace reprise {

/// What stands for the keys of a block.
enum class BlockPool : uint8_t { kSum, kMax };

/// Attention of one query row, pooled by blocks: the history that is forecast from. A whole row
/// read every block; of others there are the blocks that they read.
struct ScoreRow {
  size_t heads = 0, blocks = 0;
  std::vector<float> scores;      // shares of attention: [heads, blocks], or of each that was read
  std::vector<uint32_t> offsets;  // [heads + 1] where a head's blocks stand in read; whole: empty
  std::vector<int32_t> read;      // ascending for each head

  /// A whole row of zeros.
  void reset(size_t head_count, size_t block_count) {
    begin_part(head_count, block_count);
    offsets.clear();
    scores.resize(heads * blocks, 0.0f);
  }
  /// A row that read nothing; heads are to be appended.
  void begin_part(size_t head_count, size_t block_count) {
    heads = head_count;
    blocks = block_count;
    scores.clear();
    read.clear();
    offsets.assign(1, 0);
  }
  bool whole() const { return offsets.empty(); }
  /// Of a head: as many as there are blocks, or as were read.
  std::span<const float> scores_of(size_t head) const {
    const size_t first = whole() ? head * blocks : offsets[head];
    const size_t end = whole() ? first + blocks : offsets[head + 1];
    return std::span(scores).subspan(first, end - first);
  }
  std::span<const int32_t> read_by(size_t head) const {
    return std::span(read).subspan(offsets[head], offsets[head + 1] - offsets[head]);
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
  /// Which min(count, last - first) of these blocks rank highest, counted from first, ascending.
  /// Ties go to the lower. Heads may be asked for in parallel.
  virtual void best(size_t head, size_t first, size_t last, size_t count,
                    std::vector<int32_t>& blocks) {
    std::vector<float> forecasts(last - first);
    forecast(head, first, last, forecasts.data());
    top_k(forecasts, count, blocks);
  }
  /// Fetches what the next row and choice touch towards the caches: a token leaves nothing there.
  virtual void fetch() const {}
  virtual void clear() = 0;
  virtual uint64_t bytes() const = 0;
  virtual void save(StateWriter& out) const = 0;
  /// Of a history of so many blocks at most. What cannot be is noted in `in`.
  virtual void load(StateReader& in, size_t max_blocks) = 0;
};

}  // namespace reprise
