// What a device keeps of a sequence in place of a Gate or an Agreement.
#pragma once

#include <cstdint>
#include <string>

#include "reprise/error.h"

namespace reprise {

/// Copies of the sequence share it until one of them goes on.
class WatchOnDevice {
 public:
  /// Layers of rows that chose for themselves, and those in which they looked far.
  struct Counts {
    uint64_t rows = 0, open = 0;
  };
  virtual ~WatchOnDevice() = default;
  /// What the host's form saves, of rows before length.
  virtual Result<std::string> save(int32_t length) const = 0;
  virtual Counts counts() const = 0;
  virtual void clear_counts() = 0;
  virtual uint64_t bytes() const = 0;
};

}  // namespace reprise
