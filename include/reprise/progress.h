// How long work tells its caller how far it is, and is told to stop.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string_view>

namespace reprise {

struct Progress {
  std::string_view stage;  ///< e.g. "load", "prefill"
  uint64_t done = 0;
  uint64_t total = 0;
  std::string_view unit;  ///< "tokens", "bytes", "tensors"
};

/// Called from the calling thread, at least once per prefill chunk; returns false to stop, which
/// makes the work return kCancelled: files are as before, a session holds what was read of a
/// prompt.
using ProgressFn = std::function<bool(const Progress&)>;

}  // namespace reprise
