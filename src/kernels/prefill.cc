#include <cstring>

#include "kernels/matmul_phase.h"

namespace reprise::kernels {
namespace {

constexpr size_t kUnitPanels = 2, kUnitCols = kUnitPanels * kPanelRows;
constexpr size_t kMaxUnitsPerTask = 8;    // whose sums of 512 rows fit the second-level cache
constexpr size_t kMinTasksPerThread = 2;  // enough to even out the threads' speeds
constexpr size_t kMinRowsPerTask = 128;   // fewer would expand the weights too often

constexpr size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }

// x rounded to bf16: [row tiles][steps] tiles, zero beyond the last row and column.
const uint16_t* round_input(const MatmulInput& input, size_t cols, size_t steps) {
  const size_t tiles = ceil_div(input.rows, 16), tile_elements = steps * kTileElements;
  auto* out = reserve<uint16_t>(input.scratch->activations, tiles * tile_elements);
  input.pool->run(tiles, [&](size_t tile, int) {
    uint16_t* at = out + tile * tile_elements;
    const size_t first = tile * 16, count = std::min<size_t>(16, input.rows - first);
    if (count < 16) std::memset(at, 0, tile_elements * sizeof(uint16_t));
    for (size_t r = 0; r < count; ++r) {
      input.kernels->round_bf16(input.x + (first + r) * input.stride, cols, at + r * kBlockCols);
    }
  });
  return out;
}

// How a call is cut: tasks = chunks of units x blocks of rows.
struct Cut {
  size_t chunks, row_blocks, rows_per_block;
};

Cut cut(size_t units, size_t rows, size_t threads) {
  const size_t per_thread =
      std::max(ceil_div(units, threads * kMaxUnitsPerTask), kMinTasksPerThread);
  const size_t chunks = std::min(units, threads * per_thread);
  const size_t wanted = threads == 1 ? 1 : ceil_div(threads * kMinTasksPerThread, chunks);
  const size_t blocks = std::clamp<size_t>(rows / kMinRowsPerTask, 1, wanted);
  const size_t rows_per_block = ceil_div(ceil_div(rows, blocks), 32) * 32;
  return {chunks, ceil_div(rows, rows_per_block), rows_per_block};
}

struct PrefillTask {
  const MatmulInput* input = nullptr;
  const uint16_t* x = nullptr;
  size_t steps = 0, pass_steps = 0;
  size_t row_begin = 0, row_end = 0;
  uint16_t* w = nullptr;  // room for a unit's tiles of one pass
  float* sums = nullptr;  // [units of the task][row tiles of the task][kSumElements]

  size_t unit_sums() const { return ceil_div(row_end - row_begin, 16) * kSumElements; }
};

// One pass over k, from step, for one unit of a part.
void multiply_unit(const PrefillTask& task, const Part& part, size_t unit, size_t step,
                   float* sums) {
  const Projection& p = part.projection;
  const size_t count = std::min(task.pass_steps, task.steps - step);
  for (size_t i = 0; i < kUnitPanels; ++i) {
    const size_t panel = unit * kUnitPanels + i;
    uint16_t* w = task.w + i * count * kTileElements;
    if (panel < part.panels) {
      task.input->kernels->expand(part.layout, p.weight->data() + panel * part.layout.panel_bytes,
                                  step, step + count, w);
    } else {
      std::memset(w, 0, count * kTileElements * sizeof(uint16_t));
    }
  }
  MultiplyJob job;
  job.x_row_tile = task.steps * kTileElements;
  job.x = task.x + task.row_begin / 16 * job.x_row_tile + step * kTileElements;
  job.rows = task.row_end - task.row_begin;
  job.w = task.w;
  job.steps = count;
  job.sums = sums;
  job.first = step == 0;
  task.input->kernels->multiply(job);
}

void run_task(const PrefillTask& task, std::span<const Part> parts, size_t begin, size_t end) {
  for (size_t step = 0; step < task.steps; step += task.pass_steps) {
    float* sums = task.sums;
    for_units(parts, begin, end, [&](const Part& part, size_t first, size_t last) {
      for (size_t unit = first; unit < last; ++unit, sums += task.unit_sums()) {
        multiply_unit(task, part, unit, step, sums);
      }
    });
  }
  const float* sums = task.sums;
  for_units(parts, begin, end, [&](const Part& part, size_t first, size_t last) {
    const Projection& p = part.projection;
    WriteJob job{sums, task.unit_sums(), last - first, task.row_end - task.row_begin, {}, 0};
    job.out = {p.out + task.row_begin * p.out_stride, p.out_stride, p.weight->rows(), p.bias,
               p.accumulate};
    job.column = first * kUnitCols;
    task.input->kernels->write(job);
    sums += (last - first) * task.unit_sums();
  });
}

}  // namespace

void prefill(std::span<const Projection> projections, const MatmulInput& input) {
  const std::vector<Part> parts = split_in_units(projections, kUnitPanels);
  const size_t cols = parts[0].layout.cols, steps = parts[0].layout.blocks;
  const uint16_t* x = round_input(input, cols, steps);
  const size_t threads = static_cast<size_t>(input.pool->size()), units = parts.back().end;
  const Cut c = cut(units, input.rows, threads);
  const size_t w_floats = kUnitPanels * kMaxPassSteps * kTileElements / 2;
  const size_t sum_floats =
      ceil_div(units, c.chunks) * ceil_div(c.rows_per_block, 16) * kSumElements;
  auto* rooms = reserve<float>(input.scratch->panels, threads * (w_floats + sum_floats));
  PrefillTask task{};
  task.input = &input;
  task.x = x;
  task.steps = steps;
  task.pass_steps = ceil_div(steps, ceil_div(steps, kMaxPassSteps));
  input.pool->run(c.chunks * c.row_blocks, [&](size_t index, int thread) {
    PrefillTask mine = task;
    mine.row_begin = index % c.row_blocks * c.rows_per_block;
    mine.row_end = std::min(input.rows, mine.row_begin + c.rows_per_block);
    mine.sums = rooms + static_cast<size_t>(thread) * (w_floats + sum_floats);
    mine.w = reinterpret_cast<uint16_t*>(mine.sums + sum_floats);
    const size_t chunk = index / c.row_blocks;
    run_task(mine, parts, units * chunk / c.chunks, units * (chunk + 1) / c.chunks);
  });
}

}  // namespace reprise::kernels
