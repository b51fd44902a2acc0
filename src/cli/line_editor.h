// Lines typed by a person, with editing and history; or plain lines of a pipe.
#pragma once

#include <memory>
#include <string>

#include "cli/input.h"

namespace reprise::cli {

class LineEditor {
 public:
  /// history_file: kept between runs of the program; only used on a terminal.
  explicit LineEditor(const std::string& history_file);
  ~LineEditor();

  enum class Event { kLine, kInterrupt, kEnd, kFailed };
  /// Waits for a line (without its newline). kInterrupt: Ctrl-C was pressed instead; kEnd: Ctrl-D
  /// or the end of the pipe; kFailed: it cannot be read, errno says why.
  Event read(std::string& line);
  bool interactive() const;
  /// Of what was typed so far; no error where it cannot be written.
  void keep_history() const;
  /// Gives the terminal back and keeps the history. Nothing is read from then on.
  void finish();

 private:
  struct Terminal;
  Event read_pipe(std::string& line);

  Input input_ = Input::standard();
  std::string ahead_;                   // read from the pipe, after the last line
  std::unique_ptr<Terminal> terminal_;  // none on a pipe
};

}  // namespace reprise::cli
