// What a policy keeps of a sequence beside its KV, foretold for sequences that there are not yet.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "model/config.h"
#include "reprise/error.h"
#include "reprise/progress.h"

namespace reprise {

class PolicyMemory {
 public:
  /// The part of a model that is measured with, which files for the model fit: its name, and that
  /// it has no vocabulary, which no file's model can say.
  static constexpr std::string_view kPartName = "part of a model";
  static bool is_part(const ModelConfig& config) {
    return config.name == kPartName && config.vocab == 0;
  }

  /// Reads noise with a few layers of one of the model's KV heads, of 2K to 8K tokens, in seconds;
  /// state is taken to grow evenly with layers, KV heads and, between these lengths and beyond
  /// them, tokens. policy: as of create_policy(), whose errors are returned; kUnsupported for
  /// options that name layers or heads beyond those, or leave all of those layers alone;
  /// kCancelled.
  static Result<PolicyMemory> measure(std::string_view policy, const ModelConfig& config,
                                      ThreadPool& pool, const ProgressFn& progress = {});

  /// About what Policy::state_bytes() is, on a CPU, for a sequence of so many tokens.
  uint64_t bytes(uint64_t tokens) const;

 private:
  struct Point {
    double tokens, bytes;
  };
  explicit PolicyMemory(std::vector<Point> points) : points_(std::move(points)) {}

  std::vector<Point> points_;  // ascending, at least two
};

}  // namespace reprise
