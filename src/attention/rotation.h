// Rotary cosines and sines that one forward pass needs, computed once and shared by its layers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kv_page.h"
#include "model/model.h"

namespace reprise {

class RotationCache {
 public:
  /// ropes: [n_layer] the table of each layer; must outlive the cache.
  explicit RotationCache(std::span<const RopeTable* const> ropes);

  /// Prepares the rows of a forward pass.
  void begin(std::span<const Row> rows);
  /// Prepares page() for keys [0, length); kept between passes.
  void reserve_pages(uint32_t layer, size_t length);

  const RopeTable& rope(uint32_t layer) const { return *tables_[layer_table_[layer]].rope; }
  /// [pairs][2] of a row of the pass.
  const float* row(uint32_t layer, size_t row) const {
    const Table& table = tables_[layer_table_[layer]];
    return &table.rows[row * table.rope->pairs() * 2];
  }
  /// [16][pairs][2] of the keys of a page, at their positions in the sequence.
  const float* page(uint32_t layer, size_t block) const {
    const Table& table = tables_[layer_table_[layer]];
    return &table.pages[block * kernels::kPageTokens * table.rope->pairs() * 2];
  }

 private:
  struct Table {
    const RopeTable* rope = nullptr;
    std::vector<float> rows;   // [rows][pairs][2]
    std::vector<float> pages;  // [blocks][16][pairs][2]
  };
  std::vector<Table> tables_;          // one per distinct rotary table of the model
  std::vector<uint32_t> layer_table_;  // [n_layer] index into tables_
};

}  // namespace reprise
