// Tiles of pages that are brought closer while those before them are multiplied.
#pragma once

#include "kernels/attention.h"

namespace reprise::kernels {
namespace {  // each instruction set compiles its own

constexpr size_t kLine = 64;

/// The K and V tiles of up to kPages pages, line by line in the order in which they lie in memory.
/// Fetched in the order in which they are multiplied, several tiles at once, they come slower than
/// a stream that the memory follows.
template <size_t kPages>
class TilesAhead {
 public:
  /// Page first of the list, or of those that are read next, and so on; none past their end.
  TilesAhead(const AttendArgs& args, size_t first)
      : last_(args.pages.data()->k), tile_bytes_(args.layout->tile_bytes()) {
    for (size_t p = first; p < first + kPages && p < args.pages.size() + args.next.size(); ++p) {
      const bool own = p < args.pages.size();
      const PageSpan& page = own ? args.pages.data()[p] : args.next.data()[p - args.pages.size()];
      tiles_[count_++] = page.k;
      tiles_[count_++] = page.v;
    }
  }
  size_t lines() const { return count_ * tile_bytes_ / kLine; }

  /// The next lines, whose place is asked for once for many fetches; some past a tile's end that
  /// their number does not divide. A tile that is there already when all were taken.
  const std::byte* take(size_t lines) {
    if (done()) return last_;
    const std::byte* from = tiles_[tile_] + offset_;
    offset_ += lines * kLine;
    if (offset_ >= tile_bytes_) {
      offset_ = 0;
      last_ = tiles_[tile_++];
    }
    return from;
  }
  bool done() const { return tile_ == count_; }

 private:
  const std::byte* tiles_[2 * kPages];
  const std::byte* last_;
  size_t tile_bytes_, count_ = 0, tile_ = 0, offset_ = 0;
};

/// kLocality: 3 brings lines into the first cache, 2 into the second.
template <size_t kLines, int kLocality>
[[gnu::always_inline]] inline void fetch_lines(const std::byte* from) {
  for (size_t line = 0; line < kLines; ++line) {
    __builtin_prefetch(from + line * kLine, 0, kLocality);
  }
}

}  // namespace
}  // namespace reprise::kernels
