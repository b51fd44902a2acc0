#include "fusion/chunk_loader.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/float16.h"
#include "base/try.h"
#include "kernels/ops.h"

namespace reprise {
namespace {

// Blocks that stay in a core's second cache from reading to placing.
constexpr size_t kMostAtOnce = 1 << 20;
constexpr size_t kLoadsPerThread = 2;  // enough to even out what threads do
constexpr int32_t kPartTokens = 4 * kPageTokens;

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

std::vector<const StoredChunk*> chunks_of(std::span<const ChunkLoad> loads) {
  std::vector<const StoredChunk*> chunks;
  for (const ChunkLoad& load : loads) chunks.push_back(load.chunk);
  return chunks;
}

}  // namespace

ChunkLoader::ChunkLoader(std::vector<ChunkLoad> loads, SequenceKv& kv, bool rotate, double row_ms,
                         LoadRoom& room, ThreadPool& pool)
    : loads_(std::move(loads)),
      kv_(kv),
      rotate_(rotate),
      pool_(pool),
      rotation_(room.rotation),
      pace_(loads_, chunks_of(loads_), row_ms, kv.pool().layers()),
      read_ms_(static_cast<size_t>(pool.size())),
      page_rows_(read_ms_.size()) {
  make_room(room);
  if (rotate_) prepare_rotation();
}

void ChunkLoader::prepare_rotation() {
  int32_t end = 0;
  for (const ChunkLoad& load : loads_) end = std::max(end, load.end + load.shift);
  for (uint32_t layer = 0; layer < kv_.pool().layers(); ++layer) {
    rotation_.reserve_positions(layer, static_cast<size_t>(end), pool_);
  }
}

void ChunkLoader::make_room(LoadRoom& room) {
  size_t largest = 0, all = 0;
  for (size_t i = 0; i < loads_.size(); ++i) {
    const size_t bytes = loads_[i].chunk->block_bytes();
    room_at_.push_back(all);
    all += bytes;
    largest = std::max(largest, bytes);
    for (int32_t at = loads_[i].from, end = 0; at < loads_[i].end; at = end) {
      end = std::min(loads_[i].end, (at / kPartTokens + 1) * kPartTokens);
      parts_.push_back({i, at, end});
    }
  }
  at_once_ = largest <= kMostAtOnce && loads_.size() >= kLoadsPerThread * read_ms_.size();
  if (at_once_) {
    room_at_.clear();
    for (size_t thread = 0; thread < read_ms_.size(); ++thread) {
      room_at_.push_back(thread * largest);
    }
    all = largest * read_ms_.size();
  }
  std::vector<std::byte>& bytes = all > LoadRoom::kMostBytes ? large_ : room.bytes;
  if (bytes.size() < all) bytes = std::vector<std::byte>(all);
  room_ = bytes.data();
}

std::span<std::byte> ChunkLoader::room_of(size_t load, int thread) const {
  const size_t at = room_at_[at_once_ ? static_cast<size_t>(thread) : load];
  return {room_ + at, loads_[load].chunk->block_bytes()};
}

Status ChunkLoader::load_through(uint32_t layer) {
  for (; placed_ <= layer && !loads_.empty(); ++placed_) REPRISE_CHECK(load(placed_));
  return {};
}

Status ChunkLoader::load(uint32_t layer) {
  const auto start = Clock::now();
  std::ranges::fill(read_ms_, 0.0);
  std::vector<Status> statuses(loads_.size());
  pool_.run(loads_.size(), [&](size_t i, int thread) { statuses[i] = read(layer, i, thread); });
  for (size_t i = 0; i < loads_.size(); ++i) {
    if (!statuses[i]) {
      failed_ = loads_[i].chunk;
      return std::move(statuses[i]);
    }
    bytes_ += loads_[i].chunk->record().blocks[layer].bytes;
  }
  if (!at_once_) {
    pool_.run(parts_.size(), [&](size_t i, int thread) { place(layer, parts_[i], thread); });
  }
  const double read_ms = std::ranges::max(read_ms_);
  wait_ms_ += read_ms;
  place_ms_ += ms_since(start) - read_ms;
  return pace_.add_layer(read_ms);
}

Status ChunkLoader::read(uint32_t layer, size_t index, int thread) {
  const ChunkLoad& load = loads_[index];
  const auto start = Clock::now();
  const Status status = load.chunk->read_layer(layer, room_of(index, thread));
  read_ms_[static_cast<size_t>(thread)] += ms_since(start);
  if (status && at_once_) place(layer, {index, load.from, load.end}, thread);
  return status;
}

void ChunkLoader::place(uint32_t layer, const Part& part, int thread) {
  const kernels::KvLayout& layout = kv_.pool().layout();
  const size_t width = size_t{layout.n_kv_head} * layout.head_dim;
  const size_t pairs = rotate_ ? rotation_.rope(layer).pairs() : 0;
  const ChunkLoad& load = loads_[part.load];
  const auto type = load.chunk->record().identity().type;
  const size_t values = load.chunk->record().tokens.size() * width;  // of all keys
  const std::byte* block = room_of(part.load, thread).data();
  auto& [k, v] = page_rows_[static_cast<size_t>(thread)];
  k.resize(kPageTokens * width);
  v.resize(k.size());
  for (int32_t at = part.begin, end = 0; at < part.end; at = end) {
    const auto position = static_cast<size_t>(at), token = static_cast<size_t>(at - load.begin);
    const size_t slot = position % kPageTokens;
    const auto count = std::min(static_cast<size_t>(part.end - at), kPageTokens - slot);
    end = at + static_cast<int32_t>(count);
    std::byte* const page = kv_.page(layer, position / kPageTokens);
    const float* angles = rotate_ ? rotation_.keys(layer, at + load.shift) : nullptr;
    if (count == kPageTokens && type == kernels::KvType::kBF16) {
      const auto* rows = reinterpret_cast<const Bf16*>(block) + token * width;
      if (kernels::store_bf16_page(layout, page, {rows, rows + values, angles, pairs})) continue;
    }
    widen(block, type, token * width, count * width, k.data());
    widen(block, type, values + token * width, count * width, v.data());
    for (size_t i = 0; i < count && rotate_; ++i) {
      kernels::rope(&k[i * width], angles + i * 2 * pairs, layout.n_kv_head, layout.head_dim,
                    pairs);
    }
    std::unique_lock alone(shared_pages_[position / kPageTokens % shared_pages_.size()],
                           std::defer_lock);
    if (count < kPageTokens) alone.lock();
    kernels::store_tokens(layout, page, slot, count, k.data(), v.data());
  }
}

void ChunkLoader::add_cost(FusionCost& cost) const {
  cost.loaded_bytes += bytes_;
  cost.wait_ms += wait_ms_;
  cost.place_ms += place_ms_;
}

}  // namespace reprise
