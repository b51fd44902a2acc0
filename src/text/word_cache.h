// Remembers where in the output of one encode() call the tokens of a word already stand.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace reprise {

/// A direct-mapped table: bounded, and a collision only costs the work again.
class WordCache {
 public:
  /// Sized for a text of this many bytes.
  explicit WordCache(size_t text_bytes);

  struct Entry {
    std::string_view word;  ///< must stay valid as long as the cache
    size_t first = 0;       ///< of the word's ids in the output
    uint32_t count = 0;
  };
  /// The place of a word; nullptr for words that are not cached.
  Entry* place(std::string_view word);

 private:
  std::vector<Entry> entries_;
};

}  // namespace reprise
