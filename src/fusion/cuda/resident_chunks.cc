#include "fusion/cuda/resident_chunks.h"

#include <algorithm>
#include <iterator>

#include "base/try.h"
#include "fusion/block_reader.h"

namespace reprise {
namespace {

constexpr uint64_t kAlignment = 4096;

}  // namespace

BlockArena::BlockArena(uint64_t bytes) {
  if (bytes > 0) free_.emplace(0, bytes);
}

uint64_t BlockArena::take(uint64_t bytes) {
  const auto found =
      std::ranges::find_if(free_, [bytes](const auto& range) { return range.second >= bytes; });
  if (found == free_.end()) return kNone;
  const auto [offset, room] = *found;
  free_.erase(found);
  if (room > bytes) free_.emplace(offset + bytes, room - bytes);
  return offset;
}

void BlockArena::give_back(uint64_t offset, uint64_t bytes) {
  auto after = free_.lower_bound(offset);
  if (after != free_.end() && after->first == offset + bytes) {
    bytes += after->second;
    after = free_.erase(after);
  }
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  free_.emplace(offset, bytes);
}

Result<std::unique_ptr<ResidentChunks>> ResidentChunks::create(uint64_t bytes) {
  std::unique_ptr<ResidentChunks> made(new ResidentChunks(bytes));
  if (bytes > 0) REPRISE_CHECK(made->memory_.reserve(bytes, "--store-memory"));
  return made;
}

std::shared_ptr<ResidentChunks::Entry> ResidentChunks::hold(const StoredChunk& chunk) {
  const ChunkHeader& header = chunk.record().header;
  const Key key = {chunk.record().key(), header.checksum};
  const auto found = std::ranges::find(kept_, key, &Kept::key);
  if (found != kept_.end() && (found->entry->complete || found->entry.use_count() > 1)) {
    kept_.splice(kept_.begin(), kept_, found);
    return found->entry->complete ? found->entry : nullptr;
  }
  if (found != kept_.end()) drop(found);  // reading it failed
  const uint64_t need = header.n_layer * uint64_t{block_stride(chunk)};
  const uint64_t bytes = (need + kAlignment - 1) / kAlignment * kAlignment;
  if (bytes > memory_.size()) return nullptr;
  uint64_t offset = arena_.take(bytes);
  while (offset == BlockArena::kNone && make_room()) offset = arena_.take(bytes);
  if (offset == BlockArena::kNone) return nullptr;
  auto entry = std::make_shared<Entry>(Entry{memory_.data() + offset});
  kept_.push_front({key, offset, bytes, entry});
  return entry;
}

/// Drops the entry that was used least recently of those that nobody holds.
bool ResidentChunks::make_room() {
  const auto unused = std::find_if(kept_.rbegin(), kept_.rend(),
                                   [](const Kept& kept) { return kept.entry.use_count() == 1; });
  if (unused == kept_.rend()) return false;
  drop(std::prev(unused.base()));
  return true;
}

void ResidentChunks::drop(std::list<Kept>::iterator at) {
  arena_.give_back(at->offset, at->bytes);
  kept_.erase(at);
}

}  // namespace reprise
