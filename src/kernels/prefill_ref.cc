#include <algorithm>

#include "kernels/matmul_isa.h"

namespace reprise::kernels {

void round_bf16_ref(const float* x, size_t count, size_t row, std::byte* tiles) {
  uint16_t* out = bf16_tile(tiles) + row * kBlockCols;
  for (size_t begin = 0; begin < count; begin += kBlockCols, out += kTileElements) {
    for (size_t i = 0; i < kBlockCols; ++i) {
      out[i] = begin + i < count ? to_bf16(x[begin + i]).bits : uint16_t{0};
    }
  }
}

void expand_ref(const PackedLayout& layout, const std::byte* panel, size_t step_begin,
                size_t step_end, std::byte* tiles) {
  uint16_t* out = bf16_tile(tiles);
  for (size_t step = step_begin; step < step_end; ++step, out += kTileElements) {
    for (size_t lane = 0; lane < kPanelRows; ++lane) {
      float values[kBlockCols];
      unpack_block(layout, panel, step, lane, values);
      for (size_t i = 0; i < kBlockCols; ++i) {
        out[(i / 2 * kPanelRows + lane) * 2 + i % 2] = to_bf16(values[i]).bits;
      }
    }
  }
}

void multiply_ref(const MultiplyJob& job) {
  for (size_t row = 0; row < job.rows; ++row) {
    const uint16_t* x = bf16_tile(job.x + row / 16 * job.x_row_tile) + row % 16 * kBlockCols;
    for (size_t i = 0; i < 2 * kPanelRows; ++i) {
      const size_t panel = i / kPanelRows, lane = i % kPanelRows;
      const uint16_t* w = bf16_tile(job.w) + panel * job.steps * kTileElements;
      float& sum = job.sums[row / 16 * kSumElements + (panel * 16 + row % 16) * 16 + lane];
      if (job.first) sum = 0.0f;
      for (size_t k = 0; k < job.steps * kBlockCols; ++k) {
        const size_t tile = k / kBlockCols * kTileElements, c = k % kBlockCols;
        sum += to_float(Bf16{x[tile + c]}) *
               to_float(Bf16{w[tile + (c / 2 * kPanelRows + lane) * 2 + c % 2]});
      }
    }
  }
}

void write_ref(const WriteJob& job) {
  const size_t end = std::min(job.out.cols, job.column + 2 * kPanelRows);
  for (size_t row = 0; row < job.sums.rows; ++row) {
    for (size_t column = job.column; column < end; ++column) {
      const size_t i = column - job.column;
      const float sum = job.sums.at(row, i / 16)[i % 16];
      float& out = job.out.data[row * job.out.stride + column];
      const float value = job.out.bias ? sum + job.out.bias[column] : sum;
      out = job.out.accumulate ? out + value : value;
    }
  }
}

}  // namespace reprise::kernels
