#include <algorithm>
#include <cmath>

#include "kernels/matmul_isa.h"

namespace reprise::kernels {

void round_integers_ref(const float* x, size_t count, size_t row, std::byte* tiles) {
  auto* tile = reinterpret_cast<ActivationTile*>(tiles);
  for (size_t column = 0; column < count; column += kBlockCols, x += kBlockCols, ++tile) {
    float largest = 0;
    for (size_t i = 0; i < kBlockCols; ++i) largest = std::max(largest, std::fabs(x[i]));
    const float inverse = largest > kSmallestMagnitude ? kLargestInteger / largest : 0.0f;
    int32_t sums[2] = {};
    for (size_t i = 0; i < kBlockCols; ++i) {
      tile->q[row][i] = static_cast<int16_t>(std::nearbyint(x[i] * inverse));
      sums[i / 16] += tile->q[row][i];
    }
    tile->set_scale(row, largest / kLargestInteger, sums);
  }
}

void expand_integers_ref(const PackedLayout& layout, const std::byte* panel, size_t step_begin,
                         size_t step_end, std::byte* tiles) {
  const QuantFormat format = *quant_format(layout.type);
  auto* tile = reinterpret_cast<WeightTile*>(tiles);
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
        tile->min[g][lane] = w.scales[g].min;
      }
    }
  }
}

namespace {

int32_t dot(const ActivationTile& x, size_t row, const WeightTile& w, size_t lane, size_t begin,
            size_t end) {
  int32_t sum = 0;
  for (size_t i = begin; i < end; ++i) sum += x.q[row][i] * w.codes[i / 2][lane][i % 2];
  return sum;
}

}  // namespace

void multiply_integers_ref(const MultiplyJob& job) {
  const QuantFormat format = *quant_format(job.type);
  const size_t groups = kBlockCols / format.group;
  const auto* panels = reinterpret_cast<const WeightTile*>(job.w);
  for (size_t row = 0; row < job.rows; ++row) {
    const auto* x = reinterpret_cast<const ActivationTile*>(job.x + row / 16 * job.x_row_tile);
    for (size_t i = 0; i < 2 * kPanelRows; ++i) {
      const size_t panel = i / kPanelRows, lane = i % kPanelRows, r = row % 16;
      float& sum = job.sums[row / 16 * kSumElements + (panel * 16 + r) * 16 + lane];
      if (job.first) sum = 0.0f;
      for (size_t step = 0; step < job.steps; ++step) {
        const WeightTile& w = panels[panel * job.steps + step];
        for (size_t g = 0; g < groups; ++g) {
          const size_t begin = g * format.group;
          const int32_t product = dot(x[step], r, w, lane, begin, begin + format.group);
          sum += static_cast<float>(product) * (w.scale[g][lane] * x[step].scale[r]);
          if (format.has_min) sum += w.min[g][lane] * x[step].sum[groups == 1 ? 2 : g][r];
        }
      }
    }
  }
}

}  // namespace reprise::kernels
