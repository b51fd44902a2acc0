// Tokens that are found in text before the subword model sees it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "formats/tokenizer_data.h"
#include "text/byte_trie.h"
#include "text/function_ref.h"
#include "text/tokenizer.h"

namespace reprise {

/// True when [begin, end) overlaps one of the ranges, which are in order.
bool touches(std::span<const TextRange> ranges, size_t begin, size_t end);

class AddedTokens {
 public:
  /// texts: what is looked for, for each token (its own text, or that text normalised).
  AddedTokens(std::vector<AddedToken> tokens, const std::vector<std::string>& texts);

  bool empty() const { return trie_.empty(); }

  struct Filter {
    bool special = false;                  ///< special tokens are looked for too,
    std::span<const TextRange> literal{};  ///< but not where they touch one of these,
    size_t offset = 0;                     ///< which count from this far before the text
  };
  /// Cuts text into tokens (then part is what they cover) and what lies between (token is nullptr),
  /// left to right; the longest token wins.
  using Visit = FunctionRef<void(std::string_view part, const AddedToken* token)>;
  void split(std::string_view text, const Filter& filter, Visit visit) const;

 private:
  struct Match {
    const AddedToken* token = nullptr;
    size_t begin = 0, end = 0;
  };
  Match match_at(std::string_view text, size_t at, size_t done, const Filter& filter) const;
  bool allowed(std::string_view text, const Match& match, const Filter& filter) const;

  std::vector<AddedToken> tokens_;
  ByteTrie trie_;  // values index tokens_
};

}  // namespace reprise
