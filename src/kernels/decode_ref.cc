#include <algorithm>
#include <cmath>

#include "kernels/matmul_isa.h"

namespace reprise::kernels {
namespace {

int32_t dot_half(const PackedBlock& w, bool lookup, const int8_t* x, size_t half) {
  int32_t sum = 0;
  for (size_t i = 16 * half; i < 16 * half + 16; ++i) {
    uint32_t code = w.codes[i / 4] >> 8 * (i % 4) & 255;
    if (lookup) code = kIq4Values[code];
    sum += static_cast<int32_t>(code) * x[i];
  }
  return sum;
}

float quantized_dot(const DecodeJob& job, const std::byte* panel, size_t lane, size_t tile,
                    const ActivationBlock* x) {
  const QuantFormat format = *quant_format(job.layout.type);
  float sum = 0;
  for (size_t block = 0; block < job.layout.blocks; ++block, x += tile) {
    const PackedBlock w = read_packed(job.layout, panel, block, lane);
    for (size_t half = 0; half < 2; ++half) {
      const int32_t dot = dot_half(w, format.lookup, x->q, half) + format.zero() * x->neg_sum[half];
      const int32_t rest =
          dot_half(w, format.lookup, x->rest, half) + format.zero() * x->neg_rest_sum[half];
      const float both = static_cast<float>(rest) * kRestUnit + static_cast<float>(dot);
      sum += both * (w.scales[half].scale * x->scale);
      if (format.has_min) sum += w.scales[half].min * x->sum[half];
    }
  }
  return sum;
}

float float_dot(const DecodeJob& job, const std::byte* panel, size_t lane, size_t tile,
                const float* x) {
  float sums[2] = {};  // even and odd columns
  float w[kBlockCols];
  for (size_t block = 0; block < job.layout.blocks; ++block) {
    unpack_block(job.layout, panel, block, lane, w);
    const size_t count = std::min(kBlockCols, job.layout.cols - block * kBlockCols);
    for (size_t i = 0; i < count; ++i, x += tile) sums[i % 2] += w[i] * *x;
  }
  return sums[0] + sums[1];
}

}  // namespace

void round_codes_ref(const float* x, size_t blocks, size_t tile_rows, ActivationBlock* out) {
  for (size_t block = 0; block < blocks; ++block, x += kBlockCols, out += tile_rows) {
    float largest = 0;
    for (size_t i = 0; i < kBlockCols; ++i) largest = std::max(largest, std::fabs(x[i]));
    const float inverse = largest > kSmallestMagnitude ? 127.0f / largest : 0.0f;
    out->scale = largest / 127.0f;
    int32_t sums[2] = {}, rest_sums[2] = {};
    for (size_t i = 0; i < kBlockCols; ++i) {
      const float value = x[i] * inverse, nearest = std::nearbyint(value);
      out->q[i] = static_cast<int8_t>(nearest);
      out->rest[i] = static_cast<int8_t>(std::nearbyint((value - nearest) / kRestUnit));
      sums[i / 16] += out->q[i];
      rest_sums[i / 16] += out->rest[i];
    }
    set_sums(sums, rest_sums, out);
  }
}

void decode_ref(const DecodeJob& job) {
  const PackedLayout& layout = job.layout;
  const bool quantized = quant_format(layout.type).has_value();
  for (size_t column = job.panel_begin * kPanelRows;
       column < std::min(job.panel_end * kPanelRows, job.out.cols); ++column) {
    const std::byte* panel = job.panels + column / kPanelRows * layout.panel_bytes;
    const size_t lane = column % kPanelRows;
    for (size_t row = 0, tile = 0; row < job.rows; row += tile) {
      tile = row_tile(job.rows - row);
      for (size_t r = 0; r < tile; ++r) {
        float sum =
            quantized ? quantized_dot(job, panel, lane, tile, job.x_codes + row * layout.blocks + r)
                      : float_dot(job, panel, lane, tile, job.x_float + row * layout.cols + r);
        float* out = job.out.data + (row + r) * job.out.stride + column;
        if (job.out.bias) sum += job.out.bias[column];
        *out = job.out.accumulate ? *out + sum : sum;
      }
    }
  }
}

}  // namespace reprise::kernels
