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
    const size_t bytes = loads[i].chunk->block_bytes();
    if (parts.empty() || parts.back().bytes + bytes > most_bytes) parts.push_back({i, i, 0});
    parts.back().end = i + 1;
    parts.back().bytes += bytes;
  }
  return parts;
}

BlockReader::BlockReader(Plan plan)
    : plan_(std::move(plan)),
      pace_(plan_.loads, avoidable(), plan_.row_ms, plan_.layers - plan_.first_layer) {
  if (plan_.loads.empty()) return;
  try {
    reader_ = std::thread([this] { read_ahead(); });
  } catch (const std::system_error&) {  // The system starts no more: next() reads.
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

void BlockReader::read_ahead() {
  const size_t parts = (plan_.layers - plan_.first_layer) * plan_.parts.size();
  for (size_t nth = 0; nth < parts; ++nth) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || nth < released_ + plan_.slots.size(); });
      if (stop_) return;
    }
    if (!read_one(nth)) return;
  }
}

bool BlockReader::read_one(size_t nth) {
  Status status = read_part(nth);
  if (status && (nth + 1) % plan_.parts.size() == 0) {
    status = pace_.add_layer(std::exchange(layer_ms_, 0.0));
  }
  const bool failed = !status;
  {
    const std::lock_guard lock(mutex_);
    if (failed)
      status_ = std::move(status);
    else
      ++read_;
  }
  changed_.notify_all();
  return !failed;
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
  const auto start = std::chrono::steady_clock::now();
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
  layer_ms_ +=
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return {};
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

Result<const std::byte*> BlockReader::next() {
  if (!reader_.joinable() && status_) read_one(taken_);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return read_ > taken_ || !status_; });
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
  }
  changed_.notify_all();
}

}  // namespace reprise
