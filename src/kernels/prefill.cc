#include <cstring>
#include <optional>

#include "kernels/matmul_phase.h"

namespace reprise::kernels {
namespace {

constexpr size_t kUnitPanels = 2, kUnitCols = kUnitPanels * kPanelRows;
constexpr size_t kBlockSums = kBlockRows / 16 * kSumElements;
constexpr size_t kMaxUnitsPerTask = 8;    // whose sums of 512 rows fit the second-level cache
constexpr size_t kMinTasksPerThread = 2;  // enough to even out the threads' speeds
constexpr size_t kMinRowsPerTask = 128;   // fewer would expand the weights too often

constexpr size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }

// The left side of the products.
struct RowTiles {
  const PrefillForm* form;
  size_t rows, steps;
  const std::byte* data = nullptr;  // [row tiles][steps] tiles

  size_t stride() const { return steps * form->x_tile_bytes; }  // bytes between row tiles
};

// Rows of input, rounded; zero beyond the last row and column.
RowTiles round_input(const PrefillForm& form, const MatmulInput& input, size_t cols) {
  RowTiles tiles{&form, input.rows, ceil_div(cols, kBlockCols)};
  const size_t count = ceil_div(input.rows, 16);
  auto* out = reserve<std::byte>(input.scratch->activations, count * tiles.stride());
  const size_t threads = static_cast<size_t>(input.pool->size());
  auto* rows_of_threads = reserve<float>(input.scratch->normalised, threads * cols);
  input.pool->run(count, [&](size_t tile, int thread) {
    std::byte* at = out + tile * tiles.stride();
    const size_t first = tile * 16, rows = std::min<size_t>(16, input.rows - first);
    if (rows < 16) std::memset(at, 0, tiles.stride());
    for (size_t r = 0; r < rows; ++r) {
      const float* x = input.x + (first + r) * input.stride;
      if (input.norm.weight != nullptr) {
        float* normalised = rows_of_threads + static_cast<size_t>(thread) * cols;
        rms_norm(x, input.norm.weight, input.norm.eps, cols, normalised);
        x = normalised;
      }
      form.round(x, cols, r, at);
    }
  });
  tiles.data = out;
  return tiles;
}

// 16 rows of a weight; no data beyond the last row.
struct Panel {
  const PackedLayout* layout = nullptr;
  const std::byte* data = nullptr;
};

Panel panel_of(const Part& part, size_t index) {
  if (index >= part.panels) return {&part.layout, nullptr};
  return {&part.layout, part.projection.weight->data() + index * part.layout.panel_bytes};
}

// What a call computes: units of two panels, and where their sums go.
class Units {
 public:
  virtual ~Units() = default;
  virtual size_t count() const = 0;
  virtual Panel panel(size_t unit, size_t i) const = 0;
  // Takes the complete sums of up to kBlockRows rows, the first of which is row.
  virtual void write(size_t unit, size_t row, const PanelSums& sums) const = 0;
};

// Neighbouring panels of projections, written as rows of floats.
class ProjectionUnits : public Units {
 public:
  ProjectionUnits(std::span<const Projection> projections, const MatmulKernels& kernels)
      : parts_(split_in_units(projections, kUnitPanels)), kernels_(kernels) {}

  size_t count() const override { return parts_.back().end; }
  Panel panel(size_t unit, size_t i) const override {
    const Part& part = part_of(unit);
    return panel_of(part, (unit - part.begin) * kUnitPanels + i);
  }
  void write(size_t unit, size_t row, const PanelSums& sums) const override {
    const Part& part = part_of(unit);
    const Projection& p = part.projection;
    const MatmulOut out{p.out + row * p.out_stride, p.out_stride, p.weight->rows(), p.bias,
                        p.accumulate};
    kernels_.write({sums, out, (unit - part.begin) * kUnitCols});
  }

 private:
  const Part& part_of(size_t unit) const {
    return *std::find_if(parts_.begin(), parts_.end(),
                         [&](const Part& part) { return unit < part.end; });
  }

  std::vector<Part> parts_;
  const MatmulKernels& kernels_;
};

// A panel of the gate beside the one of what it gates, written as the next product's input in bf16.
class GatedUnits : public Units {
 public:
  GatedUnits(const GatedMlp& mlp, const MatmulKernels& kernels, uint16_t* out, size_t out_row_tile)
      : gate_(split_in_units({&mlp.gate, 1}, 1).front()),
        up_(split_in_units({&mlp.up, 1}, 1).front()),
        kernels_(kernels),
        job_{{}, mlp.activation, out, out_row_tile} {}

  // Whole steps: columns beyond the last one become zero.
  size_t count() const override { return (gate_.panels + 1) / 2 * 2; }
  Panel panel(size_t unit, size_t i) const override { return panel_of(i == 0 ? gate_ : up_, unit); }
  void write(size_t unit, size_t row, const PanelSums& sums) const override {
    WriteGatedJob job = job_;
    job.sums = sums;
    job.out += row / 16 * job.out_row_tile + unit / 2 * kTileElements + unit % 2 * kPanelRows;
    kernels_.write_gated(job);
  }

 private:
  Part gate_, up_;
  const MatmulKernels& kernels_;
  WriteGatedJob job_;
};

// How a call is cut: tasks = chunks of units x blocks of rows.
struct Cut {
  size_t chunks, row_blocks, rows_per_block;
};

Cut cut(size_t units, size_t rows, size_t threads) {
  // Rows first: a thread that keeps its rows finds them in its cache, call after call.
  const size_t blocks = std::clamp<size_t>(rows / kMinRowsPerTask, 1, threads);
  const size_t rows_per_block = ceil_div(ceil_div(rows, blocks), kBlockRows) * kBlockRows;
  const size_t row_blocks = ceil_div(rows, rows_per_block);
  const size_t wanted = threads == 1 ? 1 : ceil_div(threads * kMinTasksPerThread, row_blocks);
  const size_t chunks = std::min(units, std::max(ceil_div(units, kMaxUnitsPerTask), wanted));
  return {chunks, row_blocks, rows_per_block};
}

struct PrefillTask {
  const Units* units = nullptr;
  RowTiles x{};
  size_t pass_steps = 0;
  size_t unit_begin = 0, unit_end = 0, row_begin = 0, row_end = 0;
  std::byte* w = nullptr;  // [rooms] a unit's tiles of one pass
  float* sums = nullptr;   // [sum_blocks][kBlockSums]

  size_t blocks() const { return ceil_div(row_end - row_begin, kBlockRows); }
  size_t block_rows(size_t row) const { return std::min(kBlockRows, row_end - row); }
  size_t portion_bytes() const { return kUnitPanels * pass_steps * x.form->w_tile_bytes; }
  size_t rooms() const { return x.form->on_tiles() ? 2 : 1; }
  // One pass needs no more than the sums of two blocks: one is written while the other is summed.
  size_t sum_blocks() const {
    return pass_steps < x.steps ? (unit_end - unit_begin) * blocks() : 2;
  }
  float* block_sums(size_t unit, size_t row) const {
    const size_t block = (unit - unit_begin) * blocks() + (row - row_begin) / kBlockRows;
    return sums + block % sum_blocks() * kBlockSums;
  }
};

// The steps of one pass for one unit.
struct Portion {
  size_t unit = 0, step = 0, steps = 0;
};

// Tiles of a portion, [panels][steps].
void expand(const PrefillTask& task, const Portion& portion, std::byte* w) {
  const PrefillForm& form = *task.x.form;
  for (size_t i = 0; i < kUnitPanels; ++i, w += portion.steps * form.w_tile_bytes) {
    const Panel panel = task.units->panel(portion.unit, i);
    if (panel.data != nullptr) {
      form.expand(*panel.layout, panel.data, portion.step, portion.step + portion.steps, w);
    } else {
      std::memset(w, 0, portion.steps * form.w_tile_bytes);
    }
  }
}

// The same within some steps of products, if that is possible.
std::optional<ExpandAhead> expand_ahead(const PrefillTask& task, const Portion& portion,
                                        std::byte* w, size_t within) {
  const PrefillForm& form = *task.x.form;
  const Panel first = task.units->panel(portion.unit, 0),
              second = task.units->panel(portion.unit, 1);
  if (!form.on_tiles() || first.data == nullptr || second.data == nullptr) return {};
  const size_t step = portion.step, end = portion.step + portion.steps;
  return ExpandAhead(form.expand_part, form.w_tile_bytes, {first.layout, first.data, step, end, w},
                     {second.layout, second.data, step, end, w + portion.steps * form.w_tile_bytes},
                     within);
}

// Multiplies the rows with w; the last pass of a unit writes.
void multiply_portion(const PrefillTask& task, const Portion& portion, const std::byte* w,
                      ExpandAhead* ahead) {
  const PrefillForm& form = *task.x.form;
  MultiplyJob job;
  job.type = task.units->panel(portion.unit, 0).layout->type;
  job.x_row_tile = task.x.stride();
  job.w = w;
  job.steps = portion.steps;
  job.first = portion.step == 0;
  job.ahead = ahead;
  const bool last = portion.step + portion.steps == task.x.steps;
  // The sums of a block are written after the next block's product has started, which does not wait
  // for them.
  size_t unwritten = task.row_end;
  const auto write = [&] {
    if (!last || unwritten >= task.row_end) return;
    task.units->write(portion.unit, unwritten,
                      {task.block_sums(portion.unit, unwritten), task.block_rows(unwritten)});
  };
  for (size_t row = task.row_begin; row < task.row_end; row += kBlockRows) {
    job.x = task.x.data + row / 16 * job.x_row_tile + portion.step * form.x_tile_bytes;
    job.rows = task.block_rows(row);
    job.sums = task.block_sums(portion.unit, row);
    form.multiply(job);
    write();
    unwritten = row;
  }
  write();
}

// All units in one pass before the next, so that they find its part of x in the cache.
void run_task(const PrefillTask& task) {
  const PrefillForm& form = *task.x.form;
  const auto portion_at = [&](size_t unit, size_t step) {
    return Portion{unit, step, std::min(task.pass_steps, task.x.steps - step)};
  };
  if (form.begin_multiply != nullptr) form.begin_multiply();
  std::byte *w = task.w, *next_w = task.w + (task.rooms() - 1) * task.portion_bytes();
  Portion next = portion_at(task.unit_begin, 0);
  expand(task, next, next_w);
  while (next.steps > 0) {
    const Portion portion = next;
    std::swap(w, next_w);
    next = portion.unit + 1 < task.unit_end
               ? portion_at(portion.unit + 1, portion.step)
               : portion_at(task.unit_begin, portion.step + portion.steps);
    std::optional<ExpandAhead> ahead;
    if (next.steps > 0) ahead = expand_ahead(task, next, next_w, task.blocks() * portion.steps);
    multiply_portion(task, portion, w, ahead ? &*ahead : nullptr);
    if (!ahead) expand(task, next, next_w);
  }
  if (form.end_multiply != nullptr) form.end_multiply();
}

// Computes the units for all rows of x.
void run_units(const Units& units, const RowTiles& x, const MatmulInput& input) {
  const size_t threads = static_cast<size_t>(input.pool->size());
  const Cut c = cut(units.count(), x.rows, threads);
  const size_t passes = ceil_div(x.steps, x.form->max_pass_steps);
  PrefillTask task{&units, x};
  task.pass_steps = ceil_div(x.steps, passes);
  task.unit_end = ceil_div(units.count(), c.chunks);
  task.row_end = c.rows_per_block;
  const size_t w_floats = task.rooms() * task.portion_bytes() / sizeof(float);
  const size_t sum_floats = task.sum_blocks() * kBlockSums;
  auto* rooms = reserve<float>(input.scratch->panels, threads * (w_floats + sum_floats));
  input.pool->run(c.chunks * c.row_blocks, [&](size_t index, int thread) {
    PrefillTask mine = task;
    mine.row_begin = index / c.chunks * c.rows_per_block;
    mine.row_end = std::min(x.rows, mine.row_begin + c.rows_per_block);
    mine.sums = rooms + static_cast<size_t>(thread) * (w_floats + sum_floats);
    mine.w = reinterpret_cast<std::byte*>(mine.sums + sum_floats);
    const size_t chunk = index % c.chunks;
    mine.unit_begin = units.count() * chunk / c.chunks;
    mine.unit_end = units.count() * (chunk + 1) / c.chunks;
    run_task(mine);
  });
}

}  // namespace

void prefill(std::span<const Projection> projections, const PrefillForm& form,
             const MatmulInput& input) {
  const RowTiles x = round_input(form, input, projections.front().weight->cols());
  run_units(ProjectionUnits(projections, *input.kernels), x, input);
}

void prefill_mlp(const GatedMlp& mlp, const MatmulInput& input) {
  const PrefillForm& form = *input.kernels->floats;
  const RowTiles x = round_input(form, input, mlp.gate.weight->cols());
  RowTiles gated{&form, input.rows, ceil_div(mlp.down.weight->cols(), kBlockCols)};
  const size_t elements = gated.stride() / sizeof(uint16_t);
  auto* out = reserve<uint16_t>(input.scratch->gated, ceil_div(gated.rows, 16) * elements);
  run_units(GatedUnits(mlp, *input.kernels, out, elements), x, input);
  gated.data = reinterpret_cast<const std::byte*>(out);
  run_units(ProjectionUnits({&mlp.down, 1}, *input.kernels), gated, input);
}

}  // namespace reprise::kernels
