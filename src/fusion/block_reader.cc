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
  const size_t parts = (plan_.layers - plan_.first_layer) * plan_.parts.size();
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

std::vector<BlockReader::Read> BlockReader::reads_of(size_t nth) const {
  const size_t layer = layer_of(nth);
  const BlockPart& part = plan_.parts[nth % plan_.parts.size()];
  std::byte* const slot = plan_.slots[nth % plan_.slots.size()];
  size_t at = 0;  // in the slot
  std::vector<Read> reads;
  for (size_t i = part.first; i < part.end; ++i) {
    const StoredChunk* chunk = plan_.loads[i].chunk;
    const size_t bytes = chunk->block_bytes();
    const Kept kept = plan_.kept.empty() ? Kept() : plan_.kept[i];
    std::byte* to = kept.blocks != nullptr ? kept.blocks + layer * bytes : slot + at;
    if (!kept.read) reads.push_back({chunk, {to, bytes}});
    at += bytes;
  }
  return reads;
}

Status BlockReader::read_part(size_t nth) {
  const size_t slots = plan_.slots.size(), layer = layer_of(nth);
  if (nth >= slots && plan_.await_unused) REPRISE_CHECK(plan_.await_unused(nth - slots));
  const std::vector<Read> reads = reads_of(nth);
  std::vector<Status> statuses(reads.size());
  const auto read = [&](size_t i, int) {
    statuses[i] = reads[i].chunk->read_layer(static_cast<uint32_t>(layer), reads[i].to);
  };
  if (plan_.pool != nullptr) plan_.pool->run(reads.size(), read);
  for (size_t i = 0; i < reads.size(); ++i) {
    if (plan_.pool == nullptr) read(i, 0);
    if (statuses[i]) continue;
    failed_ = reads[i].chunk;
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
