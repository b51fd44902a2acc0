// Scores loaded rows on a CUDA device, in the layer where rows are chosen.
#pragma once

#include <vector>

#include "fusion/cuda/layer_rows.h"

namespace reprise {

struct ScoreBuffers {
  kernels::cuda::DeviceBuffer<uint8_t> candidates;  // [keys]
  kernels::cuda::DeviceBuffer<float> scores;        // [keys], or [rows]
  kernels::cuda::DeviceBuffer<float> workspace;
};

/// Stores keys and values of the layer, and reads for scores alone.
class RowScorer : public DeviceAttentionOp {
 public:
  /// rows: of the pass; table: of the layer. Everything outlives it.
  RowScorer(const DeviceParts& parts, ScoreBuffers& buffers, const RowCheck& check,
            const LayerRows& rows, const uint32_t* table);

  Status begin();
  /// The rows that attend() is called with.
  void set_block(LayerRows::Block block) { block_ = block; }
  Status attend(const LayerHeads& heads, cudaStream_t stream) override;
  /// Of the candidates; waits for the stream.
  Result<std::vector<float>> scores() const;

 private:
  uint32_t keys() const { return static_cast<uint32_t>(rows_.positions().back()) + 1; }
  Status score_values(const LayerHeads& heads, cudaStream_t stream) const;
  Status score_question(uint32_t layer, cudaStream_t stream) const;

  const DeviceParts& parts_;
  ScoreBuffers& b_;
  const RowCheck& check_;
  const LayerRows& rows_;
  const uint32_t* table_;
  uint32_t first_asking_ = 0;  // row
  LayerRows::Block block_;
};

}  // namespace reprise
