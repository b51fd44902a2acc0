// Where the pages of a pool lie: in this machine's memory, or in a device's and beside it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "reprise/error.h"
#include "reprise/kv_tiers.h"

namespace reprise {

/// A page of a layer that is copied to another place of the same slab, in pages from its start.
struct PageCopy {
  uint32_t layer = 0, from = 0, to = 0;
};

/// Slabs of address space; a pool hands out their pages. Addresses of a device's memory are only
/// names on the host: bytes move through copy, read and write.
class PageMemory {
 public:
  virtual ~PageMemory() = default;

  virtual std::byte* slab(uint32_t index) const = 0;
  /// Makes bytes of a slab usable; they are zero. False when the system has no memory.
  virtual bool provide(std::byte* from, size_t bytes) = 0;
  /// Bytes that hold nothing needed: their memory may go back to the system. They stay usable.
  virtual void give_back(std::byte* from, size_t bytes) = 0;
  /// Whether the host can use the addresses.
  virtual bool reachable() const = 0;
  /// To and from the host's memory, after every use of the bytes that was asked for before; done
  /// when they return.
  virtual Status read(std::byte* host, const std::byte* from, size_t bytes) = 0;
  virtual Status write(std::byte* to, const std::byte* host, size_t bytes) = 0;
  /// Within the memory, after every use of the bytes that was asked for before.
  virtual void copy(std::byte* to, const std::byte* from, size_t bytes) = 0;

  // Where memory has two tiers (see page_tiers.h).

  /// Begins copies of whole pages, after every use that was asked for before and beside uses that
  /// are asked for later. arriving: the next passes read the copies, each layer after its own.
  virtual Status start_copies(std::span<const PageCopy>, size_t /*page_bytes*/, bool /*arriving*/) {
    return {};
  }
  /// Uses that are asked for later come after all copies so far.
  virtual void join() {}
  /// Says which pages of slab 0 the host wrote, for those who keep what they know of pages.
  virtual Status written(std::span<const uint32_t> /*pages*/) { return {}; }
  /// Of pages below kMemory that the memory itself keeps at hand.
  virtual KvPaging paging() const { return {}; }
};

/// Address space of this process, touched only when used. slab_bytes: a multiple of kSlabAlignment.
/// kOutOfMemory when the address space cannot be reserved.
inline constexpr size_t kSlabAlignment = size_t{2} << 20;
Result<std::unique_ptr<PageMemory>> host_page_memory(uint32_t slabs, size_t slab_bytes);

}  // namespace reprise
