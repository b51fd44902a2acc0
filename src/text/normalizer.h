// Normalisation of text before it is cut into pieces.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/tokenizer_data.h"
#include "reprise/error.h"
#include "text/regex.h"

namespace reprise {

/// Where a text stands in the input.
struct TextPosition {
  bool at_start = true;       ///< it starts the input
  bool at_end = true;         ///< it ends the input
  bool after_special = true;  ///< it starts the input or follows a special token
  bool continues = false;     ///< it follows more of the same, so nothing is put before it
  bool continued = false;     ///< more of the same follows
};

class Normalizer {
 public:
  /// kUnsupportedTokenizer names a kind that is not known; kBadValue for a broken character map.
  static Result<Normalizer> create(const TokenizerData& data, bool sentencepiece);

  bool empty() const { return steps_.empty(); }
  /// text: valid UTF-8.
  std::string apply(std::string_view text, const TextPosition& position, RegexState& regex) const;

 private:
  using Step = std::function<std::string(std::string_view, const TextPosition&, RegexState&)>;

  std::vector<Step> steps_;
};

}  // namespace reprise
