// Memory for KV pages, bounded by a limit; pages are shared by reference count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/kv_page.h"
#include "kv/page_memory.h"
#include "reprise/error.h"

namespace reprise {

using PageId = uint32_t;
inline constexpr PageId kNoPage = ~PageId{0};
using kernels::kPageTokens;

/// On the host one slab of address space per layer, so that pages taken in order are contiguous;
/// memory is touched only when a page is used, and goes back to the system when much of it is free.
/// On a device one slab for all layers. A page id is meaningful only together with its layer. Not
/// thread-safe: one thread allocates, any number may read pages meanwhile.
class PagePool {
 public:
  /// limit_bytes bounds the pages in use over all layers. kInvalidArgument when layout or n_layer
  /// is empty; kOutOfMemory when the limit is smaller than one page per layer or the address space
  /// (limit_bytes per layer) cannot be reserved.
  static Result<PagePool> create(const kernels::KvLayout& layout, uint32_t n_layer,
                                 uint64_t limit_bytes);
  /// Zeroes the slots [first, 16) of the host's copy of a page.
  using ClearSlots = std::function<void(std::byte* page, size_t first)>;
  /// Pages of page_bytes in one slab that all layers share, laid out in a way of their own.
  static PagePool create(std::unique_ptr<PageMemory> memory, const kernels::KvLayout& layout,
                         size_t page_bytes, uint32_t n_layer, uint64_t pages, ClearSlots clear);

  /// A page with reference count 1; kNoPage when the limit is reached. Contents are unspecified
  /// except that floats in unused slots are finite (freshly zeroed or earlier tokens). O(1)
  /// amortised.
  PageId allocate(uint32_t layer);
  void retain(uint32_t layer, PageId page) { ++slab(layer).references[page]; }
  void release(uint32_t layer, PageId page);  // freed at zero
  /// Whether pages more are free, after reclaim was asked to give up what nobody uses.
  bool make_room(uint64_t pages);
  /// reclaim is called with the number of pages wanted when fewer are free.
  void set_reclaim(std::function<void(uint64_t pages)> reclaim) { reclaim_ = std::move(reclaim); }
  uint32_t references(uint32_t layer, PageId page) const { return slab(layer).references[page]; }
  void copy(uint32_t layer, PageId to, PageId from) {
    memory_->copy(data(layer, to), data(layer, from), page_bytes_);
  }

  /// Of a device's memory only a name.
  std::byte* data(uint32_t layer, PageId page) const {
    return slab(layer).base + page * page_bytes_;
  }
  PageMemory& memory() const { return *memory_; }
  void clear_slots(std::byte* page, size_t first) const;
  const kernels::KvLayout& layout() const { return layout_; }
  uint32_t layers() const { return layers_; }
  size_t page_bytes() const { return page_bytes_; }
  uint64_t used_bytes() const { return used_pages_ * page_bytes_; }
  uint64_t limit_bytes() const { return limit_pages_ * page_bytes_; }
  uint64_t free_pages() const { return limit_pages_ - used_pages_; }
  /// Bytes of pages in use or free but still backed by memory: never above limit_bytes().
  uint64_t backed_bytes() const { return backed_pages_ * page_bytes_; }

 private:
  struct Slab {
    std::byte* base = nullptr;
    size_t provided = 0;               // bytes from base on that may be used
    std::vector<uint32_t> references;  // [pages ever used]
    std::vector<PageId> free;          // still backed by memory; taken from the back
    std::vector<PageId> returned;      // free and given back to the system; taken from the back
  };
  PagePool() = default;

  Slab& slab(uint32_t layer) { return slabs_[slabs_.size() == 1 ? 0 : layer]; }
  const Slab& slab(uint32_t layer) const { return slabs_[slabs_.size() == 1 ? 0 : layer]; }
  bool provide(Slab& slab, size_t bytes);
  /// Returns the memory of free pages [begin, end), as far as no page in use lies on it too.
  void give_back(const Slab& slab, size_t begin, size_t end) const;
  void return_one_page();
  void return_free_pages();

  kernels::KvLayout layout_;
  size_t page_bytes_ = 0;
  uint32_t layers_ = 0;
  uint64_t limit_pages_ = 0, used_pages_ = 0, backed_pages_ = 0;
  std::unique_ptr<PageMemory> memory_;
  ClearSlots clear_slots_;   // empty: as layout_ says
  std::vector<Slab> slabs_;  // [n_layer], or one of all layers
  std::function<void(uint64_t pages)> reclaim_;
};

}  // namespace reprise
