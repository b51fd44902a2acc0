#include "fusion/chunk_loader.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>

#include "base/float16.h"
#include "base/try.h"
#include "kernels/ops.h"

namespace reprise {
namespace {

constexpr int32_t kTaskTokens = 4 * kPageTokens;

int32_t page_of(int32_t position) { return position / static_cast<int32_t>(kPageTokens); }

using Clock = std::chrono::steady_clock;
double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// count stored values from an index on.
void widen(const std::byte* values, kernels::KvType type, size_t first, size_t count, float* out) {
  if (type == kernels::KvType::kF32) {
    std::memcpy(out, values + first * sizeof(float), count * sizeof(float));
    return;
  }
  kernels::widen(reinterpret_cast<const Bf16*>(values) + first, count, out);
}

}  // namespace

ChunkLoader::ChunkLoader(std::vector<ChunkLoad> loads, std::span<const RopeTable* const> ropes,
                         SequenceKv& kv, bool rotate, double row_ms, LayerSlots& slots,
                         ThreadPool& pool)
    : loads_(std::move(loads)),
      kv_(kv),
      rotate_(rotate),
      pool_(pool),
      rotation_(ropes),
      page_rows_(static_cast<size_t>(pool.size())),
      reader_(read_plan(row_ms, slots)) {
  std::vector<Row> rows;
  for (const ChunkLoad& load : loads_) {
    first_row_.push_back(rows.size());
    for (int32_t at = load.from; at < load.end; ++at) rows.push_back({0, at + load.shift, 0});
  }
  first_row_.push_back(rows.size());
  if (rotate_) rotation_.begin(rows, pool_);
}

// Called while the members before the reader are there.
BlockReader::Plan ChunkLoader::read_plan(double row_ms, LayerSlots& slots) {
  BlockReader::Plan plan;
  plan.loads = loads_;
  plan.layers = kv_.pool().layers();
  plan.row_ms = row_ms;
  plan.parts = block_parts(loads_, std::numeric_limits<size_t>::max());
  for (const ChunkLoad& load : loads_) {
    first_byte_.push_back(layer_bytes_);
    layer_bytes_ += load.chunk->block_bytes();
  }
  LayerSlots& fitting = layer_bytes_ > LayerSlots::kMostBytes ? large_ : slots;
  for (std::vector<std::byte>& slot : fitting.layers) {
    if (slot.size() < layer_bytes_) slot = std::vector<std::byte>(layer_bytes_);
    plan.slots.push_back(slot.data());
  }
  return plan;
}

Status ChunkLoader::load_through(uint32_t layer) {
  for (; placed_ <= layer && !loads_.empty(); ++placed_) {
    const auto start = Clock::now();
    REPRISE_TRY(const std::byte* const blocks, reader_.next());
    wait_ms_ += ms_since(start);
    const auto placing = Clock::now();
    place(placed_, blocks);
    reader_.release();
    place_ms_ += ms_since(placing);
    for (const ChunkLoad& load : loads_) bytes_ += load.chunk->record().blocks[placed_].bytes;
  }
  return {};
}

void ChunkLoader::place(uint32_t layer, const std::byte* blocks) {
  // Tokens of a page are of one task; loads are in the order of their positions.
  std::vector<std::vector<Part>> tasks;
  for (size_t i = 0; i < loads_.size(); ++i) {
    for (int32_t at = loads_[i].from, end = 0; at < loads_[i].end; at = end) {
      end = std::min(loads_[i].end, (at / kTaskTokens + 1) * kTaskTokens);
      const bool alone = tasks.empty() || page_of(tasks.back().back().end - 1) != page_of(at);
      if (alone) tasks.emplace_back();
      tasks.back().push_back({i, at, end});
    }
  }
  pool_.run(tasks.size(), [&](size_t task, int thread) {
    PageRows& rows = page_rows_[static_cast<size_t>(thread)];
    for (const Part& part : tasks[task]) place(layer, blocks, part, rows);
  });
}

void ChunkLoader::place(uint32_t layer, const std::byte* blocks, const Part& part, PageRows& rows) {
  const kernels::KvLayout& layout = kv_.pool().layout();
  const size_t width = size_t{layout.n_kv_head} * layout.head_dim;
  const size_t pairs = rotation_.rope(layer).pairs();
  const ChunkLoad& load = loads_[part.load];
  const std::byte* block = blocks + first_byte_[part.load];
  const auto type = load.chunk->record().identity().type;
  const size_t values = load.chunk->record().tokens.size() * width;  // of all keys
  auto& [k, v] = rows;
  k.resize(kPageTokens * width);
  v.resize(k.size());
  for (int32_t at = part.begin; at < part.end;) {
    const auto position = static_cast<size_t>(at), token = static_cast<size_t>(at - load.begin);
    const size_t slot = position % kPageTokens;
    const auto count = std::min(static_cast<size_t>(part.end - at), kPageTokens - slot);
    widen(block, type, token * width, count * width, k.data());
    widen(block, type, values + token * width, count * width, v.data());
    const size_t row = first_row_[part.load] + static_cast<size_t>(at - load.from);
    for (size_t i = 0; i < count && rotate_; ++i) {
      kernels::rope(&k[i * width], rotation_.row(layer, row + i), layout.n_kv_head, layout.head_dim,
                    pairs);
    }
    kernels::store_tokens(layout, kv_.page(layer, position / kPageTokens), slot, count, k.data(),
                          v.data());
    at += static_cast<int32_t>(count);
  }
}

void ChunkLoader::add_cost(FusionCost& cost) const {
  cost.loaded_bytes += bytes_;
  cost.wait_ms += wait_ms_;
  cost.place_ms += place_ms_;
}

}  // namespace reprise
