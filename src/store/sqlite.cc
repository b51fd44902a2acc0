#include "store/sqlite.h"

#include <cerrno>
#include <system_error>
#include <utility>

#include "base/try.h"

namespace reprise {
namespace {

constexpr int kBusyMs = 60'000;
constexpr int kDamagedBusyMs = 2'000;  // whoever waits holds the writer's lock meanwhile

/// path: of a database that could not be opened, and so has none.
tl::unexpected<Error> sql_error(sqlite3* database, int code, const char* path = nullptr) {
  ErrorCode kind = ErrorCode::kFileUnreadable;
  switch (code & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      kind = ErrorCode::kCorrupt;
      break;
    case SQLITE_FULL:
    case SQLITE_READONLY:
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_IOERR:
      kind = ErrorCode::kFileUnwritable;
      break;
    case SQLITE_ERROR:  // so after whoever emptied it was killed
      if (std::string_view(sqlite3_errmsg(database)).starts_with("no such table")) {
        kind = ErrorCode::kCorrupt;
      }
      break;
    default:
      break;
  }
  if (path == nullptr && database != nullptr) path = sqlite3_db_filename(database, "main");
  const int primary = code & 0xff;
  const bool asked = database != nullptr && (primary == SQLITE_CANTOPEN || primary == SQLITE_IOERR);
  const int system = asked ? sqlite3_system_errno(database) : 0;
  // Who reads a chunk notes when, and waits for those who write.
  const bool refused = primary == SQLITE_READONLY || system == EACCES || system == EPERM;
  return fail(
      kind, "'{}': {}{}{}", path == nullptr ? "" : path,
      database == nullptr ? sqlite3_errstr(code) : sqlite3_errmsg(database),
      system != 0 ? fmt::format(" ({})", std::generic_category().message(system)) : "",
      refused ? "; a store is written even where it is only read: allow it, or copy it" : "");
}

}  // namespace

SqlStatement& SqlStatement::bind(int parameter, int64_t value) {
  sqlite3_bind_int64(statement_.get(), parameter, value);
  return *this;
}

SqlStatement& SqlStatement::bind(int parameter, std::string_view text) {
  sqlite3_bind_text64(statement_.get(), parameter, text.data(), text.size(), SQLITE_TRANSIENT,
                      SQLITE_UTF8);
  return *this;
}

SqlStatement& SqlStatement::bind(int parameter, std::span<const std::byte> bytes) {
  sqlite3_bind_blob64(statement_.get(), parameter, bytes.data(), bytes.size(), SQLITE_TRANSIENT);
  return *this;
}

Result<bool> SqlStatement::step() {
  const int code = sqlite3_step(statement_.get());
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  return sql_error(sqlite3_db_handle(statement_.get()), code);
}

Status SqlStatement::run() {
  REPRISE_TRY(const bool row, step());
  static_cast<void>(row);
  return {};
}

std::string SqlStatement::text(int column) const {
  const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement_.get(), column));
  return {text == nullptr ? "" : text,
          static_cast<size_t>(sqlite3_column_bytes(statement_.get(), column))};
}

std::span<const std::byte> SqlStatement::bytes(int column) const {
  const auto* data = static_cast<const std::byte*>(sqlite3_column_blob(statement_.get(), column));
  return {data, static_cast<size_t>(sqlite3_column_bytes(statement_.get(), column))};
}

Result<SqlDatabase> SqlDatabase::open(const std::string& path) {
  sqlite3* raw = nullptr;
  const int code =
      sqlite3_open_v2(path.c_str(), &raw, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr);
  SqlDatabase database(raw);
  if (code != SQLITE_OK) return sql_error(raw, code, path.c_str());
  sqlite3_busy_timeout(raw, kBusyMs);
  return database;
}

Result<SqlStatement> SqlDatabase::prepare(std::string_view sql) {
  sqlite3_stmt* statement = nullptr;
  const int code = sqlite3_prepare_v2(database_.get(), sql.data(), static_cast<int>(sql.size()),
                                      &statement, nullptr);
  if (code != SQLITE_OK) return sql_error(database_.get(), code);
  return SqlStatement(statement);
}

Status SqlDatabase::run(const char* sql) {
  const int code = sqlite3_exec(database_.get(), sql, nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) return sql_error(database_.get(), code);
  return {};
}

Result<fts5_api*> SqlDatabase::text_search() {
  fts5_api* api = nullptr;
  REPRISE_TRY(SqlStatement ask, prepare("SELECT fts5(?1)"));
  sqlite3_bind_pointer(ask.statement_.get(), 1, static_cast<void*>(&api), "fts5_api_ptr", nullptr);
  REPRISE_CHECK(ask.run());
  if (api == nullptr) return fail(ErrorCode::kUnsupported, "this SQLite was built without FTS5");
  return api;
}

Status SqlDatabase::reset() {
  // Reading it tells SQLite of the write-ahead log, with which nobody has to close it.
  const bool readable = run("SELECT 1 FROM sqlite_master").has_value();
  sqlite3_busy_timeout(database_.get(), readable ? kBusyMs : kDamagedBusyMs);
  sqlite3_db_config(database_.get(), SQLITE_DBCONFIG_RESET_DATABASE, 1, nullptr);
  const Status status = run("VACUUM");
  const bool busy = sqlite3_errcode(database_.get()) == SQLITE_BUSY;
  sqlite3_db_config(database_.get(), SQLITE_DBCONFIG_RESET_DATABASE, 0, nullptr);
  sqlite3_busy_timeout(database_.get(), kBusyMs);
  if (status || !busy) return status;
  return fail(status.error().code, "{}: another process has it open; try again when that has ended",
              status.error().message);
}

Result<SqlTransaction> SqlTransaction::begin(SqlDatabase& database) {
  REPRISE_CHECK(database.run("BEGIN IMMEDIATE"));
  return SqlTransaction(database);
}

SqlTransaction::~SqlTransaction() {
  if (database_ != nullptr) static_cast<void>(database_->run("ROLLBACK"));
}

Status SqlTransaction::commit() {
  REPRISE_CHECK(database_->run("COMMIT"));
  database_ = nullptr;
  return {};
}

}  // namespace reprise
