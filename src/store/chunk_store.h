// KV of chunks of text, computed once and kept in a folder. See docs/store.md.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "store/chunk_index.h"
#include "store/remote_store.h"
#include "store/segment.h"
#include "store/spare_room.h"

namespace reprise {

struct StoreLimits {
  uint64_t bytes = uint64_t{20} << 30;  ///< of all segments
  uint64_t segment_bytes = uint64_t{1} << 30;
};

/// Whether an error says that a chunk is damaged, and not that reading fails as such.
bool is_damage(const Error& error);

/// A chunk that was found. Reading is thread-safe, and works on when the store drops the chunk.
class StoredChunk {
 public:
  StoredChunk(ChunkRow row, ChunkRecord record, RecordFile file)
      : row_(std::move(row)), record_(std::move(record)), file_(std::move(file)) {}

  const ChunkRow& row() const { return row_; }
  const ChunkRecord& record() const { return record_; }
  size_t block_bytes(BlockForm form = BlockForm::kValues) const;
  /// Whether BlockForm::kCodes has codes and scales for it, and not values.
  bool has_codes() const { return record_.codec.q8_0; }
  /// K [tokens, n_kv_head, head_dim], then V, of one layer; out: block_bytes(form). kCorrupt when
  /// they are not what was stored, kTruncated, kFileUnreadable.
  Status read_layer(uint32_t layer, std::span<std::byte> out,
                    BlockForm form = BlockForm::kValues) const;
  /// Every layer's bytes as they are stored.
  Status check() const;
  /// The whole record as it is stored.
  Result<EncodedRecord> encoded() const;

 private:
  Status read_stored(uint32_t layer, std::span<std::byte> out) const;

  ChunkRow row_;
  ChunkRecord record_;
  RecordFile file_;
};

struct StoreStats {
  uint64_t chunks = 0, tokens = 0;
  uint64_t live_bytes = 0, disk_bytes = 0;  // disk_bytes: of all segments
};

/// Any number of processes read and write one folder; each uses one ChunkStore per thread. A chunk
/// whose add() returned is there after a crash. What cannot be read back as it was stored is a
/// miss.
class ChunkStore {
 public:
  /// Makes the folder when create is set; else kFileNotFound where there is no store. An index that
  /// is missing or damaged is made again from the segments; kCorrupt where there are none.
  static Result<ChunkStore> open(const std::string& folder, bool create,
                                 const StoreLimits& limits = {});
  /// Makes the index again from what the segments hold.
  static Status rebuild(const std::string& folder);
  ChunkStore(ChunkStore&&) noexcept = default;
  ~ChunkStore();

  /// From now on, chunks that are not here are taken from there, and what is added goes there, too.
  void share_through(RemoteStore remote) { remote_.emplace(std::move(remote)); }

  /// Nothing when it is not there, or damaged: then it is dropped.
  Result<std::optional<StoredChunk>> find(const ChunkIdentity& identity, const ChunkTokens& tokens);
  /// The chunk of a row.
  Result<std::optional<StoredChunk>> find(const ChunkRow& row);
  /// The chunk that lies where a row says; nothing when it is not there, or damaged. Drops nothing.
  Result<std::optional<StoredChunk>> read(const ChunkRow& row) const;
  /// blocks: [n_layer][block], see StoredChunk::read_layer. False when it was there already, in a
  /// form that serves this codec; another one is replaced.
  /// Errors: kInvalidArgument, kOutOfMemory when it exceeds the store's limit alone,
  /// kFileUnwritable; the store is as it was then.
  Result<bool> add(const ChunkIdentity& identity, const ChunkTokens& tokens,
                   const ChunkSource& source, std::span<const std::byte> blocks,
                   BlockCodec codec = {});
  /// Gives a chunk of this store to the shared one, unless it is there.
  void share(const StoredChunk& chunk);
  /// Drops chunks for good; what is shared stays there.
  Status remove(std::span<const ChunkRow> rows);
  /// Drops a chunk that turned out damaged, unless another one lies in its place by now.
  Status drop(const StoredChunk& chunk) { return drop(chunk.row()); }

  Result<std::vector<ChunkRow>> list();
  Result<std::vector<ChunkRow>> search(const ChunkIdentity& identity, std::string_view query,
                                       size_t count);
  Result<StoreStats> stats();
  /// Chunks of which something is not as it was stored.
  Result<std::vector<ChunkRow>> verify();
  /// Copies live chunks out of segments of which less than min_live is live, drops chunks that
  /// cannot be read, and returns the bytes that became free.
  Result<uint64_t> collect(double min_live = 0.5);

  uint64_t damaged() const { return damaged_; }  // chunks that were dropped for it
  uint64_t evicted() const { return evicted_; }  // chunks that made room for others
  uint64_t fetched() const { return fetched_; }  // chunks that came from the shared store
  /// What went wrong with the shared store since this was last asked, which chunks were dropped and
  /// not added again, and whether the index was damaged, in one line; empty: nothing.
  std::string take_warning();

 private:
  ChunkStore(std::string folder, ChunkIndex index, const StoreLimits& limits)
      : folder_(std::move(folder)),
        spare_(folder_),
        segments_(folder_),
        index_(std::move(index)),
        limits_(limits) {}
  /// Makes a new or old index ready for use.
  Status prepare();
  /// An operation on the index, once more where that turned out damaged and could be made again.
  /// Not for one within the writer's lock.
  template <class Operation>
  std::invoke_result_t<Operation> mended(const Operation& operation) {
    auto result = operation();
    if (result || result.error().code != ErrorCode::kCorrupt) return result;
    if (const Status made = mend(); !made) {
      return fail(made.error().code, "{}; making the index again failed: {}",
                  result.error().message, made.error().message);
    }
    return operation();
  }
  /// One that a full disk is not to stop, since it adds nothing: mended(), once more with the spare
  /// room.
  template <class Operation>
  std::invoke_result_t<Operation> on_any_disk(const Operation& operation) {
    auto result = mended(operation);
    return result || !spare_.give() ? std::move(result) : mended(operation);
  }
  /// Makes a damaged index again, unless another process has by now.
  Status mend();
  /// Fills an index that another process left half made, and brings an old one up to date. Whoever
  /// writes does it first: a segment without rows is taken for dead. Within the writer's lock.
  Status complete_index();
  Result<std::optional<StoredChunk>> find_at(const ChunkRow& row);
  Result<std::optional<StoredChunk>> find_here(const ChunkIdentity& identity,
                                               const ChunkTokens& tokens);
  Result<bool> write(const EncodedRecord& encoded, const ChunkIdentity& identity,
                     const ChunkTokens& tokens);
  Result<bool> improves(const StoredChunk& chunk);
  /// kFileNotFound where there is no store.
  static Status check_folder(const std::string& folder);
  Status drop(const ChunkRow& row);
  void note_damage(const ChunkRow& row);
  Status fill_index();
  Result<uint64_t> collect_all(double min_live);
  Status make_room(uint64_t bytes);
  // Small beside the store's limit: a collection needs room for one segment more.
  uint64_t segment_limit() const { return std::min(limits_.segment_bytes, limits_.bytes / 8); }
  using Ids = std::set<int64_t>;
  Result<std::vector<uint32_t>> by_live_bytes(const Ids& evicted);
  Status collect_segment(uint32_t segment, double min_live, const Ids& evicted);
  Status copy_live(std::span<const ChunkRow> rows, std::vector<ChunkIndex::Move>& moves,
                   std::vector<ChunkRow>& gone);
  Status flush_use();

  std::string folder_;
  SpareRoom spare_;  // goes after the index, which needs it until it is closed
  Segments segments_;
  ChunkIndex index_;
  StoreLimits limits_;
  std::vector<int64_t> used_;  // found since the last flush_use()
  int64_t used_since_ = 0;     // the first of them, in seconds since 1970
  uint64_t damaged_ = 0, evicted_ = 0, fetched_ = 0;
  std::vector<ChunkRow> dropped_;  // damaged, since take_warning()
  bool mended_ = false;            // the index, since take_warning()
  std::optional<RemoteStore> remote_;
};

}  // namespace reprise
