#include "attention/rotation.h"

namespace reprise {

RotationCache::RotationCache(std::span<const RopeTable* const> ropes) {
  for (const RopeTable* rope : ropes) {
    uint32_t table = 0;
    while (table < tables_.size() && tables_[table].rope != rope) ++table;
    if (table == tables_.size()) tables_.push_back({rope, {}, {}});
    layer_table_.push_back(table);
  }
}

void RotationCache::begin(std::span<const Row> rows) {
  for (Table& table : tables_) {
    const size_t row_floats = table.rope->pairs() * 2;
    table.rows.resize(rows.size() * row_floats);
    for (size_t row = 0; row < rows.size(); ++row) {
      table.rope->cos_sin(rows[row].position, &table.rows[row * row_floats]);
    }
  }
}

void RotationCache::reserve_positions(uint32_t layer, size_t count) {
  Table& table = tables_[layer_table_[layer]];
  const size_t row_floats = table.rope->pairs() * 2;
  // A page that begins at the last position still has 16 slots.
  const size_t rows = kMargin + (count / kernels::kPageTokens + 2) * kernels::kPageTokens;
  size_t row = row_floats == 0 ? rows : table.keys.size() / row_floats;
  if (row >= rows) return;
  table.keys.resize(rows * row_floats);
  for (; row < rows; ++row) {
    table.rope->cos_sin(static_cast<int32_t>(row) - kMargin, &table.keys[row * row_floats]);
  }
}

}  // namespace reprise
