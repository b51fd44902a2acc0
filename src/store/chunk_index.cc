#include "store/chunk_index.h"

#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "base/try.h"
#include "store/text_score.h"

namespace reprise {
namespace {

// Commits of the write-ahead log are synced, so that a chunk that was added survives a power cut.
constexpr const char* kSchema = R"(
  PRAGMA journal_mode = WAL;
  PRAGMA synchronous = FULL;
  PRAGMA temp_store = MEMORY;
  CREATE TABLE IF NOT EXISTS chunks(
    id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, identity INTEGER NOT NULL,
    segment INTEGER NOT NULL, offset INTEGER NOT NULL, bytes INTEGER NOT NULL,
    tokens INTEGER NOT NULL, document TEXT NOT NULL, part INTEGER NOT NULL,
    used INTEGER NOT NULL);
  CREATE INDEX IF NOT EXISTS chunks_by_segment ON chunks(segment);
  CREATE INDEX IF NOT EXISTS chunks_by_use ON chunks(used, id);
  CREATE VIRTUAL TABLE IF NOT EXISTS texts USING fts5(text, tokenize = 'porter unicode61');
)";

constexpr std::string_view kColumns =
    "SELECT c.id, c.key, c.segment, c.offset, c.bytes, c.tokens, c.document, c.part, c.used";

std::span<const std::byte> key_bytes(const ChunkKey& key) {
  return std::as_bytes(std::span(&key, 1));
}

// FTS5's own tokenizer, without stems, cuts a query as it cuts texts. In memory.
constexpr const char* kQuerySchema = R"(
  CREATE VIRTUAL TABLE IF NOT EXISTS temp.query USING fts5(text, tokenize = 'unicode61');
  CREATE VIRTUAL TABLE IF NOT EXISTS temp.query_words USING fts5vocab(temp, query, row);
  DELETE FROM temp.query;
)";

// English words that most questions have, whatever they ask for: Lucene's, and words to ask with.
// Few texts cannot show that they say nothing.
constexpr std::string_view kCommonWords[] = {
    "a",    "an",    "and",  "are",  "as",   "at",    "be",   "but",   "by",    "can",
    "did",  "do",    "does", "for",  "from", "had",   "has",  "have",  "how",   "i",
    "if",   "in",    "into", "is",   "it",   "me",    "my",   "no",    "not",   "of",
    "on",   "or",    "such", "that", "the",  "their", "then", "there", "these", "they",
    "this", "to",    "was",  "we",   "were", "what",  "when", "where", "which", "who",
    "whom", "whose", "why",  "will", "with", "would", "you",  "your"};

// Bytes of the ideograph or kana that a text starts with; 0: something else. The bytes E3 to E9
// start U+3000 to U+9FFF, and F0 with A0 to BF behind it U+20000 to U+3FFFF.
size_t ideograph_bytes(std::string_view text) {
  const auto byte = [&](size_t at) { return static_cast<unsigned char>(text[at]); };
  if (byte(0) >= 0xe3 && byte(0) <= 0xe9) return 3;
  const bool wide = byte(0) == 0xf0 && text.size() > 1 && byte(1) >= 0xa0 && byte(1) <= 0xbf;
  return wide ? 4 : 0;
}

// Chinese and Japanese have no spaces, so that FTS5 would take a sentence for a word.
std::string spaced(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t bytes = ideograph_bytes(text);
    const std::string_view piece = text.substr(0, std::max<size_t>(1, bytes));
    if (bytes > 0) out += ' ';
    out += piece;
    if (bytes > 0) out += ' ';
    text.remove_prefix(piece.size());
  }
  return out;
}

}  // namespace

Result<ChunkIndex> ChunkIndex::open(const std::string& path) {
  // What SQLite makes beside it gets the same mode. Not opened here: to close it again would give
  // up the locks that this process has on it. Where this fails, SQLite says why.
  [[maybe_unused]] const int made = ::mknod(path.c_str(), S_IFREG | 0600, 0);
  REPRISE_TRY(SqlDatabase database, SqlDatabase::open(path));
  return ChunkIndex(std::move(database));
}

Status ChunkIndex::make_tables() { return database_.run(kSchema); }

Result<int64_t> ChunkIndex::version() {
  REPRISE_TRY(SqlStatement version, database_.prepare("PRAGMA user_version"));
  REPRISE_TRY(const bool row, version.step());
  return row ? version.integer(0) : 0;
}

Status ChunkIndex::set_filled() {
  return database_.run(fmt::format("PRAGMA user_version = {}", kVersion).c_str());
}

Status ChunkIndex::check() {
  REPRISE_TRY(SqlStatement check, database_.prepare("PRAGMA quick_check(1)"));
  REPRISE_TRY(const bool row, check.step());
  if (row && check.text(0) != "ok") {
    return fail(ErrorCode::kCorrupt, "the index of chunks is damaged: {}", check.text(0));
  }
  check.reset();  // SQLite waits for no other writer while a statement still reads
  REPRISE_TRY(const int64_t filled, version());
  if (filled == 0) return {};  // there may be no tables yet
  return database_.run("INSERT INTO texts(texts) VALUES('integrity-check')");
}

Status ChunkIndex::reset() {
  find_.reset();  // a statement may not be open meanwhile
  return database_.reset();
}

Status ChunkIndex::update_texts() {
  REPRISE_TRY(auto transaction, SqlTransaction::begin(database_));
  REPRISE_TRY(const auto chunks, all());
  REPRISE_TRY(auto old, database_.prepare("SELECT text FROM texts WHERE rowid = ?1"));
  REPRISE_TRY(auto update, database_.prepare("UPDATE texts SET text = ?2 WHERE rowid = ?1"));
  for (const ChunkRow& row : chunks) {
    REPRISE_TRY(const bool there, old.bind(1, row.id).step());
    const std::string text = there ? old.text(0) : "", cut = spaced(text);
    old.reset();
    if (cut == text) continue;
    REPRISE_CHECK(update.bind(1, row.id).bind(2, cut).run());
    update.reset();
  }
  REPRISE_CHECK(set_filled());
  return transaction.commit();
}

Result<std::vector<ChunkRow>> ChunkIndex::rows(SqlStatement& statement) {
  std::vector<ChunkRow> rows;
  while (true) {
    REPRISE_TRY(const bool more, statement.step());
    if (!more) return rows;
    ChunkRow& row = rows.emplace_back();
    row.id = statement.integer(0);
    const auto key = statement.bytes(1);
    std::memcpy(&row.key, key.data(), std::min(key.size(), sizeof row.key));
    row.place.segment = static_cast<uint32_t>(statement.integer(2));
    row.place.offset = static_cast<uint64_t>(statement.integer(3));
    row.place.bytes = static_cast<uint64_t>(statement.integer(4));
    row.tokens = static_cast<uint32_t>(statement.integer(5));
    row.document = statement.text(6);
    row.part = static_cast<uint32_t>(statement.integer(7));
    row.used = statement.integer(8);
    row.score = statement.real(9);
  }
}

Result<std::optional<ChunkRow>> ChunkIndex::find(const ChunkKey& key) {
  if (!find_) {
    REPRISE_TRY(find_,
                database_.prepare(fmt::format("{} FROM chunks c WHERE c.key = ?1", kColumns)));
  }
  auto found = rows(find_->bind(1, key_bytes(key)));
  find_->reset();
  if (!found) return tl::unexpected<Error>(found.error());
  if (found->empty()) return std::nullopt;
  return std::move(found->front());
}

Status ChunkIndex::erase_key(const ChunkKey& key) {
  for (const char* sql : {"DELETE FROM texts WHERE rowid IN (SELECT id FROM chunks WHERE key = ?1)",
                          "DELETE FROM chunks WHERE key = ?1"}) {
    REPRISE_TRY(auto statement, database_.prepare(sql));
    REPRISE_CHECK(statement.bind(1, key_bytes(key)).run());
  }
  return {};
}

Status ChunkIndex::insert(const ChunkRecord& record, const RecordPlace& place, int64_t now) {
  REPRISE_TRY(auto transaction, SqlTransaction::begin(database_));
  REPRISE_TRY(auto chunk, database_.prepare("INSERT INTO chunks(key, identity, segment, offset, "
                                            "bytes, tokens, document, part, used) "
                                            "VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)"));
  const ChunkKey key = record.key();
  REPRISE_CHECK(erase_key(key));
  chunk.bind(1, key_bytes(key)).bind(2, static_cast<int64_t>(record.identity().hash()));
  chunk.bind(3, int64_t{place.segment}).bind(4, static_cast<int64_t>(place.offset));
  chunk.bind(5, static_cast<int64_t>(place.bytes)).bind(6, int64_t{record.header.tokens});
  chunk.bind(7, record.source.document).bind(8, int64_t{record.source.part}).bind(9, now);
  REPRISE_CHECK(chunk.run());
  REPRISE_TRY(auto text, database_.prepare("INSERT INTO texts(rowid, text) VALUES(?1, ?2)"));
  text.bind(1, database_.last_row()).bind(2, spaced(record.source.text));
  REPRISE_CHECK(text.run());
  return transaction.commit();
}

// there: only where it still lies where the row says.
Status ChunkIndex::erase_row(const ChunkRow& row, bool there) {
  REPRISE_TRY(auto chunk, database_.prepare("DELETE FROM chunks WHERE id = ?1 AND key = ?2 AND "
                                            "(?3 = 0 OR (segment = ?4 AND offset = ?5))"));
  chunk.bind(1, row.id).bind(2, key_bytes(row.key)).bind(3, int64_t{there});
  chunk.bind(4, int64_t{row.place.segment}).bind(5, static_cast<int64_t>(row.place.offset));
  REPRISE_CHECK(chunk.run());
  if (database_.changes() == 0) return {};
  REPRISE_TRY(auto text, database_.prepare("DELETE FROM texts WHERE rowid = ?1"));
  return text.bind(1, row.id).run();
}

Status ChunkIndex::erase(std::span<const ChunkRow> rows) {
  REPRISE_TRY(auto transaction, SqlTransaction::begin(database_));
  for (const ChunkRow& row : rows) REPRISE_CHECK(erase_row(row, false));
  return transaction.commit();
}

Status ChunkIndex::erase_there(const ChunkRow& row) { return move({}, {&row, 1}); }

Status ChunkIndex::move(std::span<const Move> moves, std::span<const ChunkRow> erased) {
  REPRISE_TRY(auto transaction, SqlTransaction::begin(database_));
  for (const auto& [row, to] : moves) {
    REPRISE_TRY(auto statement, database_.prepare("UPDATE chunks SET segment = ?1, offset = ?2 "
                                                  "WHERE id = ?3 AND segment = ?4"));
    statement.bind(1, int64_t{to.segment}).bind(2, static_cast<int64_t>(to.offset));
    REPRISE_CHECK(statement.bind(3, row.id).bind(4, int64_t{row.place.segment}).run());
  }
  for (const ChunkRow& row : erased) REPRISE_CHECK(erase_row(row, true));
  return transaction.commit();
}

Status ChunkIndex::touch(std::span<const int64_t> ids, int64_t now) {
  REPRISE_TRY(auto transaction, SqlTransaction::begin(database_));
  for (const int64_t id : ids) {
    REPRISE_TRY(auto statement, database_.prepare("UPDATE chunks SET used = ?1 WHERE id = ?2"));
    REPRISE_CHECK(statement.bind(1, now).bind(2, id).run());
  }
  return transaction.commit();
}

Result<std::vector<ChunkRow>> ChunkIndex::all() {
  REPRISE_TRY(auto statement, database_.prepare(fmt::format(
                                  "{} FROM chunks c ORDER BY c.document, c.part, c.id", kColumns)));
  return rows(statement);
}

Result<std::vector<ChunkRow>> ChunkIndex::in_segment(uint32_t segment) {
  REPRISE_TRY(auto statement,
              database_.prepare(fmt::format(
                  "{} FROM chunks c WHERE c.segment = ?1 ORDER BY c.offset", kColumns)));
  statement.bind(1, int64_t{segment});
  return rows(statement);
}

Result<std::vector<ChunkRow>> ChunkIndex::oldest(uint64_t bytes) {
  REPRISE_TRY(auto statement,
              database_.prepare(fmt::format("{} FROM chunks c ORDER BY c.used, c.id", kColumns)));
  REPRISE_TRY(auto found, rows(statement));
  uint64_t sum = 0;
  size_t count = 0;
  while (count < found.size() && sum < bytes) sum += found[count++].place.bytes;
  found.resize(count);
  return found;
}

Result<uint64_t> ChunkIndex::total_bytes() {
  REPRISE_TRY(auto statement, database_.prepare("SELECT total(bytes) FROM chunks"));
  REPRISE_TRY(const bool row, statement.step());
  return row ? static_cast<uint64_t>(statement.real(0)) : 0;
}

Result<std::vector<std::string>> ChunkIndex::words_of(std::string_view query) {
  REPRISE_CHECK(database_.run(kQuerySchema));
  REPRISE_TRY(auto insert, database_.prepare("INSERT INTO temp.query VALUES(?1)"));
  REPRISE_CHECK(insert.bind(1, spaced(query)).run());
  REPRISE_TRY(auto select, database_.prepare("SELECT term FROM temp.query_words"));
  std::vector<std::string> words;
  while (true) {
    REPRISE_TRY(const bool more, select.step());
    if (!more) return words;
    words.push_back(select.text(0));
  }
}

Result<std::vector<ChunkRow>> ChunkIndex::search(uint64_t identity, std::string_view query,
                                                 size_t count) {
  REPRISE_TRY(auto words, words_of(query));
  const auto is_common = [](const std::string& word) {
    return std::ranges::count(kCommonWords, word) > 0;
  };
  if (!std::ranges::all_of(words, is_common)) std::erase_if(words, is_common);
  if (words.empty()) return std::vector<ChunkRow>();
  if (!scores_) REPRISE_CHECK(add_text_score(database_));
  scores_ = true;
  REPRISE_TRY(auto statement,
              database_.prepare(fmt::format("{}, text_score(texts) FROM texts JOIN chunks c ON "
                                            "c.id = texts.rowid WHERE texts MATCH ?1 AND "
                                            "c.identity = ?2 ORDER BY text_score(texts) DESC, c.id "
                                            "LIMIT ?3",
                                            kColumns)));
  // Quoted, so that none is an operator of FTS5's language.
  statement.bind(1, fmt::format("\"{}\"", fmt::join(words, "\" OR \"")));
  statement.bind(2, static_cast<int64_t>(identity));
  statement.bind(3, static_cast<int64_t>(count));
  return rows(statement);
}

}  // namespace reprise
