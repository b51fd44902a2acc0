// From which token on a policy has a part in an answer.
#pragma once

#include <cstdint>
#include <string_view>

#include "reprise/error.h"

namespace reprise::eval {

struct Scope {
  bool generates = true;  // false (teacher): only the likelihood of the gold answer is measured
  uint32_t tail = 0;      // last prompt tokens that are decoded one by one, as the answer is

  /// "decode", "teacher", "tail:N" or "teacher:N"; kInvalidArgument.
  static Result<Scope> parse(std::string_view text);
};

}  // namespace reprise::eval
