// What keeps a store small and whole: eviction, collection, verification, rebuilding the index.
#include <algorithm>
#include <chrono>
#include <filesystem>

#include "base/try.h"
#include "store/chunk_store.h"

namespace reprise {
namespace {

uint64_t sum(const std::map<uint32_t, uint64_t>& sizes) {
  uint64_t bytes = 0;
  for (const auto& [segment, size] : sizes) bytes += size;
  return bytes;
}

}  // namespace

Result<std::vector<ChunkRow>> ChunkStore::verify() {
  REPRISE_CHECK(on_any_disk([&] { return index_.check(); }));
  std::vector<ChunkRow> bad;
  REPRISE_TRY(const auto rows, list());
  for (const ChunkRow& row : rows) {
    REPRISE_TRY(const auto chunk, read(row));
    if (chunk && chunk->check()) continue;
    REPRISE_TRY(const auto again, index_.find(row.key));
    if (!again) continue;  // dropped meanwhile
    if (again->place != row.place) {
      REPRISE_TRY(const auto moved, read(*again));
      if (moved && moved->check()) continue;
    }
    bad.push_back(*again);
  }
  return bad;
}

// Drops what was used least recently until there is room, an eighth of the limit more than is asked
// for, so that not every chunk that is added collects.
Status ChunkStore::make_room(uint64_t bytes) {
  if (bytes > limits_.bytes) {
    return fail(ErrorCode::kOutOfMemory,
                "a chunk of {} MiB exceeds the store's limit of {} MiB; raise --store-size",
                (bytes >> 20) + 1, limits_.bytes >> 20);
  }
  REPRISE_TRY(const auto sizes, segments_.sizes());
  if (sum(sizes) + bytes <= limits_.bytes) return {};
  if (!used_.empty()) REPRISE_CHECK(flush_use());
  REPRISE_TRY(const uint64_t live, index_.total_bytes());
  const uint64_t room = std::min(limits_.bytes - bytes, limits_.bytes / 8 * 7);
  Ids evicted;
  if (live > room) {
    REPRISE_TRY(const auto oldest, index_.oldest(live - room));
    for (const ChunkRow& row : oldest) evicted.insert(row.id);
  }
  REPRISE_TRY(const auto order, by_live_bytes(evicted));
  for (const uint32_t segment : order) {
    REPRISE_TRY(const auto now, segments_.sizes());
    if (sum(now) <= room) break;
    const Status collected = collect_segment(segment, 1.0, evicted);
    if (!collected && sum(now) + bytes > limits_.bytes) return collected;
    if (!collected) break;  // there is no room for copies, but for the chunk
  }
  return {};
}

// Those first that need the least room elsewhere: on a disk that is full, ones without live chunks
// make room for the others.
Result<std::vector<uint32_t>> ChunkStore::by_live_bytes(const Ids& evicted) {
  REPRISE_TRY(const auto sizes, segments_.sizes());
  REPRISE_TRY(const auto rows, index_.all());
  std::map<uint32_t, uint64_t> live;
  for (const ChunkRow& row : rows) {
    if (!evicted.contains(row.id)) live[row.place.segment] += row.place.bytes;
  }
  std::vector<uint32_t> order;
  for (const auto& [segment, size] : sizes) order.push_back(segment);
  std::ranges::stable_sort(order, {}, [&](uint32_t segment) { return live[segment]; });
  return order;
}

// Copies records to a segment behind theirs, and names those that are damaged.
Status ChunkStore::copy_live(std::span<const ChunkRow> rows, std::vector<ChunkIndex::Move>& moves,
                             std::vector<ChunkRow>& gone) {
  for (const ChunkRow& row : rows) {
    REPRISE_TRY(const auto chunk, read(row));
    const Status whole = chunk ? chunk->check() : Status();
    if (!whole && !is_damage(whole.error())) return whole;
    if (!chunk || !whole) {
      gone.push_back(row);
      continue;
    }
    std::vector<std::byte> bytes(row.place.bytes);
    REPRISE_TRY(const RecordFile file, segments_.open(row.place));
    REPRISE_CHECK(file.read(0, bytes));
    const std::span<const std::byte> part = bytes;
    REPRISE_TRY(const RecordPlace place,
                segments_.append({&part, 1}, bytes.size(), segment_limit(), row.place.segment + 1));
    moves.emplace_back(row, place);
  }
  return {};
}

// Copies what is live to a later segment, then removes this one and what was evicted of it, unless
// as much of it is live as that. A reader that has it open goes on. An error leaves all as it was.
Status ChunkStore::collect_segment(uint32_t segment, double min_live, const Ids& evicted) {
  REPRISE_TRY(const auto sizes, segments_.sizes());  // an earlier collection may have filled it
  REPRISE_TRY(auto rows, index_.in_segment(segment));
  const auto first_gone = std::stable_partition(
      rows.begin(), rows.end(), [&](const ChunkRow& row) { return !evicted.contains(row.id); });
  std::vector<ChunkRow> gone(first_gone, rows.end());
  rows.erase(first_gone, rows.end());
  uint64_t live = 0;
  for (const ChunkRow& row : rows) live += row.place.bytes;
  const auto size = static_cast<double>(sizes.at(segment));
  if (size > 0 && static_cast<double>(live) >= min_live * size) return {};
  const auto dropped = static_cast<std::ptrdiff_t>(gone.size());
  std::vector<ChunkIndex::Move> moves;
  Status status = copy_live(rows, moves, gone);
  if (status && !(moves.empty() && gone.empty())) status = index_.move(moves, gone);
  if (!status) {
    for (size_t i = moves.size(); i-- > 0;) segments_.undo(moves[i].second);
    return status;
  }
  evicted_ += static_cast<uint64_t>(dropped);
  std::for_each(gone.begin() + dropped, gone.end(), [&](const ChunkRow& row) { note_damage(row); });
  return segments_.remove(segment);
}

Result<uint64_t> ChunkStore::collect(double min_live) {
  return on_any_disk([&] { return collect_all(min_live); });
}

Result<uint64_t> ChunkStore::collect_all(double min_live) {
  REPRISE_TRY(const WriterLock lock, WriterLock::take(folder_));
  REPRISE_CHECK(complete_index());
  REPRISE_TRY(const auto before, segments_.sizes());
  REPRISE_TRY(const auto order, by_live_bytes({}));
  for (const uint32_t segment : order) REPRISE_CHECK(collect_segment(segment, min_live, {}));
  REPRISE_TRY(const auto after, segments_.sizes());
  return sum(before) - sum(after);
}

// Whether a chunk is not in the index, or in a form that this one is better than.
Result<bool> ChunkStore::improves(const StoredChunk& chunk) {
  REPRISE_TRY(const auto row, index_.find(chunk.record().key()));
  if (!row) return true;
  REPRISE_TRY(const auto there, read(*row));
  return !there || !there->record().codec.serves(chunk.record().codec);
}

// Every whole record of every segment.
Status ChunkStore::fill_index() {
  REPRISE_TRY(const auto sizes, segments_.sizes());
  const auto now = std::chrono::duration_cast<std::chrono::seconds>(
      std::chrono::system_clock::now().time_since_epoch());
  for (const auto& [segment, size] : sizes) {
    for (uint64_t at = 0; at + kRecordAlignment <= size;) {
      const RecordPlace rest = {segment, at, size - at};
      REPRISE_TRY(RecordFile file, segments_.open(rest));
      auto record = decode_record(file, rest.bytes);
      at += kRecordAlignment;
      if (!record) continue;
      ChunkRow row;
      row.key = record->key();
      row.place = {segment, rest.offset, record->header.record_bytes};
      const StoredChunk chunk(row, std::move(*record), std::move(file));
      if (!chunk.check()) continue;
      REPRISE_TRY(const bool better, improves(chunk));
      if (better) REPRISE_CHECK(index_.insert(chunk.record(), row.place, now.count()));
      at = rest.offset + row.place.bytes;
    }
  }
  return index_.set_filled();
}

Status ChunkStore::mend() {
  REPRISE_TRY(const auto sizes, segments_.sizes());
  if (sizes.empty()) {  // whose file that is cannot be known
    return fail(ErrorCode::kCorrupt,
                "'{}' has no segments to make it from; `reprise store verify --rebuild` empties it",
                folder_);
  }
  REPRISE_TRY(const WriterLock lock, WriterLock::take(folder_));
  const Status status = index_.check();
  if (!status && status.error().code != ErrorCode::kCorrupt) return status;
  if (!status) REPRISE_CHECK(index_.reset());
  mended_ = mended_ || !status;
  return complete_index();
}

Status ChunkStore::rebuild(const std::string& folder) {
  REPRISE_CHECK(check_folder(folder));
  REPRISE_TRY(ChunkIndex index, ChunkIndex::open(folder + "/index.db"));
  ChunkStore store(folder, std::move(index), {});
  REPRISE_TRY(const WriterLock lock, WriterLock::take(folder));
  REPRISE_CHECK(store.index_.reset());
  return store.complete_index();
}

}  // namespace reprise
