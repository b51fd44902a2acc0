// Where every chunk of a store lies: a SQLite database, which can be made again from the segments.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/chunk_format.h"
#include "store/sqlite.h"

namespace reprise {

/// Where a record lies.
struct RecordPlace {
  uint32_t segment = 0;
  uint64_t offset = 0, bytes = 0;
  bool operator==(const RecordPlace&) const = default;
};

struct ChunkRow {
  int64_t id = 0;
  ChunkKey key;
  RecordPlace place;
  uint32_t tokens = 0, part = 0;
  std::string document;
  int64_t used = 0;  // seconds since 1970
  double score = 0;  // of a search: higher is better
};

class ChunkIndex {
 public:
  /// A new one can be read by its owner alone. Errors: as SqlDatabase.
  static Result<ChunkIndex> open(const std::string& path);
  /// Makes tables where there are none; in a fresh index only under the writer's lock.
  Status make_tables();

  /// 0: a rebuild has to fill it first; below kVersion: update_texts() has to be called.
  Result<int64_t> version();
  static constexpr int64_t kVersion = 2;
  Status set_filled();
  /// Cuts texts as search() needs them, in an index that an earlier version filled. Under the
  /// writer's lock.
  Status update_texts();

  /// kCorrupt where anything of it is damaged as a database.
  Status check();
  /// Empties it, however damaged it is: make_tables() and filling it follow. Under the writer's
  /// lock.
  Status reset();

  Result<std::optional<ChunkRow>> find(const ChunkKey& key);
  /// In the place of the row of this key, if there is one.
  Status insert(const ChunkRecord& record, const RecordPlace& place, int64_t now);
  /// Rows of chunks, wherever they lie by now; an id alone may be another chunk's.
  Status erase(std::span<const ChunkRow> rows);
  /// Only where it still lies where the caller saw it.
  Status erase_there(const ChunkRow& row);
  using Move = std::pair<ChunkRow, RecordPlace>;
  /// Points rows to where their records are now, and erases others, or neither. Only rows that
  /// still lie where the caller saw them.
  Status move(std::span<const Move> moves, std::span<const ChunkRow> erased);
  Status touch(std::span<const int64_t> ids, int64_t now);

  /// By document and part.
  Result<std::vector<ChunkRow>> all();
  Result<std::vector<ChunkRow>> in_segment(uint32_t segment);
  /// Least recently used first, until their bytes add up to so many.
  Result<std::vector<ChunkRow>> oldest(uint64_t bytes);
  Result<uint64_t> total_bytes();
  /// Chunks of one identity whose text has any word of the query, best BM25 first. Each ideograph
  /// and kana is a word. Common English words count where the query has no others.
  Result<std::vector<ChunkRow>> search(uint64_t identity, std::string_view query, size_t count);

 private:
  explicit ChunkIndex(SqlDatabase database) : database_(std::move(database)) {}
  Result<std::vector<ChunkRow>> rows(SqlStatement& statement);
  Result<std::vector<std::string>> words_of(std::string_view query);
  Status erase_key(const ChunkKey& key);
  Status erase_row(const ChunkRow& row, bool there);

  SqlDatabase database_;
  std::optional<SqlStatement> find_;  // parsing it takes as long as the search
  bool scores_ = false;               // the connection has text_score()
};

}  // namespace reprise
