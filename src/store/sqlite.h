// SQLite with errors as values.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "reprise/error.h"

namespace reprise {

/// One prepared statement; parameters count from 1, columns from 0.
class SqlStatement {
 public:
  SqlStatement& bind(int parameter, int64_t value);
  SqlStatement& bind(int parameter, std::string_view text);
  SqlStatement& bind(int parameter, std::span<const std::byte> bytes);

  /// True while there is a row. Errors: those of SqlDatabase.
  Result<bool> step();
  /// For statements without rows.
  Status run();
  /// Ends it, so that it can be bound and stepped again.
  void reset() { sqlite3_reset(statement_.get()); }

  int64_t integer(int column) const { return sqlite3_column_int64(statement_.get(), column); }
  double real(int column) const { return sqlite3_column_double(statement_.get(), column); }
  std::string text(int column) const;
  std::span<const std::byte> bytes(int column) const;

 private:
  friend class SqlDatabase;
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };
  explicit SqlStatement(sqlite3_stmt* statement) : statement_(statement) {}

  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
};

/// Errors: kCorrupt when the file is no database, damaged or lacks a table, kFileUnwritable when it
/// cannot be written (disk full, read-only, locked by others too long), kFileUnreadable otherwise.
class SqlDatabase {
 public:
  static Result<SqlDatabase> open(const std::string& path);

  Result<SqlStatement> prepare(std::string_view sql);
  Status run(const char* sql);
  /// What FTS5 can be extended by.
  Result<fts5_api*> text_search();
  /// Empties it, however damaged it is; to other connections that is a change like any.
  Status reset();
  int64_t last_row() const { return sqlite3_last_insert_rowid(database_.get()); }
  int changes() const { return sqlite3_changes(database_.get()); }

 private:
  struct Close {
    void operator()(sqlite3* database) const { sqlite3_close(database); }
  };
  explicit SqlDatabase(sqlite3* database) : database_(database) {}

  std::unique_ptr<sqlite3, Close> database_;
};

/// Rolled back unless committed.
class SqlTransaction {
 public:
  static Result<SqlTransaction> begin(SqlDatabase& database);
  SqlTransaction(SqlTransaction&& other) noexcept : database_(std::exchange(other.database_, {})) {}
  SqlTransaction& operator=(SqlTransaction&&) = delete;
  ~SqlTransaction();
  Status commit();

 private:
  explicit SqlTransaction(SqlDatabase& database) : database_(&database) {}

  SqlDatabase* database_;
};

}  // namespace reprise
