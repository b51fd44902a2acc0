#include "fusion/chunk_loader.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/float16.h"
#include "base/try.h"
#include "kernels/ops.h"

namespace reprise {
namespace {

constexpr size_t kTaskTokens = 64;

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
  const auto* narrow = reinterpret_cast<const Bf16*>(values) + first;
  for (size_t i = 0; i < count; ++i) out[i] = to_float(narrow[i]);
}

}  // namespace

ChunkLoader::ChunkLoader(std::vector<ChunkLoad> loads, std::span<const RopeTable* const> ropes,
                         SequenceKv& kv, bool rotate, ThreadPool& pool)
    : loads_(std::move(loads)), kv_(kv), rotate_(rotate), pool_(pool), rotation_(ropes) {
  std::vector<Row> rows;
  for (const ChunkLoad& load : loads_) {
    first_row_.push_back(rows.size());
    for (int32_t at = load.from; at < load.end; ++at) rows.push_back({0, at + load.shift, 0});
  }
  first_row_.push_back(rows.size());
  if (rotate_) rotation_.begin(rows);
  if (!loads_.empty()) reader_ = std::thread([this] { read_ahead(); });
}

ChunkLoader::~ChunkLoader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (reader_.joinable()) reader_.join();
}

void ChunkLoader::read_ahead() {
  const uint32_t layers = kv_.pool().layers();
  for (uint32_t layer = 0; layer < layers; ++layer) {
    Layer next;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || read_.size() < kAhead; });
      if (stop_) return;
      next.blocks.resize(loads_.size());
      for (auto& block : next.blocks) {
        if (spare_.empty()) break;
        block = std::move(spare_.back());
        spare_.pop_back();
      }
    }
    for (size_t i = 0; i < loads_.size() && next.status; ++i) {
      next.blocks[i].resize(loads_[i].chunk->block_bytes());
      next.status = loads_[i].chunk->read_layer(layer, next.blocks[i]);
      if (!next.status) failed_ = loads_[i].chunk;
    }
    const bool failed = !next.status;
    {
      const std::lock_guard lock(mutex_);
      read_.push_back(std::move(next));
    }
    changed_.notify_all();
    if (failed) return;
  }
}

Status ChunkLoader::load_through(uint32_t layer) {
  for (; placed_ <= layer && !loads_.empty(); ++placed_) {
    const auto start = Clock::now();
    Layer read;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !read_.empty(); });
      if (!read_.front().status) return read_.front().status;
      read = std::move(read_.front());
      read_.pop_front();
    }
    changed_.notify_all();
    wait_ms_ += ms_since(start);
    const auto placing = Clock::now();
    place(placed_, read);
    place_ms_ += ms_since(placing);
    const std::lock_guard lock(mutex_);
    for (const ChunkLoad& load : loads_) bytes_ += load.chunk->record().blocks[placed_].bytes;
    for (auto& block : read.blocks) spare_.push_back(std::move(block));
  }
  return {};
}

void ChunkLoader::place(uint32_t layer, const Layer& read) {
  struct Task {
    size_t load;
    int32_t begin, end;
  };
  std::vector<Task> tasks;
  for (size_t i = 0; i < loads_.size(); ++i) {
    for (int32_t at = loads_[i].from; at < loads_[i].end; at += kTaskTokens) {
      tasks.push_back({i, at, std::min<int32_t>(loads_[i].end, at + int32_t{kTaskTokens})});
    }
  }
  const kernels::KvLayout& layout = kv_.pool().layout();
  const size_t width = size_t{layout.n_kv_head} * layout.head_dim;
  const size_t pairs = rotation_.rope(layer).pairs();
  pool_.run(tasks.size(), [&](size_t index, int) {
    const Task& task = tasks[index];
    const ChunkLoad& load = loads_[task.load];
    const std::byte* block = read.blocks[task.load].data();
    const auto type = load.chunk->record().identity().type;
    const size_t values = load.chunk->record().tokens.size() * width;  // of all keys
    std::vector<float> k(width), v(width);
    for (int32_t at = task.begin; at < task.end; ++at) {
      const auto token = static_cast<size_t>(at - load.begin);
      widen(block, type, token * width, width, k.data());
      widen(block, type, values + token * width, width, v.data());
      if (rotate_) {
        const size_t row = first_row_[task.load] + static_cast<size_t>(at - load.from);
        kernels::rope(k.data(), rotation_.row(layer, row), layout.n_kv_head, layout.head_dim,
                      pairs);
      }
      const auto position = static_cast<size_t>(at);
      kernels::store_token(layout, kv_.page(layer, position / kPageTokens), position % kPageTokens,
                           k.data(), v.data());
    }
  });
}

void ChunkLoader::add_cost(FusionCost& cost) const {
  cost.loaded_rows = first_row_.back();
  cost.loaded_bytes += bytes_;
  cost.wait_ms += wait_ms_;
  cost.place_ms += place_ms_;
}

}  // namespace reprise
