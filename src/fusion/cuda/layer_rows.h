// Rows of a fused prompt on a CUDA device, which go through its layers one after another.
#pragma once

#include <span>
#include <vector>

#include "fusion/cuda/cuda_fusion.h"

namespace reprise {

/// Kept from one prompt to the next.
struct RowBuffers {
  kernels::cuda::DeviceBuffer<float> x, kept_x;  // [rows, hidden]
  kernels::cuda::DeviceBuffer<int32_t> tokens, positions;
  kernels::cuda::DeviceBuffer<uint32_t> kept;                     // rows
  kernels::cuda::DeviceBuffer<uint32_t> sequences;                // [block] zeros
  kernels::cuda::DeviceBuffer<kernels::cuda::PrefillRows> steps;  // [blocks]
  kernels::cuda::DeviceBuffer<uint32_t> tables;                   // [n_layer, capacity]
  PositionFreeKeys unrotated;                                     // of pages of one layer
};

/// What rows go through of a layer.
enum class LayerPart : uint8_t {
  kStore,   // keys and values are computed, and attention has no queries
  kAttend,  // up to attention
  kWhole,
};

class LayerRows {
 public:
  /// tables of a sequence's pages are sent once, by begin().
  LayerRows(const DeviceParts& parts, RowBuffers& buffers) : parts_(parts), b_(buffers) {}

  /// position_free: how its pages hold keys.
  Status send_tables(const SequenceKv& kv, bool position_free);
  const uint32_t* tables() const { return b_.tables.data(); }
  const uint32_t* table(uint32_t layer) const { return tables() + size_t{layer} * capacity_; }
  uint32_t capacity() const { return capacity_; }
  /// What position-free keys are read with; null: pages hold rotated ones.
  const PositionFreeKeys* unrotated() const { return position_free_ ? &b_.unrotated : nullptr; }

  /// Starts with rows at ascending positions of a prompt.
  Status begin(std::span<const int32_t> positions, std::span<const int32_t> prompt);
  std::span<const int32_t> positions() const { return positions_; }
  const int32_t* device_positions() const { return b_.positions.data(); }
  /// Goes on with some of them, at ascending positions.
  Status keep(std::span<const int32_t> positions);

  /// Blocks of rows, as attention is to know them.
  struct Block {
    uint32_t first = 0, count = 0;  // rows
  };
  uint32_t blocks() const { return (rows() + parts_.block - 1) / parts_.block; }
  Block block(uint32_t index) const;
  /// Takes all rows through a part of a layer. op(block): what attends.
  template <class Op>
  Status run(uint32_t layer, LayerPart part, Op&& op);
  /// Takes the last row through the last layer, to its logits; no other row is left then.
  Status finish(float* logits);

 private:
  uint32_t rows() const { return static_cast<uint32_t>(positions_.size()); }
  DeviceRows device_rows(uint32_t first, uint32_t count) const;
  Status begin_block(uint32_t index);
  Status send_steps();
  DeviceLayerRows layer_rows(uint32_t index) const;
  Status run_block(uint32_t layer, LayerPart part, const DeviceLayerRows& rows,
                   DeviceAttentionOp& attention);

  const DeviceParts& parts_;
  RowBuffers& b_;
  uint32_t capacity_ = 0;
  bool position_free_ = false;
  std::vector<int32_t> positions_;
  std::vector<kernels::cuda::PrefillRows> steps_;  // [blocks]
  bool began_ = false;                             // the executor has the only block
};

template <class Op>
Status LayerRows::run(uint32_t layer, LayerPart part, Op&& op) {
  for (uint32_t i = 0; i < blocks(); ++i) {
    if (auto status = begin_block(i); !status) return status;
    if (auto status = run_block(layer, part, layer_rows(i), op(block(i))); !status) return status;
  }
  return {};
}

}  // namespace reprise
