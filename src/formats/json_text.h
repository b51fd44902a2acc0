// JSON from outside: depth, UTF-8 and, where asked, repeated keys are checked before a tree is
// built.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "reprise/error.h"

namespace reprise {

struct JsonLimits {
  int max_depth = 128;
  bool unique_keys = false;  ///< kDuplicateKey when an object repeats a key
};

/// kBadJson names the byte; kTooDeep; kDuplicateKey.
Result<nlohmann::json> parse_json(std::string_view text, std::string_view name,
                                  const JsonLimits& limits);

}  // namespace reprise
