// Scores loaded rows on a CUDA device, in the layers up to that where rows are chosen.
#pragma once

#include <vector>

#include "fusion/cuda/layer_rows.h"

namespace reprise {

struct ScoreBuffers {
  kernels::cuda::DeviceBuffer<uint8_t> candidates;  // [keys]
  kernels::cuda::DeviceBuffer<float> scores;        // [keys], or [rows]
  kernels::cuda::DeviceBuffer<float> workspace;
};

/// Scores beside attention; in the last layer keys and values are stored, and read for scores
/// alone.
class RowScorer : public DeviceAttentionOp {
 public:
  /// rows: of the pass; last: where they are chosen. Everything outlives it.
  RowScorer(const DeviceParts& parts, ScoreBuffers& buffers, const RowCheck& check,
            const LayerRows& rows, uint32_t last);

  Status begin();
  /// The rows that attend() is called with.
  void set_block(LayerRows::Block block) { block_ = block; }
  Status attend(const LayerHeads& heads, cudaStream_t stream) override;
  /// Of the candidates, of all devices; waits for the stream.
  Result<std::vector<float>> scores() const;

 private:
  uint32_t keys() const { return static_cast<uint32_t>(rows_.positions().back()) + 1; }
  Status score_values(const LayerHeads& heads, cudaStream_t stream) const;
  Status score_question(uint32_t layer, cudaStream_t stream) const;
  // Rows [first, end) of the block, which ask.
  struct Asking {
    uint32_t first = 0, end = 0;
  };
  // What they are held against.
  struct Held {
    kernels::cuda::PagedKv kv;
    const uint32_t* pages = nullptr;
    uint32_t keys = 0;  // those that the last of the rows sees
  };
  template <class Args>
  void name_rows(const Held& held, const Asking& asks, Args& args) const;
  /// Calls score() for as many rows as are scored at once, after each other.
  template <class Args, class Score>
  Status in_parts(Args& args, const Asking& asks, Score&& score) const;
  Status score_joint(const Held& held, const Asking& asks, cudaStream_t stream) const;
  Status score_heads(const Held& held, const Asking& asks, uint32_t layer,
                     cudaStream_t stream) const;

  const DeviceParts& parts_;
  ScoreBuffers& b_;
  const RowCheck& check_;
  const LayerRows& rows_;
  uint32_t last_;
  uint32_t first_asking_ = 0;  // row
  LayerRows::Block block_;
};

}  // namespace reprise
