// A disk whose writes fail or stop short, for tests of what lies on one.
#pragma once

#include <vector>

namespace reprise {

/// While one lives, pwrite() of this program fails. Files that are written in pieces must not be
/// open for direct transfers; see hidden_file().
class WriteFault {
 public:
  /// kPieces: nothing fails, but calls are interrupted or write less than they were given.
  enum Kind { kFull, kBroken, kNothingWritten, kShortThenFull, kPieces };
  /// after: calls that still succeed.
  explicit WriteFault(Kind kind, int after = 0);
  ~WriteFault();
  WriteFault(const WriteFault&) = delete;
  WriteFault& operator=(const WriteFault&) = delete;
  /// Calls that did not do what they should.
  int count() const;

  /// Those that no second call makes good.
  static std::vector<Kind> failures() { return {kFull, kBroken, kNothingWritten, kShortThenFull}; }
  /// What the system calls it.
  static const char* message(Kind kind);
};

}  // namespace reprise
