#include "text/word_cache.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>

namespace reprise {
namespace {

constexpr size_t kMaxEntries = size_t{1} << 15;
constexpr size_t kBytesPerEntry = 16;
constexpr size_t kMaxWord = 64;  // bytes; longer words seldom come back

}  // namespace

WordCache::WordCache(size_t text_bytes)
    : entries_(std::bit_ceil(std::clamp(text_bytes / kBytesPerEntry, size_t{1}, kMaxEntries))) {}

WordCache::Entry* WordCache::place(std::string_view word) {
  if (word.size() > kMaxWord) return nullptr;
  return &entries_[XXH3_64bits(word.data(), word.size()) & (entries_.size() - 1)];
}

}  // namespace reprise
