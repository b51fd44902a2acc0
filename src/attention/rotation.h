// Rotary cosines and sines: of the rows of a forward pass, shared by its layers, and of positions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/kv_page.h"
#include "model/model.h"

namespace reprise {

class RotationCache {
 public:
  /// ropes: [n_layer] the table of each layer; must outlive the cache.
  explicit RotationCache(std::span<const RopeTable* const> ropes);

  /// Prepares the rows of a forward pass.
  void begin(std::span<const Row> rows, ThreadPool& pool);
  /// Prepares keys() for positions [0, count); kept between passes.
  void reserve_positions(uint32_t layer, size_t count, ThreadPool& pool);

  const RopeTable& rope(uint32_t layer) const { return *tables_[layer_table_[layer]].rope; }
  /// [pairs][2] of a row of the pass.
  const float* row(uint32_t layer, size_t row) const {
    const Table& table = tables_[layer_table_[layer]];
    return &table.rows[row * table.rope->pairs() * 2];
  }
  /// [16][pairs][2] of the keys of a page whose slot 0 is read at position; what is left of 0 is
  /// there but means nothing.
  const float* keys(uint32_t layer, int32_t position) const {
    const Table& table = tables_[layer_table_[layer]];
    return table.keys.data() + static_cast<size_t>(position + kMargin) * table.rope->pairs() * 2;
  }

 private:
  static constexpr int32_t kMargin = kernels::kPageTokens;  // positions left of 0
  struct Table {
    const RopeTable* rope = nullptr;
    std::vector<float> rows;  // [rows][pairs][2]
    std::vector<float> keys;  // [margin + positions, in whole pages][pairs][2]
  };
  std::vector<Table> tables_;          // one per distinct rotary table of the model
  std::vector<uint32_t> layer_table_;  // [n_layer] index into tables_
};

}  // namespace reprise
