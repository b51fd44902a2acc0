#include "kernels/matmul_phase.h"

namespace reprise::kernels {
namespace {

// Below this many activations, rounding them costs less than waking the pool.
constexpr size_t kParallelRounding = 8192;
// Tasks a thread gets on average: enough to even out the threads' speeds.
constexpr size_t kTasksPerThread = 4;

struct Activations {
  const ActivationBlock* x_codes = nullptr;
  const float* x_float = nullptr;
};

// Both forms as far as the weights need them, in tiles of rows.
Activations prepare(std::span<const Part> parts, const MatmulInput& input) {
  const size_t cols = parts[0].layout.cols, blocks = cols / kBlockCols;
  bool needs_codes = false, needs_float = false;
  for (const Part& part : parts) {
    (quant_format(part.layout.type) ? needs_codes : needs_float) = true;
  }
  const size_t code_blocks = needs_codes ? input.rows * blocks : 0;
  const size_t float_blocks = needs_float ? (input.rows * cols + 15) / 16 : 0;
  auto* x_codes = reserve<ActivationBlock>(input.scratch->activations, code_blocks + float_blocks);
  auto* x_float = reinterpret_cast<float*>(x_codes + code_blocks);
  const auto prepare_tile = [&](size_t row) {
    const size_t tile = row_tile(input.rows - row);
    for (size_t r = 0; r < tile; ++r) {
      const float* x = input.x + (row + r) * input.stride;
      if (needs_codes) input.kernels->round_codes(x, blocks, tile, x_codes + row * blocks + r);
      float* out = x_float + row * cols + r;
      for (size_t i = 0; needs_float && i < cols; ++i) out[i * tile] = x[i];
    }
  };
  // A tile of 8 rows, or the rest, per task.
  const auto prepare_rows = [&](size_t task, int) {
    const size_t end = std::min(input.rows, task * 8 + 8);
    for (size_t row = task * 8; row < end; row += row_tile(input.rows - row)) prepare_tile(row);
  };
  const size_t tasks = (input.rows + 7) / 8;
  if (input.rows * cols >= kParallelRounding) {
    input.pool->run(tasks, prepare_rows);
  } else {
    for (size_t task = 0; task < tasks; ++task) prepare_rows(task, 0);
  }
  return {x_codes, x_float};
}

// What the threads of a product share, small enough to travel to them in one line.
struct Product {
  std::span<const Part> parts;
  Activations x;
  const MatmulKernels* kernels;
  uint32_t rows, tasks;

  void operator()(size_t task, int /*thread*/) const {
    const size_t panels = parts.back().end;
    for_units(parts, panels * task / tasks, panels * (task + 1) / tasks,
              [&](const Part& part, size_t begin, size_t end) {
                const Projection& p = part.projection;
                const MatmulOut out{p.out, p.out_stride, p.weight->rows(), p.bias, p.accumulate};
                kernels->decode(
                    {part.layout, p.weight->data(), begin, end, rows, x.x_codes, x.x_float, out});
              });
  }
};

}  // namespace

void decode(std::span<const Projection> projections, const MatmulInput& input) {
  const std::vector<Part> parts = split_in_units(projections, 1);
  const auto threads = static_cast<size_t>(input.pool->size());
  const size_t panels = parts.back().end;
  const size_t tasks = threads == 1 ? 1 : std::min(panels, threads * kTasksPerThread);
  input.pool->run(tasks, Product{parts, prepare(parts, input), input.kernels,
                                 static_cast<uint32_t>(input.rows), static_cast<uint32_t>(tasks)});
}

}  // namespace reprise::kernels
