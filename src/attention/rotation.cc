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

void RotationCache::reserve_pages(uint32_t layer, size_t length) {
  Table& table = tables_[layer_table_[layer]];
  const size_t row_floats = table.rope->pairs() * 2;
  const size_t blocks = (length + kernels::kPageTokens - 1) / kernels::kPageTokens;
  size_t position = row_floats == 0 ? 0 : table.pages.size() / row_floats;
  if (position >= blocks * kernels::kPageTokens) return;
  table.pages.resize(blocks * kernels::kPageTokens * row_floats);
  for (; position < blocks * kernels::kPageTokens; ++position) {
    table.rope->cos_sin(static_cast<int32_t>(position), &table.pages[position * row_floats]);
  }
}

}  // namespace reprise
