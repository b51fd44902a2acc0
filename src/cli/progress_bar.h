// Shows on stderr how far a piece of work is.
#pragma once

#include <chrono>
#include <string>

#include "reprise/progress.h"

namespace reprise::cli {

/// On a terminal a bar that is redrawn and wiped at the end; elsewhere a line now and then for work
/// that takes over a second; nothing when silent.
class ProgressBar {
 public:
  explicit ProgressBar(bool silent);
  ~ProgressBar() { finish(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void update(const Progress& progress);
  /// Ends the current stage.
  void finish();
  /// Where the work stands, e.g. "reading the prompt: 2,048 of 7,012 tokens"; empty before any.
  std::string state() const;

 private:
  using Clock = std::chrono::steady_clock;

  void start(const Progress& progress);
  std::string line() const;
  void draw() const;

  enum class Mode { kSilent, kTerminal, kLines };
  Mode mode_;
  std::string stage_, unit_;
  uint64_t first_ = 0, done_ = 0, total_ = 0;
  Clock::time_point started_, shown_;
  bool active_ = false, printed_ = false;
};

}  // namespace reprise::cli
