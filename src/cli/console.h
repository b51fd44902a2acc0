// Where a command's results, messages and progress go, and which exit code they lead to.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "cli/progress_bar.h"
#include "reprise/error.h"
#include "reprise/progress.h"

namespace reprise::cli {

class Console {
 public:
  Console(bool json, bool quiet);

  bool json() const { return json_; }

  /// Results go to stdout at once. kCancelled when its reader is gone: the command should end.
  Status print(std::string_view text);
  Status print_json(const nlohmann::ordered_json& value);
  /// A remark on stderr; silent with --quiet.
  void note(std::string_view text);
  /// What was asked for beside results, on stderr also with --quiet.
  void tell(std::string_view text);
  /// Something the user must know, also with --quiet.
  void warn(std::string_view text);

  /// Shows progress and stops the work on Ctrl-C. Valid as long as the Console.
  ProgressFn progress();
  /// Wipes the bar before other output.
  void end_progress() { bar_.finish(); }
  /// Some of the work failed, the rest was done: says so and exits with 1.
  void partly_failed(std::string_view text);
  /// Carries out a stop by Ctrl-C; the program will exit with 130 unless chat goes on.
  void stopped();
  /// Work without stages of its own came that far: kCancelled where it was interrupted on the way.
  Status reached(const Progress& progress);
  /// Where work stands, or stood when it ended.
  std::string state() const { return bar_.state(); }

  /// {"code", "message"}, as finish() prints them.
  nlohmann::ordered_json error_json(const Error& error) const;
  /// Reports how the command ended and returns the exit code. With --json an error is an object on
  /// stdout unless the command has printed one.
  int finish(const Status& status);

 private:
  std::string message_of(const Error& error) const;
  int report(const Error& error);

  bool json_, quiet_;
  bool reader_gone_ = false, printed_json_ = false;
  std::string stopped_at_;  // where work stood then
  int exit_code_ = 0;
  ProgressBar bar_;
};

}  // namespace reprise::cli
