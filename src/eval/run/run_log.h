// The run file while it is written: what is in it already, and what is added.
#pragma once

#include <cstdio>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>

#include "eval/records.h"

namespace reprise::eval {

class RunLog {
 public:
  /// Declares the runs in a new file. With resume, goes on with an existing one: runs that it has
  /// are continued, others are appended, and what a crash left half-written at its end is cut off.
  /// Errors: kInvalidArgument when the file exists and resume was not asked for, or when it holds a
  /// run of one of these policies that differs from it in anything but time; those of
  /// read_run_file; kFileUnwritable.
  static Result<RunLog> open(const std::string& path, std::span<const RunRecord> runs, bool resume);

  /// Whether a sample was done: it is there and did not fail.
  bool has(const std::string& run, const std::string& task, const std::string& id) const {
    return done_.contains({run, task, id});
  }
  /// Appends lines and hands them to the system at once.
  Status write(std::string_view lines);
  const std::string& path() const { return path_; }

 private:
  Status load(std::span<const RunRecord> runs, std::set<std::string>& declared);

  std::string path_;
  std::set<std::tuple<std::string, std::string, std::string>> done_;  // run, task, id
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_{nullptr, std::fclose};
};

}  // namespace reprise::eval
