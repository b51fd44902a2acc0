// A disk whose reads fail, stop short or take long, for tests of what lies on one.
#pragma once

#include <vector>

namespace reprise {

/// While one lives, pread() and preadv() of this program are changed. Files that are read in pieces
/// must not be open for direct transfers; see hidden_file().
class ReadFault {
 public:
  /// kPieces: nothing fails, but calls are interrupted or read less than they were asked for.
  /// kSlow: nothing fails, but calls take 50 ms.
  enum Kind { kBroken, kEnds, kShortThenBroken, kPieces, kSlow };
  /// every: one of so many calls is changed.
  explicit ReadFault(Kind kind, int every = 1);
  ~ReadFault();
  ReadFault(const ReadFault&) = delete;
  ReadFault& operator=(const ReadFault&) = delete;
  /// Calls that were changed.
  int count() const;

  /// Those that no second call makes good.
  static std::vector<Kind> failures() { return {kBroken, kEnds, kShortThenBroken}; }
};

}  // namespace reprise
