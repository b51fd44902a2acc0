#include "fusion/block_reader.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "base/try.h"

namespace reprise {

std::vector<BlockPart> block_parts(std::span<const ChunkLoad> loads, size_t most_bytes) {
  std::vector<BlockPart> parts;
  for (size_t i = 0; i < loads.size(); ++i) {
    const size_t bytes = block_stride(*loads[i].chunk);
    if (parts.empty() || parts.back().bytes + bytes > most_bytes) parts.push_back({i, i, 0});
    parts.back().end = i + 1;
    parts.back().bytes += bytes;
  }
  return parts;
}

BlockReader::BlockReader(Plan plan)
    : plan_(std::move(plan)),
      pace_(plan_.loads, avoidable(), plan_.row_ms, plan_.layers - plan_.first_layer),
      slots_(plan_.slots.size()) {
  if (plan_.loads.empty()) return;
  list_sources();
  count_parts();
  try {
    reader_ = std::thread([this] { read_ahead(); });
  } catch (const std::system_error&) {  // The system starts no more: next() reads.
    side_by_side_ = 1;
  }
}

BlockReader::~BlockReader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (reader_.joinable()) reader_.join();
}

void BlockReader::list_sources() {
  size_t blocks = 0;
  for (const BlockPart& part : plan_.parts) {
    std::vector<Source>& sources = sources_.emplace_back();
    size_t at = 0;
    for (size_t i = part.first; i < part.end; ++i) {
      const StoredChunk* chunk = plan_.loads[i].chunk;
      const Kept kept = plan_.kept.empty() ? Kept() : plan_.kept[i];
      if (!kept.read) sources.push_back({chunk, at, kept.blocks});
      at += block_stride(*chunk);
    }
    blocks = std::max(blocks, sources.size());
  }
  const auto most = static_cast<double>(blocks * slots_.size());
  side_by_side_ = std::clamp<double>(most, 1, static_cast<double>(readers()));
}

std::vector<const StoredChunk*> BlockReader::avoidable() const {
  std::vector<const StoredChunk*> chunks;
  for (size_t i = 0; i < plan_.loads.size(); ++i) {
    const Kept kept = plan_.kept.empty() ? Kept() : plan_.kept[i];
    if (kept.blocks == nullptr) chunks.push_back(plan_.loads[i].chunk);
    if (kept.blocks != nullptr && !kept.read) return {};
  }
  return chunks;
}

// No thread waits for the others at the end of a part. The caller of next() keeps a core.
void BlockReader::read_ahead() {
  plan_.pool->run(readers(), [this](size_t, int) {
    while (const std::optional<Block> block = take(true)) read(*block);
  });
}

std::optional<BlockReader::Block> BlockReader::take(bool waits) {
  std::unique_lock lock(mutex_);
  while (!stop_ && status_ && next_part_ < parts()) {
    if (next_part_ < released_ + slots_.size()) {
      const std::vector<Source>& sources = sources_of(next_part_);
      if (next_block_ < sources.size()) return Block{next_part_, &sources[next_block_++]};
      ++next_part_;
      next_block_ = 0;
    } else if (waits) {
      changed_.wait(lock);
    } else {
      break;
    }
  }
  return std::nullopt;
}

void BlockReader::read(const Block& block) {
  const size_t slots = slots_.size();
  const bool used = block.nth >= slots && plan_.await_unused;
  Status status = used ? plan_.await_unused(block.nth - slots) : Status();
  const bool unused = status.has_value();
  const auto start = std::chrono::steady_clock::now();
  if (unused) status = read_block(block);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  {
    const std::lock_guard lock(mutex_);
    if (status_ && !status) {  // what failed first is told
      failed_ = unused ? block.source->chunk : nullptr;
      status_ = std::move(status);
    } else if (status_) {
      Slot& slot = slots_[block.nth % slots];
      ++slot.done;
      slot.ms += took.count();
      count_parts();
    }
  }
  changed_.notify_all();
}

Status BlockReader::read_block(const Block& block) {
  const StoredChunk& chunk = *block.source->chunk;
  const size_t layer = plan_.first_layer + block.nth / plan_.parts.size();
  std::byte* const kept = block.source->kept;
  std::byte* const to = kept != nullptr
                            ? kept + layer * block_stride(chunk)
                            : plan_.slots[block.nth % slots_.size()] + block.source->in_slot;
  return chunk.read_layer(static_cast<uint32_t>(layer), {to, chunk.block_bytes(kReadForm)},
                          kReadForm);
}

void BlockReader::count_parts() {
  const size_t end = std::min(parts(), released_ + slots_.size());
  for (; status_ && read_ < end; ++read_) {
    Slot& slot = slots_[read_ % slots_.size()];
    if (slot.done < sources_of(read_).size()) return;
    layer_ms_ += slot.ms / side_by_side_;
    slot = {};
    if ((read_ + 1) % plan_.parts.size() == 0) {
      status_ = pace_.add_layer(std::exchange(layer_ms_, 0.0));
    }
  }
}

Result<const std::byte*> BlockReader::next() {
  const auto waits = [&] { return read_ == taken_ && status_; };
  while (!reader_.joinable() && waits()) {
    const std::optional<Block> block = take(false);
    if (!block) break;
    read(*block);
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !waits(); });
  if (read_ == taken_ || (!status_ && pace_.slow() != nullptr)) {
    told_ = true;
    return tl::unexpected<Error>(status_.error());
  }
  return plan_.slots[taken_++ % plan_.slots.size()];
}

void BlockReader::release() {
  {
    const std::lock_guard lock(mutex_);
    ++released_;
    count_parts();
  }
  changed_.notify_all();
}

}  // namespace reprise
