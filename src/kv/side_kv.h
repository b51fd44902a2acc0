// Tokens copied out of a sequence: so that its own pages can be freed, or so that those that are
// read lie close together.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kv/sequence_kv.h"

namespace reprise {

/// Per layer and KV head, tokens in compact pages of the sequence's pool; slot i is token i of
/// pages(), where every head has a token of its own. Copies share pages until one writes to them.
class SideKv {
 public:
  /// capacity: slots of every layer and head. one_layer: there is one for all layers, the first of
  /// pages(), and it holds tokens of the layer that was copied last.
  explicit SideKv(size_t capacity, bool one_layer = false)
      : capacity_(capacity), one_layer_(one_layer) {}

  /// Makes slots of a layer writable for all heads; false, and nothing is changed, when there is
  /// not enough KV memory. Slots are below the capacity.
  bool own(PagePool& pool, uint32_t layer, std::span<const int32_t> slots);
  /// The same for all slots.
  bool own_all(PagePool& pool, uint32_t layer);
  /// Copies a token of one head into an own slot: from a sequence, or from another slot.
  void copy(uint32_t layer, size_t head, const SequenceKv& from, int32_t token, int32_t slot);
  void move(uint32_t layer, size_t head, int32_t from, int32_t slot) {
    copy(layer, head, *pages_, from, slot);
  }
  /// Frees the pages of a layer.
  void drop(uint32_t layer);

  /// Null before the first own().
  const SequenceKv* pages() const { return pages_ ? &*pages_ : nullptr; }
  uint64_t bytes() const { return pages_ ? pages_->bytes() : 0; }

 private:
  bool own_blocks(PagePool& pool, uint32_t layer, const std::vector<bool>& wanted);
  uint32_t place_of(uint32_t layer) const { return one_layer_ ? 0 : layer; }

  size_t capacity_;
  bool one_layer_;
  std::optional<SequenceKv> pages_;
};

}  // namespace reprise
