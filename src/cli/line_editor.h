// Lines typed by a person, with editing and history; or plain lines of a pipe.
#pragma once

#include <memory>
#include <string>

namespace reprise::cli {

class LineEditor {
 public:
  /// history_file: kept between runs of the program; only used on a terminal.
  explicit LineEditor(const std::string& history_file);
  ~LineEditor();

  enum class Event { kLine, kInterrupt, kEnd };
  /// Waits for a line (without its newline). kInterrupt: Ctrl-C was pressed instead; kEnd: Ctrl-D
  /// or the end of the pipe.
  Event read(std::string& line);
  bool interactive() const;

 private:
  struct Terminal;
  std::unique_ptr<Terminal> terminal_;  // none on a pipe
};

}  // namespace reprise::cli
