// SentencePiece's precompiled character map: a double-array trie of source strings and a blob of
// their replacements.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reprise/error.h"

namespace reprise {

class CharacterMap {
 public:
  /// kBadValue when the sizes in it do not fit.
  static Result<CharacterMap> parse(std::string_view bytes);
  /// Replaces, left to right, the longest source string that matches. text: valid UTF-8.
  std::string apply(std::string_view text) const;

 private:
  struct Match {
    size_t bytes = 0;  // 0: nothing matches
    uint32_t value = 0;
  };
  Match longest(std::string_view text) const;
  std::optional<std::string_view> replacement(uint32_t begin) const;

  std::vector<uint32_t> units_;
  std::string replacements_;  // each ends with NUL
};

}  // namespace reprise
