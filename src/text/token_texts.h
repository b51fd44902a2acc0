// What each token stands for in decoded text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/tokenizer_data.h"
#include "reprise/error.h"

namespace reprise {

class TokenTexts {
 public:
  /// kUnsupportedTokenizer names a decoder that is not known.
  static Result<TokenTexts> create(const TokenizerData& data, bool byte_level, bool sentencepiece);

  /// Empty for ids outside the vocabulary.
  std::string_view of(int32_t token) const;
  /// True when decoding takes away the space that encoding put before the text.
  bool drops_first_space() const { return drops_first_space_; }

 private:
  std::string bytes_;
  std::vector<uint64_t> ends_;  // [vocab] into bytes_
  bool drops_first_space_ = false;
};

}  // namespace reprise
