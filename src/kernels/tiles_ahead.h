// Tiles of pages that are brought closer while those before them are multiplied.
#pragma once

#include "kernels/attention.h"

namespace reprise::kernels {
namespace {  // each instruction set compiles its own

/// The K and V tiles of up to kPages pages, line by line in the order in which they lie in memory.
/// Fetched in the order in which they are multiplied, several tiles at once, they come at little
/// more than half the speed of a stream that the memory follows. kLocality: 3 brings them into the
/// first cache, 2 into the second.
template <size_t kPages, int kLocality>
class TilesAhead {
 public:
  TilesAhead(const AttendArgs& args, size_t first) : tile_bytes_(args.layout->tile_bytes()) {
    for (size_t p = 0; p < kPages && first + p < args.pages.size(); ++p) {
      const PageSpan& page = args.pages.data()[first + p];
      tiles_[count_++] = page.k;
      tiles_[count_++] = page.v;
    }
  }
  size_t lines() const { return count_ * tile_bytes_ / kLine; }

  /// Up to kLines lines more, and some past a tile's end that kLines does not divide.
  template <size_t kLines>
  void fetch() {
    if (tile_ == count_) return;
    const std::byte* from = tiles_[tile_] + offset_;
    for (size_t line = 0; line < kLines; ++line) {
      __builtin_prefetch(from + line * kLine, 0, kLocality);
    }
    offset_ += kLines * kLine;
    if (offset_ < tile_bytes_) return;
    offset_ = 0;
    ++tile_;
  }

 private:
  static constexpr size_t kLine = 64;
  const std::byte* tiles_[2 * kPages];
  size_t tile_bytes_, count_ = 0, tile_ = 0, offset_ = 0;
};

}  // namespace
}  // namespace reprise::kernels
