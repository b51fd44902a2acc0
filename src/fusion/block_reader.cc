#include "fusion/block_reader.h"

#include "base/try.h"

namespace reprise {

std::vector<BlockPart> block_parts(std::span<const ChunkLoad> loads, size_t most_bytes) {
  std::vector<BlockPart> parts;
  for (size_t i = 0; i < loads.size(); ++i) {
    const size_t bytes = loads[i].chunk->block_bytes();
    if (parts.empty() || parts.back().bytes + bytes > most_bytes) parts.push_back({i, i, 0});
    parts.back().end = i + 1;
    parts.back().bytes += bytes;
  }
  return parts;
}

BlockReader::BlockReader(Plan plan) : plan_(std::move(plan)) {
  if (!plan_.loads.empty()) reader_ = std::thread([this] { read_ahead(); });
}

BlockReader::~BlockReader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (reader_.joinable()) reader_.join();
}

void BlockReader::read_ahead() {
  const size_t parts = plan_.layers * plan_.parts.size();
  for (size_t nth = 0; nth < parts; ++nth) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || nth < released_ + plan_.slots.size(); });
      if (stop_) return;
    }
    Status status = read_part(nth);
    const bool failed = !status;
    {
      const std::lock_guard lock(mutex_);
      if (failed)
        status_ = std::move(status);
      else
        ++read_;
    }
    changed_.notify_all();
    if (failed) return;
  }
}

Status BlockReader::read_part(size_t nth) {
  const size_t slots = plan_.slots.size(), layer = nth / plan_.parts.size();
  if (nth >= slots && plan_.await_unused) REPRISE_CHECK(plan_.await_unused(nth - slots));
  const BlockPart& part = plan_.parts[nth % plan_.parts.size()];
  std::vector<std::span<std::byte>> blocks;
  std::byte* to = plan_.slots[nth % slots];
  for (size_t i = part.first; i < part.end; ++i) {
    blocks.emplace_back(to, plan_.loads[i].chunk->block_bytes());
    to += blocks.back().size();
  }
  std::vector<Status> statuses(blocks.size());
  const auto read = [&](size_t i, int) {
    const StoredChunk* chunk = plan_.loads[part.first + i].chunk;
    statuses[i] = chunk->read_layer(static_cast<uint32_t>(layer), blocks[i]);
  };
  if (plan_.pool != nullptr) plan_.pool->run(blocks.size(), read);
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (plan_.pool == nullptr) read(i, 0);
    if (statuses[i]) continue;
    failed_ = plan_.loads[part.first + i].chunk;
    return std::move(statuses[i]);
  }
  return {};
}

Result<const std::byte*> BlockReader::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return read_ > taken_ || !status_; });
  if (read_ == taken_) return tl::unexpected<Error>(status_.error());
  return plan_.slots[taken_++ % plan_.slots.size()];
}

void BlockReader::release() {
  {
    const std::lock_guard lock(mutex_);
    ++released_;
  }
  changed_.notify_all();
}

}  // namespace reprise
