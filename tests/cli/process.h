// Runs the built program as a user's shell would.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace reprise::test {

struct Launch {
  std::string input = {};                          ///< standard input
  std::map<std::string, std::string> env = {};     ///< beyond a clean environment
  bool close_input = false, close_output = false;  ///< start without these standard streams
  bool pending_interrupt = false;                  ///< Ctrl-C comes before the program's first step
  bool terminal = false;  ///< input, output and errors are a pseudo terminal's: all in out
  std::string program = REPRISE_BINARY;
};

struct Outcome {
  int code = -1;  ///< exit code, or -signal
  std::string out, err;
  nlohmann::json json() const { return nlohmann::json::parse(out); }
};

class Process {
 public:
  Process(const std::vector<std::string>& arguments, const Launch& launch);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  /// Waits until text comes in the stream, after what was waited for before; false when the stream
  /// ended or minutes passed without.
  bool wait_for_output(const std::string& text);
  bool wait_for_errors(const std::string& text);
  void interrupt();
  void signal(int number);
  /// Of an output that is a pipe: waits, reading nothing, until it can take no more.
  void wait_until_stuck();
  /// On a terminal: waits until every key goes to the program, which comes after its prompt.
  bool wait_for_reading();
  /// On a terminal: keys as their bytes.
  void type(const std::string& keys);
  void resize(uint16_t columns);
  /// As when the reader of a pipe goes away.
  void close_output();
  Outcome finish();

 private:
  bool pump(int timeout_ms);
  bool wait_for(const std::string& stream, size_t& seen, const std::string& text);

  pid_t pid_ = -1;
  int out_ = -1, err_ = -1;
  size_t out_seen_ = 0, err_seen_ = 0;  // what was waited for ends there
  Outcome outcome_;
};

Outcome run(const std::vector<std::string>& arguments, const Launch& launch = {});

/// The default model's file, if it was fetched: $REPRISE_MODEL or the cache.
std::optional<std::string> real_model();

/// A folder that is removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  std::string write(const std::string& name, const std::string& content) const;

 private:
  std::string path_;
};

}  // namespace reprise::test
