// Pages of keys and values: counted by who refers to them, placed in memory or below.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/kv_page.h"
#include "kv/page_tiers.h"
#include "reprise/error.h"

namespace reprise {

using PageId = uint32_t;
inline constexpr PageId kNoPage = ~PageId{0};
using kernels::kPageTokens;

/// A page id is a name, meaningful only together with its layer; where the page lies may change
/// while nobody uses it. References are in use or at rest: pages with a reference in use stay in
/// memory and are moved only towards kMemory; of the others the least recently used are moved to
/// the tier below when a tier is full. A page that was fetched() from disk keeps its slot there
/// until it is written, so that it need not be written to be moved away again. Not thread-safe: one
/// thread allocates, any number may read pages meanwhile.
class PagePool {
 public:
  /// In this machine's memory. limit_bytes bounds the pages there over all layers. one_slab: frames
  /// serve any layer, so that pages of one can follow those of another without new memory.
  /// kInvalidArgument when layout or n_layer is empty; kOutOfMemory when the limit is smaller than
  /// one page per layer or the address space (limit_bytes per layer) cannot be reserved.
  static Result<PagePool> create(const kernels::KvLayout& layout, uint32_t n_layer,
                                 uint64_t limit_bytes, bool one_slab = false);
  /// Zeroes the slots [first, 16) of the host's copy of a page.
  using ClearSlots = std::function<void(std::byte* page, size_t first)>;
  /// Pages in frames of one slab that all layers share, laid out in a way of their own.
  static PagePool create(PageFrames frames, const kernels::KvLayout& layout, uint32_t n_layer,
                         ClearSlots clear);
  /// Adds kDisk: a file in a folder. Errors: as PageFile::create.
  Status add_disk(const std::string& folder, uint64_t bytes);

  /// A page with one reference, in use; kNoPage when memory is full. Contents are unspecified
  /// except that floats in unused slots are finite (freshly zeroed or earlier tokens). O(1)
  /// amortised.
  PageId allocate(uint32_t layer);
  void retain(uint32_t layer, PageId page, bool in_use = true);
  void release(uint32_t layer, PageId page, bool in_use = true);  // freed by the last
  /// A reference comes into use: the page stays where it is, but for bring_back().
  void hold(uint32_t layer, PageId page);
  /// A reference in use comes to rest. Pages with lower stamps are moved away earlier.
  void rest(uint32_t layer, PageId page, uint64_t stamp);
  /// For stamps: higher with every call, leaving room for 2^20 lower ones.
  uint64_t now() { return ++clock_ << 20; }
  /// Brings pages that are in use ([n_layer][blocks], kNoPage: none) to kMemory as far as there is
  /// room, and all of them from disk. Returns the first block with a page that was lost (see
  /// has()), or ~0. kOutOfMemory when there is no room.
  Result<size_t> bring_back(std::span<const std::vector<PageId>> tables);
  /// False when the page's content was lost, because the disk failed.
  bool has(uint32_t layer, PageId page) const { return at(layer, page).place != kNoPlace; }
  /// Whether a page that is in use lies in kHost.
  bool reads_host() const { return tiers_.used(Tier::kHost) > resting_[1]; }
  /// Whether it can be read in place, by the host or by kernels.
  bool in_memory(uint32_t layer, PageId page) const {
    return has(layer, page) && tiers_.tier(layer, at(layer, page).place) != Tier::kDisk;
  }

  /// Whether pages more can be allocated, after reclaim was asked to give up what nobody refers to
  /// but itself, and pages at rest were moved to the tiers below; spare places stay free then.
  bool make_room(uint64_t pages, uint64_t spare = 0);
  /// reclaim is called with the number of pages wanted when fewer are free.
  void set_reclaim(std::function<void(uint64_t pages)> reclaim) { reclaim_ = std::move(reclaim); }
  uint32_t references(uint32_t layer, PageId page) const { return at(layer, page).references; }

  // Pages at rest that are used one layer at a time (see SequenceKv::page_out).

  /// Whether pages may be used so: the host reads them, and there is a disk.
  bool can_page() const { return memory().reachable() && tiers_.limit(Tier::kDisk) > 0; }
  /// How many pages could be held at a time; none without a place to exchange them through.
  uint64_t pageable() const {
    if (free_pages() == 0) return 0;
    return tiers_.free(Tier::kMemory) + resting_[0] + under_way_.size();
  }
  /// Brings pages to memory and holds them there until let_go(). Errors, after which none is held:
  /// kOutOfMemory; kCorrupt: some could not be read back and are lost.
  Status fetch(uint32_t layer, std::span<const PageId> pages);
  /// rest() of a page that fetch() holds.
  void let_go(uint32_t layer, PageId page, uint64_t stamp);
  /// So many may be held at a time, until told otherwise: claim() leaves them room.
  void promise(uint64_t pages) { promised_ = pages; }
  /// make_room() for what nobody has planned for.
  bool claim(uint64_t pages);
  /// To be called before a page that fetch() holds is written.
  void will_write(uint32_t layer, PageId page) { forget_copy(layer, at(layer, page)); }
  /// Starts to bring pages to memory that fetch() is expected to want: as many as there is room for
  /// beside pages that were used, or expected, since the stamp `since`. False: not all.
  bool prefetch(uint32_t layer, std::span<const PageId> pages, uint64_t since);
  /// How many pages more have no room beside those used, or expected, since then.
  uint64_t spare(uint64_t pages, uint64_t since);
  /// Gives up the memory of pages at rest that lie on disk too, the last first, up to count.
  /// Returns how many.
  uint64_t give_up(uint32_t layer, std::span<const PageId> pages, uint64_t count);
  /// How many of the pages fetch() would have to find room for.
  uint64_t away(uint32_t layer, std::span<const PageId> pages) const;

  void copy(uint32_t layer, PageId to, PageId from);
  /// Between a page wherever it lies and the host's memory.
  Status read(std::byte* host, uint32_t layer, PageId page);
  Status write(uint32_t layer, std::span<const PageId> pages, const std::byte* host);

  /// Of a page in memory; of a device's memory only a name.
  std::byte* data(uint32_t layer, PageId page) const {
    return tiers_.frames().data(layer, at(layer, page).place);
  }
  /// Where kernels find a page in memory, in pages from the start of its slab; of kNoPage itself.
  uint32_t frame(uint32_t layer, PageId page) const {
    return page == kNoPage ? kNoPage : at(layer, page).place;
  }
  /// Changes whenever frames of pages in use may have.
  uint64_t moves() const { return moves_; }
  PageMemory& memory() const { return tiers_.memory(); }
  void clear_slots(std::byte* page, size_t first) const;
  const kernels::KvLayout& layout() const { return layout_; }
  uint32_t layers() const { return layers_; }
  size_t page_bytes() const { return tiers_.frames().page_bytes(); }
  /// Over all tiers.
  uint64_t used_bytes() const { return (limit_pages() - free_pages()) * page_bytes(); }
  uint64_t limit_bytes() const { return limit_pages() * page_bytes(); }
  uint64_t free_pages() const;
  /// Pages that could be allocated now.
  uint64_t room() const { return tiers_.free(Tier::kMemory) + tiers_.free(Tier::kHost); }
  /// Bytes of frames in use or free but still backed by memory.
  uint64_t backed_bytes() const { return tiers_.frames().backed_bytes(); }
  KvTiers tiers() const;
  /// What ends a message about memory that a broken disk does not relieve; else nothing.
  std::string disk_trouble() const;
  KvPaging paging() const { return paging_ + memory().paging(); }

 private:
  static constexpr uint32_t kNoArrival = ~uint32_t{0};
  struct Page {
    uint32_t references = 0, uses = 0;  // uses: references that are in use
    Place place = kNoPlace;
    Place copy = kNoPlace;          // a slot that holds the same
    uint32_t arrival = kNoArrival;  // being read from its place
    bool expected = false;          // was prefetched and not used since
    uint64_t stamp = 0;
  };
  struct Names {
    std::vector<Page> pages;   // [pages ever used at a time]
    std::vector<PageId> free;  // taken from the back
  };
  struct Named {
    uint64_t order;  // a stamp, or a block
    uint32_t layer;
    PageId page;
  };
  explicit PagePool(PageFrames frames) : tiers_(std::move(frames)) {}

  Page& at(uint32_t layer, PageId page) { return names(layer).pages[page]; }
  const Page& at(uint32_t layer, PageId page) const {
    return names_[names_.size() == 1 ? 0 : layer].pages[page];
  }
  Names& names(uint32_t layer) { return names_[names_.size() == 1 ? 0 : layer]; }
  uint64_t limit_pages() const;
  /// Counts a page that comes to rest (1) or no longer is (-1).
  void count_resting(uint32_t layer, const Page& page, int change);
  /// False when the disk failed meanwhile.
  bool move_down(uint64_t pages);
  bool demote(Tier tier, uint64_t wanted, uint64_t before = ~uint64_t{0});
  uint64_t batch() const;  // pages that are moved down together
  bool rests_in(Tier tier, uint32_t layer, const Page& page) const;
  /// As many pages at rest as there are up to count, with stamps below before.
  std::vector<Named> least_recently_used(Tier tier, uint64_t count, uint64_t before);
  std::vector<Named> find_cold(Tier tier, uint64_t count) const;  // the oldest last
  /// Takes places for pages and moves them there; those without a place stay. Returns those that
  /// failed.
  using PlaceFn = std::function<Place(uint32_t layer, const Page& page)>;
  std::vector<Named> move(std::span<const Named> pages, const PlaceFn& place);

  void forget_copy(uint32_t layer, Page& page);
  /// Makes slots free that hold copies of pages in memory, if that many are not.
  void free_slots(uint64_t wanted);
  /// Moves a page at rest to its copy.
  void drop(uint32_t layer, Page& page);
  /// Whether pages more have room in memory, or at least whether that of pages used before helps.
  bool make_frames(uint64_t pages, uint64_t before = ~uint64_t{0});
  /// Starts to read pages; there is room for them.
  void start(uint32_t layer, std::span<const PageId> pages, bool urgent);
  /// Starts to read pages that are held, and makes room for them.
  Status start_all(uint32_t layer, std::span<const PageId> pages);
  /// Waits until a page is there. False: it stays where it is.
  bool arrive(uint32_t arrival);
  void settle_arrivals(bool wait);
  Status bring(uint32_t layer, std::vector<PageId> away, std::span<const PageId> late);

  kernels::KvLayout layout_;
  uint32_t layers_ = 0;
  std::deque<PageTiers::Arrival> arrivals_;  // outlive the reader, which tiers_ owns
  std::vector<uint32_t> free_arrivals_, under_way_;
  PageTiers tiers_;
  ClearSlots clear_slots_;         // empty: as layout_ says
  std::vector<Names> names_;       // [n_layer], or one of all layers
  uint64_t resting_[kTiers] = {};  // pages
  std::vector<Named> cold_[2];     // [tiers above kDisk] what find_cold() said; some no longer rest
  uint64_t clock_ = 0, moves_ = 0;
  uint64_t copies_ = 0;                  // slots of pages that are in memory
  uint64_t fetched_ = 0, promised_ = 0;  // pages that fetch() holds, and may hold
  KvPaging paging_;
  std::function<void(uint64_t pages)> reclaim_;
};

}  // namespace reprise
