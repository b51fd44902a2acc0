// What one rendering may spend: evaluated nodes and live bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reprise/error.h"

namespace reprise::jinja {

/// Steps only go down; bytes go down and up again as values are made and dropped.
class Budget {
 public:
  Budget(uint64_t steps, size_t bytes) : steps_(steps), bytes_(bytes) {}
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  /// Pays for work. Errors: kTemplateLimit.
  Status spend(uint64_t steps) {
    if (steps > steps_) {
      steps_ = 0;
      return fail(ErrorCode::kTemplateLimit, "the template takes too many steps");
    }
    steps_ -= steps;
    return {};
  }
  /// Takes memory that release() gives back. Errors: kTemplateLimit.
  Status reserve(size_t bytes) {
    if (bytes > bytes_) return fail(ErrorCode::kTemplateLimit, "the template builds too much text");
    bytes_ -= bytes;
    return {};
  }
  void release(size_t bytes) { bytes_ += bytes; }
  size_t bytes_left() const { return bytes_; }

 private:
  uint64_t steps_;
  size_t bytes_;
};

}  // namespace reprise::jinja
