#include "attention/rotation.h"

#include "kernels/for_rows.h"

namespace reprise {
namespace {

constexpr size_t kAngleFloats = 16;  // an angle costs what about so many floats do

}  // namespace

RotationCache::RotationCache(std::span<const RopeTable* const> ropes) {
  for (const RopeTable* rope : ropes) {
    uint32_t table = 0;
    while (table < tables_.size() && tables_[table].rope != rope) ++table;
    if (table == tables_.size()) tables_.push_back({rope, {}, {}});
    layer_table_.push_back(table);
  }
}

void RotationCache::begin(std::span<const Row> rows, ThreadPool& pool) {
  for (Table& table : tables_) {
    const size_t row_floats = table.rope->pairs() * 2;
    if (row_floats == 0) continue;
    table.rows.resize(rows.size() * row_floats);
    kernels::for_rows(pool, rows.size(), row_floats * kAngleFloats, [&](size_t row) {
      table.rope->cos_sin(rows[row].position, &table.rows[row * row_floats]);
    });
  }
}

void RotationCache::reserve_positions(uint32_t layer, size_t count, ThreadPool& pool) {
  Table& table = tables_[layer_table_[layer]];
  const size_t row_floats = table.rope->pairs() * 2;
  // A page that begins at the last position still has 16 slots.
  const size_t rows = kMargin + (count / kernels::kPageTokens + 2) * kernels::kPageTokens;
  const size_t first = row_floats == 0 ? rows : table.keys.size() / row_floats;
  if (first >= rows) return;
  table.keys.resize(rows * row_floats);
  kernels::for_rows(pool, rows - first, row_floats * kAngleFloats, [&](size_t i) {
    const size_t row = first + i;
    table.rope->cos_sin(static_cast<int32_t>(row) - kMargin, &table.keys[row * row_floats]);
  });
}

}  // namespace reprise
