// Expansion of weights to bf16 tiles while others are multiplied.
#pragma once

#include <cstddef>

#include "kernels/packed_layout.h"

namespace reprise::kernels {

/// Parts of a tile that are expanded one at a time between steps of a product.
inline constexpr size_t kTileParts = 4;

/// Expands weights of 2 panels between the steps of other products, which leave the vector units
/// idle: as many parts of tiles at every step as it takes to be done at the last.
class ExpandAhead {
 public:
  struct Tiles {
    const PackedLayout* layout;
    const std::byte* panel;
    size_t step, end;
    std::byte* tile;  // of step
  };
  using ExpandPart = void (*)(const PackedLayout& layout, const std::byte* panel, size_t step,
                              size_t part, std::byte* tile);

  /// within: how many steps there will be.
  ExpandAhead(ExpandPart expand, size_t tile_bytes, const Tiles& first, const Tiles& second,
              size_t within)
      : expand_(expand),
        tile_bytes_(tile_bytes),
        now_(first),
        then_(second),
        parts_(kTileParts * (first.end - first.step + second.end - second.step)),
        within_(within) {}

  [[gnu::always_inline]] void step() {
    for (owed_ += parts_; owed_ >= within_; owed_ -= within_) advance();
  }

 private:
  [[gnu::always_inline]] void advance() {
    expand_(*now_.layout, now_.panel, now_.step, part_, now_.tile);
    if (++part_ < kTileParts) return;
    part_ = 0;
    now_.tile += tile_bytes_;
    if (++now_.step == now_.end) now_ = then_;
  }

  ExpandPart expand_;
  size_t tile_bytes_;
  Tiles now_, then_;
  size_t parts_, within_, owed_ = 0, part_ = 0;
};

}  // namespace reprise::kernels
