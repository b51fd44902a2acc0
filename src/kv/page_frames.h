// Frames: the places in memory that pages may have, handed out within limits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kv/page_memory.h"
#include "reprise/error.h"

namespace reprise {

/// The fastest first. kMemory: where attention reads at full speed (a device's memory; the host's
/// on a CPU). kHost: the host's memory beside a device, which reads it in place, slowly. kDisk: to
/// be brought to another tier before it is read.
enum class Tier : uint8_t { kMemory, kHost, kDisk };
inline constexpr size_t kTiers = 3;

inline constexpr uint32_t kNoFrame = ~uint32_t{0};
inline constexpr uint32_t kMaxFrames = ~uint32_t{0} >> 1;

/// On the host one slab of address space per layer, so that frames taken in order are contiguous;
/// memory is touched only when a frame is taken, and goes back to the system when much of it is
/// free. On a device one slab of all layers, frames in its memory before those in the host's.
class PageFrames {
 public:
  /// On the host; limit: frames over all layers. kOutOfMemory when the address space (that many
  /// frames per layer) cannot be reserved.
  static Result<PageFrames> create(size_t page_bytes, uint32_t n_layer, uint64_t limit);
  /// skipped: frames between the two tiers that are not handed out.
  PageFrames(std::unique_ptr<PageMemory> memory, size_t page_bytes, uint32_t memory_frames,
             uint32_t host_frames, uint32_t skipped = 0);

  /// kNoFrame when the tier is full. O(1) amortised. for_copy: only start_copies() writes to it
  /// before the next join().
  uint32_t take(Tier tier, uint32_t layer, bool for_copy = false);
  void give_back(uint32_t layer, uint32_t frame);
  /// Copies frames; what is freed from now on is reused only after them.
  Status start_copies(std::span<const PageCopy> copies, bool arriving);
  void join();

  Tier tier(uint32_t layer, uint32_t frame) const {
    return frame < slab(layer).regions[0].end ? Tier::kMemory : Tier::kHost;
  }
  std::byte* data(uint32_t layer, uint32_t frame) const {
    return slab(layer).base + frame * page_bytes_;
  }
  PageMemory& memory() const { return *memory_; }
  size_t page_bytes() const { return page_bytes_; }
  size_t slabs() const { return slabs_.size(); }
  uint64_t limit(Tier tier) const { return counts_[index(tier)].limit; }
  uint64_t used(Tier tier) const { return counts_[index(tier)].used; }
  uint64_t backed_bytes() const { return (counts_[0].backed + counts_[1].backed) * page_bytes_; }

 private:
  struct Region {  // of a slab: the frames of a tier
    uint32_t begin = 0, end = 0;
    uint32_t next = 0;               // never used before, from here on
    size_t provided = 0;             // bytes from its begin on that may be used
    std::vector<uint32_t> free;      // still backed by memory; taken from the back
    std::vector<uint32_t> returned;  // free and given back to the system; taken from the back
    std::vector<uint32_t> copying;   // free, but copies may still be using them
  };
  struct Slab {
    std::byte* base = nullptr;
    std::array<Region, 2> regions;
    std::vector<bool> used;  // [frames ever used]
  };
  struct Count {  // over all slabs
    uint64_t limit = 0, used = 0, backed = 0;
  };

  static size_t index(Tier tier) { return static_cast<size_t>(tier); }
  Slab& slab(uint32_t layer) { return slabs_[slabs_.size() == 1 ? 0 : layer]; }
  const Slab& slab(uint32_t layer) const { return slabs_[slabs_.size() == 1 ? 0 : layer]; }
  bool provide(Slab& slab, Region& region, uint32_t frame);
  /// Returns the memory of free frames [begin, end), as far as no frame in use lies on it too.
  void return_memory(const Slab& slab, size_t begin, size_t end) const;
  void return_one_frame();
  void return_free_frames();

  size_t page_bytes_ = 0;
  Count counts_[2];
  bool copying_ = false;  // copies were started since the last join()
  std::unique_ptr<PageMemory> memory_;
  std::vector<Slab> slabs_;  // [n_layer], or one of all layers
};

}  // namespace reprise
