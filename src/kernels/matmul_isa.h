// The loops of matmul, one set per instruction set. Sums run over the columns in one order that
// depends on nothing but the shape of the weight.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu.h"
#include "kernels/expand_ahead.h"
#include "kernels/ops.h"
#include "kernels/packed_layout.h"

namespace reprise::kernels {

/// A remainder's unit: half a step of the value, the most there is to correct, is 127 of them.
inline constexpr float kRestUnit = 1.0f / 254.0f;

/// 32 activations of one row in 16 bits, as two codes for int8 products:
/// x = scale * (q + kRestUnit * rest), scale = max |x| / 127.
struct alignas(64) ActivationBlock {
  int8_t q[kBlockCols];
  int8_t rest[kBlockCols];
  float scale;
  int32_t neg_sum[3];       // minus the sum of q over the first 16, the last 16, all 32
  int32_t neg_rest_sum[3];  // of rest
  float sum[3];             // of x as rounded
};

/// Of the codes' first and last 16.
[[gnu::always_inline]] inline void set_sums(const int32_t (&q)[2], const int32_t (&rest)[2],
                                            ActivationBlock* out) {
  const int32_t sums[3] = {q[0], q[1], q[0] + q[1]};
  const int32_t rest_sums[3] = {rest[0], rest[1], rest[0] + rest[1]};
  for (size_t i = 0; i < 3; ++i) {
    out->neg_sum[i] = -sums[i];
    out->neg_rest_sum[i] = -rest_sums[i];
    const float rests = static_cast<float>(rest_sums[i]) * kRestUnit;
    out->sum[i] = out->scale * (static_cast<float>(sums[i]) + rests);
  }
}

/// Blocks whose largest activation is below this round to zero: 127 / max must be finite.
inline constexpr float kSmallestMagnitude = 1e-30f;

/// Rows of activations that one pass over a panel serves; a batch is cut in tiles of 8, 4, 2 and 1,
/// and stored [tile][column block][row of the tile].
[[gnu::always_inline]] constexpr size_t row_tile(size_t rows_left) {
  return rows_left >= 8 ? 8 : rows_left >= 4 ? 4 : rows_left >= 2 ? 2 : 1;
}

/// Brings kBytes of a panel closer, kAhead before they are multiplied: every line, in the order in
/// which they lie. Caches do not find this stream by themselves, since codes and scales take turns.
/// kLocality: 3 brings lines into the first cache, 2 into the second.
template <size_t kBytes, size_t kAhead, int kLocality>
[[gnu::always_inline]] inline void prefetch_weights(const std::byte* at) {
  constexpr size_t kLine = 64;
  for (size_t line = 0; line < kBytes; line += kLine) {
    __builtin_prefetch(at + kAhead + line, 0, kLocality);
  }
}

struct MatmulOut {
  float* data = nullptr;  // [rows, stride]
  size_t stride = 0;
  size_t cols = 0;  // valid columns
  const float* bias = nullptr;
  bool accumulate = false;
};

struct DecodeJob {
  PackedLayout layout;
  const std::byte* panels = nullptr;
  size_t panel_begin = 0, panel_end = 0;
  size_t rows = 0;
  const ActivationBlock* x_codes = nullptr;  // [tiles][blocks][tile rows]; quantised weights
  const float* x_float = nullptr;            // [tiles][cols][tile rows]; float weights
  MatmulOut out;
};

/// Operands of the prefill are cut in steps of 32 columns of k; a tile is 16 rows of one step.
/// bf16 tiles, 1 KB: activations [16 rows][32], weights [16 column pairs][16 rows][2].
inline constexpr size_t kTileElements = 512;
[[gnu::always_inline]] inline uint16_t* bf16_tile(std::byte* tiles) {
  return reinterpret_cast<uint16_t*>(tiles);
}
[[gnu::always_inline]] inline const uint16_t* bf16_tile(const std::byte* tiles) {
  return reinterpret_cast<const uint16_t*>(tiles);
}

/// Steps of a pass without tile products.
inline constexpr size_t kVectorSteps = 9;
/// Rows of activations that are multiplied, and whose sums are written, at a time.
inline constexpr size_t kBlockRows = 32;
/// Sums of 16 rows and 2 panels: [2 panels][16 rows][16].
inline constexpr size_t kSumElements = 512;

struct MultiplyJob {
  const std::byte* x = nullptr;  // [row tiles][x_row_tile]: the tiles of this pass, one per step
  size_t x_row_tile = 0;         // bytes between row tiles
  size_t rows = 0;               // at most kBlockRows
  const std::byte* w = nullptr;  // [2 panels][steps] tiles
  TensorType type{};             // of the weights, which integer tiles do not tell
  size_t steps = 0;
  float* sums = nullptr;         // [row tiles][kSumElements]
  bool first = false;            // the sums start from zero
  ExpandAhead* ahead = nullptr;  // stepped by products on tiles, or null
};

/// Complete sums of some rows and 2 panels.
struct PanelSums {
  const float* sums = nullptr;  // [row tiles][kSumElements]
  size_t rows = 0;

  [[gnu::always_inline]] const float* at(size_t row, size_t panel) const {
    return sums + row / 16 * kSumElements + (panel * 16 + row % 16) * 16;
  }
};

struct WriteJob {
  PanelSums sums;
  MatmulOut out;      // of the first row
  size_t column = 0;  // of the first panel
};

/// The panels are 16 columns of a gate and of what it gates; their product is the input of another
/// prefill product.
struct WriteGatedJob {
  PanelSums sums;
  Activation activation = Activation::kSilu;
  uint16_t* out = nullptr;  // [row tiles][out_row_tile]: the columns of the first row
  size_t out_row_tile = 0;  // elements between row tiles
};

/// One form of a prefill's operands.
struct PrefillForm {
  size_t x_tile_bytes, w_tile_bytes;  // of activations and of weights
  /// Steps of one pass, at most: its weight tiles stay in the first-level cache.
  size_t max_pass_steps;
  /// Row `row` of the tiles of consecutive steps, from count floats; zeros up to whole steps.
  void (*round)(const float* x, size_t count, size_t row, std::byte* tiles);
  /// Tiles of columns [32 step_begin, 32 step_end) of a panel.
  void (*expand)(const PackedLayout& layout, const std::byte* panel, size_t step_begin,
                 size_t step_end, std::byte* tiles);
  /// One pass of the products of some rows with 2 panels.
  void (*multiply)(const MultiplyJob& job);
  /// Around calls of multiply on one thread; null where nothing is to be done.
  void (*begin_multiply)() = nullptr;
  void (*end_multiply)() = nullptr;
  /// Products on tiles, or null: expands part [0, kTileParts) of the tile of a step.
  ExpandAhead::ExpandPart expand_part = nullptr;

  bool on_tiles() const { return expand_part != nullptr; }
};

struct MatmulKernels {
  /// Rounds blocks of 32 values of one row.
  void (*round_codes)(const float* x, size_t blocks, size_t tile_rows, ActivationBlock* out);
  /// All rows times panels [panel_begin, panel_end).
  void (*decode)(const DecodeJob& job);
  // For weights in float, quantised ones that takes_int8() and others; often the same.
  const PrefillForm *floats, *int8, *int16;
  void (*write)(const WriteJob& job);
  void (*write_gated)(const WriteGatedJob& job);  // bf16; null where nothing is gained
};

/// Of the instruction set in force.
const MatmulKernels& matmul_kernels(Isa isa);

void round_codes_ref(const float* x, size_t blocks, size_t tile_rows, ActivationBlock* out);
void decode_ref(const DecodeJob& job);
void round_bf16_ref(const float* x, size_t count, size_t row, std::byte* tiles);
void expand_ref(const PackedLayout& layout, const std::byte* panel, size_t step_begin,
                size_t step_end, std::byte* tiles);
void multiply_ref(const MultiplyJob& job);
void round_int8_ref(const float* x, size_t count, size_t row, std::byte* tiles);
void expand_int8_ref(const PackedLayout& layout, const std::byte* panel, size_t step_begin,
                     size_t step_end, std::byte* tiles);
void multiply_int8_ref(const MultiplyJob& job);
void round_int16_ref(const float* x, size_t count, size_t row, std::byte* tiles);
void expand_int16_ref(const PackedLayout& layout, const std::byte* panel, size_t step_begin,
                      size_t step_end, std::byte* tiles);
void multiply_int16_ref(const MultiplyJob& job);
void write_ref(const WriteJob& job);

void round_codes_avx2(const float* x, size_t blocks, size_t tile_rows, ActivationBlock* out);
void decode_avx2(const DecodeJob& job);
void round_bf16_avx2(const float* x, size_t count, size_t row, std::byte* tiles);
void expand_avx2(const PackedLayout& layout, const std::byte* panel, size_t step_begin,
                 size_t step_end, std::byte* tiles);
void multiply_avx2(const MultiplyJob& job);
void round_int8_avx2(const float* x, size_t count, size_t row, std::byte* tiles);
void expand_int8_avx2(const PackedLayout& layout, const std::byte* panel, size_t step_begin,
                      size_t step_end, std::byte* tiles);
void multiply_int8_avx2(const MultiplyJob& job);
void round_int16_avx2(const float* x, size_t count, size_t row, std::byte* tiles);
void expand_int16_avx2(const PackedLayout& layout, const std::byte* panel, size_t step_begin,
                       size_t step_end, std::byte* tiles);
void multiply_int16_avx2(const MultiplyJob& job);
void write_avx2(const WriteJob& job);

void round_codes_avx512(const float* x, size_t blocks, size_t tile_rows, ActivationBlock* out);
void decode_avx512(const DecodeJob& job);
/// Fetches weights into the second cache: cores with AMX are up to 5 % slower through the first.
void decode_avx512_beside_amx(const DecodeJob& job);
void round_bf16_avx512(const float* x, size_t count, size_t row, std::byte* tiles);
void expand_avx512(const PackedLayout& layout, const std::byte* panel, size_t step_begin,
                   size_t step_end, std::byte* tiles);
void expand_part_avx512(const PackedLayout& layout, const std::byte* panel, size_t step,
                        size_t part, std::byte* tile);
void multiply_avx512(const MultiplyJob& job);
void write_avx512(const WriteJob& job);

void write_gated_avx512(const WriteGatedJob& job);

void begin_multiply_amx();
void end_multiply_amx();
void multiply_amx(const MultiplyJob& job);

}  // namespace reprise::kernels
