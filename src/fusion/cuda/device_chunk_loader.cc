#include "fusion/cuda/device_chunk_loader.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/try.h"
#include "fusion/cuda/layer_rows.h"
#include "fusion/cuda/send.h"
#include "kernels/cuda/heads.h"
#include "kernels/cuda/place_rows.h"

namespace reprise {
namespace {

using namespace kernels::cuda;

constexpr std::string_view kWhat = "stored chunks";
// Large enough for the bus, and for every thread to have a block; what is read ahead is bounded.
constexpr size_t kPartBytes = size_t{64} << 20;
// Copied before tables are: what is sent later waits for them on the bus.
constexpr size_t kFirstParts = 2;
static_assert(kFirstParts <= kLoadSlots);

}  // namespace

template <class Body>
Status DeviceChunkLoader::each_rank(Body&& body) const {
  for (size_t i = 0; i < target_.ranks.size(); ++i) {
    const DeviceScope scope(static_cast<int>(i));
    REPRISE_CHECK(body(target_.ranks[i]));
  }
  return {};
}

Result<std::unique_ptr<DeviceChunkLoader>> DeviceChunkLoader::create(std::vector<ChunkLoad> loads,
                                                                     Target target,
                                                                     ThreadPool& pool) {
  std::unique_ptr<DeviceChunkLoader> made(
      new DeviceChunkLoader(std::move(loads), std::move(target)));
  if (made->loads_.empty()) return made;
  made->parts_ = block_parts(made->loads_, kPartBytes);
  for (const ChunkLoad& load : made->loads_) {
    made->held_.push_back(made->target_.resident->hold(*load.chunk));
  }
  made->all_read_ = std::ranges::all_of(
      made->held_, [](const auto& entry) { return entry != nullptr && entry->complete; });
  REPRISE_CHECK(made->reserve());
  made->reader_ = std::make_unique<BlockReader>(made->read_plan(pool));
  REPRISE_CHECK(made->copy_ahead(kFirstParts));
  const auto send = [&](const Rank& rank) -> Status {
    REPRISE_CHECK(made->send_rows(rank));
    return made->send_angles(rank);
  };
  REPRISE_CHECK(made->each_rank(send));  // while the first blocks are read
  return made;
}

DeviceChunkLoader::~DeviceChunkLoader() {
  reader_.reset();
  // The passes' streams do not wait for the part whose placing failed.
  for (const Rank& rank : target_.ranks) {
    const LoadBuffers& b = *rank.buffers;
    if (b.copies.get() != nullptr) cudaStreamSynchronize(b.copies.get());
    if (b.placing.get() != nullptr) cudaStreamSynchronize(b.placing.get());
  }
}

BlockReader::Plan DeviceChunkLoader::read_plan(ThreadPool& pool) {
  // What is kept for other prompts is read whole.
  const bool whole =
      std::ranges::any_of(held_, [](const auto& entry) { return entry && !entry->complete; });
  placed_ = first_read_ = whole ? 0 : target_.first_layer;
  BlockReader::Plan plan = {loads_, parts_, first_read_, target_.layers, {}, &pool};
  plan.row_ms = target_.row_ms;
  for (const auto& slot : target_.slots->slots) plan.slots.push_back(slot.data());
  for (const auto& entry : held_) {
    plan.kept.push_back(entry ? BlockReader::Kept{entry->blocks, entry->complete}
                              : BlockReader::Kept());
  }
  plan.await_unused = [this](size_t nth) -> Status {
    for (const Rank& rank : target_.ranks) {
      REPRISE_CHECK(rank.buffers->events[nth].copied.wait());
    }
    return {};
  };
  return plan;
}

RowShare DeviceChunkLoader::share_of(const Rank& rank) const {
  return {static_cast<size_t>(&rank - target_.ranks.data()), target_.ranks.size(),
          size_t{rank.kv.n_kv_head} * rank.kv.head_dim};
}

size_t DeviceChunkLoader::device_bytes(const BlockPart& part, const RowShare& share) const {
  size_t bytes = 0;
  for (size_t i = part.first; i < part.end; ++i) {
    bytes = DeviceBlock(*loads_[i].chunk, share, bytes).end();
  }
  return bytes;
}

uint32_t DeviceChunkLoader::rows_of(const BlockPart& part) const {
  uint32_t rows = 0;
  for (size_t i = part.first; i < part.end; ++i) {
    rows += static_cast<uint32_t>(loads_[i].end - loads_[i].from);
  }
  return rows;
}

Status DeviceChunkLoader::reserve() {
  size_t bytes = 0;
  for (const BlockPart& part : parts_) {
    first_row_.push_back(rows_);
    rows_ += rows_of(part);
    bytes = std::max(bytes, part.bytes);
  }
  const bool by_slots = std::ranges::any_of(held_, [](const auto& entry) { return !entry; });
  for (auto& slot : target_.slots->slots) {
    if (by_slots) REPRISE_CHECK(slot.reserve(bytes, kWhat));
  }
  return each_rank([&](const Rank& rank) -> Status {
    LoadBuffers& b = *rank.buffers;
    if (b.copies.get() == nullptr) {
      REPRISE_TRY(b.copies, CudaStream::create());
      REPRISE_TRY(b.placing, CudaStream::create());
      REPRISE_TRY(b.ready, CudaEvent::create());
    }
    size_t own = 0;
    for (const BlockPart& part : parts_) own = std::max(own, device_bytes(part, share_of(rank)));
    for (auto& slot : b.device) REPRISE_CHECK(slot.reserve(own, kWhat));
    return reserve_events(b, target_.layers * parts_.size());
  });
}

Status DeviceChunkLoader::reserve_events(LoadBuffers& buffers, size_t count) {
  // The deque's events stay where they are, as threads that read wait for some.
  while (buffers.events.size() < count) {
    LoadBuffers::Events events;
    for (CudaEvent* event :
         {&events.waits, &events.arrived, &events.copied, &events.placing, &events.placed}) {
      REPRISE_TRY(*event, CudaEvent::create(true));
    }
    buffers.events.push_back(std::move(events));
  }
  return {};
}

Status DeviceChunkLoader::send_rows(const Rank& rank) const {
  std::vector<StoredRow> k_rows, v_rows;
  std::vector<int32_t> places, angles_at;
  for (const BlockPart& part : parts_) {
    size_t at = 0;
    for (size_t i = part.first; i < part.end; ++i) {
      const ChunkLoad& load = loads_[i];
      const auto tokens = static_cast<uint32_t>(load.chunk->record().tokens.size());
      const DeviceBlock block(*load.chunk, share_of(rank), at);
      for (int32_t place = load.from; place < load.end; ++place) {
        const auto row = static_cast<uint32_t>(place - load.begin);
        k_rows.push_back(block.row(row));
        v_rows.push_back(block.row(tokens + row));
        places.push_back(place);
        angles_at.push_back(place + load.shift);
      }
      at = block.end();
    }
  }
  LoadBuffers& b = *rank.buffers;
  REPRISE_CHECK(send(k_rows, b.k_rows, rank.stream));
  REPRISE_CHECK(send(v_rows, b.v_rows, rank.stream));
  REPRISE_CHECK(send(places, b.places, rank.stream));
  return send(angles_at, b.angles_at, rank.stream);
}

Status DeviceChunkLoader::send_angles(const Rank& rank) const {
  LoadBuffers& b = *rank.buffers;
  for (const RopeTable* table : target_.ropes) {
    const auto known = std::ranges::find(b.ropes, table, &LoadBuffers::Rope::table);
    if (known != b.ropes.end()) continue;
    LoadBuffers::Rope& rope = b.ropes.emplace_back();
    rope.table = table;
    REPRISE_CHECK(send(table->inv_freq(), rope.inv_freq, rank.stream));
  }
  for (LoadBuffers::Rope& rope : b.ropes) {
    if (target_.ropes.empty()) break;
    const auto pairs = static_cast<uint32_t>(rope.table->pairs());
    REPRISE_CHECK(rope.cos_sin.reserve(rows_ * pairs * 2, kWhat));
    REPRISE_CUDA(rotary_rows(rope.inv_freq.data(), pairs, rope.table->attention_factor(),
                             b.angles_at.data(), static_cast<uint32_t>(rows_),
                             std::numeric_limits<int32_t>::max(), rope.cos_sin.data(), rank.stream),
                 "rotary angles");
  }
  return {};
}

Status DeviceChunkLoader::begin_placing() {
  if (loads_.empty()) return {};
  const auto mark = [](const Rank& rank) -> Status {
    REPRISE_CHECK(rank.buffers->ready.record(rank.stream));
    return rank.buffers->ready.hold(rank.buffers->placing.get());
  };
  REPRISE_CHECK(each_rank(mark));
  return copy_ahead(kLoadSlots);
}

Status DeviceChunkLoader::load_through(uint32_t layer) {
  for (; placed_ <= layer && !loads_.empty(); ++placed_) {
    for (size_t part = 0; part < parts_.size(); ++part) REPRISE_CHECK(load_part(placed_, part));
    for (const ChunkLoad& load : loads_) bytes_ += load.chunk->record().blocks[placed_].bytes;
  }
  if (placed_ < target_.layers) return {};
  for (const auto& entry : held_) {
    if (entry) entry->complete = true;
  }
  return {};
}

Status DeviceChunkLoader::load_part(uint32_t layer, size_t part) {
  const size_t nth = parts_done_;
  REPRISE_CHECK(each_rank(
      [&](const Rank& rank) { return rank.buffers->events[nth].waits.record(rank.stream); }));
  if (parts_copied_ == nth) REPRISE_CHECK(copy_next());
  ++parts_done_;
  const Status placed = each_rank([&](const Rank& rank) -> Status {
    LoadBuffers& b = *rank.buffers;
    LoadBuffers::Events& events = b.events[nth];
    const cudaStream_t placing = b.placing.get();
    REPRISE_CHECK(events.copied.hold(placing));
    REPRISE_CHECK(events.placing.record(placing));
    if (layer >= target_.first_layer) {
      REPRISE_CHECK(place(rank, layer, part, b.device[nth % kLoadSlots].data()));
    }
    REPRISE_CHECK(events.placed.record(placing));
    REPRISE_CHECK(events.placed.hold(rank.stream));
    return events.arrived.record(rank.stream);
  });
  return placed ? copy_ahead(kLoadSlots) : placed;
}

Status DeviceChunkLoader::copy_ahead(size_t most_parts) {
  if (!all_read_) return {};
  const size_t all = (target_.layers - first_read_) * parts_.size();
  const size_t end = std::min(all, parts_done_ + most_parts);
  while (parts_copied_ < end) REPRISE_CHECK(copy_next());
  return {};
}

Status DeviceChunkLoader::copy_next() {
  const size_t nth = parts_copied_++;
  REPRISE_TRY(const std::byte* const in_slot, reader_->next());
  REPRISE_CHECK(each_rank([&](const Rank& rank) { return copy_part(rank, nth, in_slot); }));
  reader_->release();
  return {};
}

Status DeviceChunkLoader::copy_part(const Rank& rank, size_t nth, const std::byte* in_slot) const {
  LoadBuffers& b = *rank.buffers;
  const size_t layer = first_read_ + nth / parts_.size();
  const BlockPart& part = parts_[nth % parts_.size()];
  const cudaStream_t copies = b.copies.get();
  if (nth >= kLoadSlots) REPRISE_CHECK(b.events[nth - kLoadSlots].placed.hold(copies));
  BlockCopies sent(b.device[nth % kLoadSlots].data(), share_of(rank), copies);
  size_t at = 0;  // in the slot
  for (size_t i = part.first; i < part.end && layer >= target_.first_layer; ++i) {
    const StoredChunk& chunk = *loads_[i].chunk;
    const size_t bytes = block_stride(chunk);
    REPRISE_CHECK(sent.add(chunk, held_[i] ? held_[i]->blocks + layer * bytes : in_slot + at));
    at += bytes;
  }
  REPRISE_CHECK(sent.finish());
  return b.events[nth].copied.record(copies);
}

Status DeviceChunkLoader::place(const Rank& rank, uint32_t layer, size_t part,
                                const std::byte* blocks) const {
  const LoadBuffers& b = *rank.buffers;
  const size_t first = first_row_[part];
  PlaceRowsArgs args;
  args.stored = blocks;
  args.k_rows = b.k_rows.data() + first;
  args.v_rows = b.v_rows.data() + first;
  args.rows = rows_of(parts_[part]);
  if (!target_.ropes.empty()) {
    const auto rope = std::ranges::find(b.ropes, target_.ropes[layer], &LoadBuffers::Rope::table);
    args.pairs = static_cast<uint32_t>(rope->table->pairs());
    args.cos_sin = rope->cos_sin.data() + first * args.pairs * 2;
  }
  args.positions = b.places.data() + first;
  args.kv = rank.kv;
  args.pages = rank.rows->table(layer);
  REPRISE_CUDA(place_rows(args, b.placing.get()), kWhat);
  return {};
}

void DeviceChunkLoader::add_cost(FusionCost& cost) const {
  cost.loaded_bytes += bytes_;
  const LoadBuffers& b = *target_.ranks.front().buffers;
  for (size_t nth = 0; nth < parts_done_; ++nth) {
    const LoadBuffers::Events& events = b.events[nth];
    cost.wait_ms += events.arrived.ms_since(events.waits).value_or(0.0);
    cost.place_ms += events.placed.ms_since(events.placing).value_or(0.0);
  }
}

}  // namespace reprise
