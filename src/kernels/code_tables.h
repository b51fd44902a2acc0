// Tables of code sums, for a Row of 16 products of any instruction set. Static inline functions:
// each instruction set compiles its own.
#pragma once

#include "kernels/code_sums.h"

namespace reprise::kernels {

// Row: zero(), add(q, centroids) adds q times 16 floats, lowest(), highest(), store(low, levels,
// entries) rounds (x - low) levels to bytes of at most 127.
template <class Row>
static inline void fill_code_tables(const CodeTablesArgs& args) {
  const size_t planes = (args.parts + 1) / 2;
  Row products[2 * kMostPlanes];
  float lows[2 * kMostPlanes];
  for (size_t row = 0; row < args.rows; ++row) {
    const float* q = args.q + row * args.q_stride;
    float span = 0.0f, low = 0.0f;
    for (size_t part = 0; part < args.parts; ++part) {
      Row sum = Row::zero();
      for (size_t d = args.first_dims[part]; d < args.first_dims[part + 1]; ++d) {
        sum.add(q[d], args.centroids + d * kCodeEntries);
      }
      products[part] = sum;
      lows[part] = sum.lowest();
      low += lows[part];
      const float width = sum.highest() - lows[part];
      args.spans[row * args.parts + part] = width;
      span = width > span ? width : span;
    }
    const float step = span > 0.0f ? span / kLargestEntry : 1.0f;
    args.low[row] = low;
    args.step[row] = step;
    uint8_t* entries = args.tables + row * planes * 2 * kCodeEntries;
    for (size_t part = 0; part < args.parts; ++part) {
      products[part].store(lows[part], 1.0f / step, entries + part * kCodeEntries);
    }
    for (size_t i = args.parts * kCodeEntries; i < planes * 2 * kCodeEntries; ++i) entries[i] = 0;
  }
}

}  // namespace reprise::kernels
