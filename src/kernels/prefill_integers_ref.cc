#include <algorithm>
#include <cmath>

#include "kernels/integer_tiles.h"
#include "kernels/matmul_isa.h"

namespace reprise::kernels {
namespace {

// Columns [begin, end) of a row of activations and one of weights, in units of their scales.
float dot(const Int8Activations& x, size_t row, const Int8Weights& w, size_t lane, size_t begin,
          size_t end) {
  const auto code = [&](size_t i) { return w.codes[i / 4][lane][i % 4]; };
  int32_t sum = 0;
  for (size_t i = begin; i < end; ++i) sum += x.q[row][i] * code(i);
  const size_t top = x.top_column[row];
  const bool holds_top = begin <= top && top < end;
  return static_cast<float>(sum) + (holds_top ? static_cast<float>(code(top)) * x.top[row] : 0.0f);
}

int32_t dot(const Int16Activations& x, size_t row, const Int16Weights& w, size_t lane, size_t begin,
            size_t end) {
  int32_t sum = 0;
  for (size_t i = begin; i < end; ++i) sum += x.q[row][i] * w.codes[i / 2][lane][i % 2];
  return sum;
}

// product(x, row, w, lane, g): what group g of a tile gives.
template <class Activations, class Weights, class Product>
void multiply(const MultiplyJob& job, Product product) {
  const size_t groups = kBlockCols / quant_format(job.type)->group;
  const auto* panels = reinterpret_cast<const Weights*>(job.w);
  for (size_t row = 0; row < job.rows; ++row) {
    const auto* x = reinterpret_cast<const Activations*>(job.x + row / 16 * job.x_row_tile);
    for (size_t i = 0; i < 2 * kPanelRows; ++i) {
      const size_t panel = i / kPanelRows, lane = i % kPanelRows, r = row % 16;
      float& sum = job.sums[row / 16 * kSumElements + (panel * 16 + r) * 16 + lane];
      if (job.first) sum = 0.0f;
      for (size_t step = 0; step < job.steps; ++step) {
        const Weights& w = panels[panel * job.steps + step];
        for (size_t g = 0; g < groups; ++g) sum += product(x[step], r, w, lane, g);
      }
    }
  }
}

}  // namespace

void round_int8_ref(const float* x, size_t count, size_t row, std::byte* tiles) {
  auto* tile = reinterpret_cast<Int8Activations*>(tiles);
  for (size_t column = 0; column < count; column += kBlockCols, x += kBlockCols, ++tile) {
    const auto smaller = [](float a, float b) { return std::fabs(a) < std::fabs(b); };
    const size_t top = static_cast<size_t>(std::max_element(x, x + kBlockCols, smaller) - x);
    float rest = 0;
    for (size_t i = 0; i < kBlockCols; ++i) {
      if (i != top) rest = std::max(rest, std::fabs(x[i]));
    }
    const bool is_zero = !(std::fabs(x[top]) > kSmallestMagnitude);
    const float largest = std::max(rest, std::fabs(x[top]) / kLargestTop);
    const float inverse = is_zero ? 0.0f : kLargestInt8 / largest;
    int32_t sums[2] = {};
    for (size_t i = 0; i < kBlockCols; ++i) {
      const float q = i == top ? 0.0f : std::nearbyint(x[i] * inverse);
      tile->q[row][i] = std::isfinite(q) ? static_cast<int8_t>(q) : int8_t{0};
      sums[i / 16] += tile->q[row][i];
    }
    tile->set_top(row, is_zero ? 0.0f : x[top], top, inverse);
    tile->set_sums(row, largest / kLargestInt8, sums);
  }
}

void expand_int8_ref(const PackedLayout& layout, const std::byte* panel, size_t step_begin,
                     size_t step_end, std::byte* tiles) {
  const QuantFormat format = *quant_format(layout.type);
  auto* tile = reinterpret_cast<Int8Weights*>(tiles);
  for (size_t step = step_begin; step < step_end; ++step, ++tile) {
    for (size_t lane = 0; lane < kPanelRows; ++lane) {
      const PackedBlock w = read_packed(layout, panel, step, lane);
      for (size_t i = 0; i < kBlockCols; ++i) {
        tile->codes[i / 4][lane][i % 4] = static_cast<uint8_t>(w.codes[i / 4] >> 8 * (i % 4));
      }
      for (size_t g = 0; g < kBlockCols / format.group; ++g) {
        const auto [scale, min] = w.scales[g];
        tile->scale[g][lane] = scale;
        tile->min[g][lane] = format.has_min ? min : -scale * static_cast<float>(format.zero());
      }
    }
  }
}

void multiply_int8_ref(const MultiplyJob& job) {
  const size_t group = quant_format(job.type)->group;
  multiply<Int8Activations, Int8Weights>(
      job, [&](const auto& x, size_t r, const auto& w, size_t lane, size_t g) {
        const float in_units = dot(x, r, w, lane, g * group, (g + 1) * group);
        const float of_min = w.min[g][lane] * x.sum[group == kBlockCols ? 2 : g][r];
        return in_units * (w.scale[g][lane] * x.scale[r]) + of_min;
      });
}

void round_int16_ref(const float* x, size_t count, size_t row, std::byte* tiles) {
  auto* tile = reinterpret_cast<Int16Activations*>(tiles);
  for (size_t column = 0; column < count; column += kBlockCols, x += kBlockCols, ++tile) {
    float largest = 0;
    for (size_t i = 0; i < kBlockCols; ++i) largest = std::max(largest, std::fabs(x[i]));
    const float inverse = largest > kSmallestMagnitude ? kLargestInt16 / largest : 0.0f;
    for (size_t i = 0; i < kBlockCols; ++i) {
      tile->q[row][i] = static_cast<int16_t>(std::nearbyint(x[i] * inverse));
    }
    tile->scale[row] = largest / kLargestInt16;
  }
}

void expand_int16_ref(const PackedLayout& layout, const std::byte* panel, size_t step_begin,
                      size_t step_end, std::byte* tiles) {
  const QuantFormat format = *quant_format(layout.type);
  auto* tile = reinterpret_cast<Int16Weights*>(tiles);
  for (size_t step = step_begin; step < step_end; ++step, ++tile) {
    for (size_t lane = 0; lane < kPanelRows; ++lane) {
      const PackedBlock w = read_packed(layout, panel, step, lane);
      for (size_t i = 0; i < kBlockCols; ++i) {
        uint32_t code = w.codes[i / 4] >> 8 * (i % 4) & 255;
        if (format.lookup) code = kIq4Values[code];
        tile->codes[i / 2][lane][i % 2] =
            static_cast<int16_t>(static_cast<int32_t>(code) - format.zero());
      }
      for (size_t g = 0; g < kBlockCols / format.group; ++g) {
        tile->scale[g][lane] = w.scales[g].scale;
      }
    }
  }
}

void multiply_int16_ref(const MultiplyJob& job) {
  const size_t group = quant_format(job.type)->group;
  multiply<Int16Activations, Int16Weights>(
      job, [&](const auto& x, size_t r, const auto& w, size_t lane, size_t g) {
        const int32_t in_units = dot(x, r, w, lane, g * group, (g + 1) * group);
        return static_cast<float>(in_units) * (w.scale[g][lane] * x.scale[r]);
      });
}

}  // namespace reprise::kernels
