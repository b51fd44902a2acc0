// The KV of one sequence: a page table per layer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/page_map.h"
#include "kv/page_pool.h"
#include "reprise/error.h"

namespace reprise {

/// Token t of layer l lies in slot t % 16 of page pages(l)[t / 16]; entries of evicted pages are
/// kNoPage. Copying shares pages (a fork); writing to a shared page copies it first. A sequence
/// that rests lets its pages be moved out of memory; it is read again only after wake(). One that
/// is paged out lets them be moved too, but is used: whoever reads or writes a page of it holds it
/// by PagePool::fetch() meanwhile.
class SequenceKv {
 public:
  explicit SequenceKv(PagePool& pool);
  SequenceKv(const SequenceKv& other);  // fork: O(pages); reserved room is not copied; rests alike
  SequenceKv(SequenceKv&& other) noexcept;
  SequenceKv& operator=(SequenceKv other) noexcept;
  ~SequenceKv();

  int32_t length() const { return length_; }  // tokens stored in every layer
  /// Nothing reads or writes the pages until wake().
  void rest();
  /// Brings pages back that were moved away while nobody used them; of a sequence that is awake,
  /// those that are not in the fastest memory. Returns how many leading tokens are still there:
  /// fewer than length() when a disk failed; truncate to that or less then. kOutOfMemory: it rests.
  Result<int32_t> wake();
  /// From now on, until it rests, only fetched pages are in memory. Returns what wake() does.
  int32_t page_out();
  bool paged() const { return paged_; }
  /// Makes room for tokens [length, length + count) in all layers, copying a shared last page.
  /// kOutOfMemory, or kUnsupported when the last page is partly filled but evicted (truncate to a
  /// multiple of 16 first), leaves the sequence as it was.
  Status reserve(size_t count);
  /// Makes an empty sequence hold length tokens of unspecified content in the pages of map; every
  /// page that is not in it counts as evicted. kOutOfMemory leaves the sequence empty.
  Status reserve_pages(int32_t length, const PageMap& map);
  /// Gives a sequence that rests pages in the place of evicted ones, of unspecified content, which
  /// are in use until rest_pages(). kOutOfMemory leaves the sequence as it was.
  Status take_pages(uint32_t layer, std::span<const uint32_t> blocks);
  void rest_pages(uint32_t layer, std::span<const uint32_t> blocks);
  /// Makes the page of a layer and block one that only this sequence refers to, so that it may be
  /// written in place: an evicted page is taken anew, a shared one copied. block is one of
  /// pages(layer); the sequence is not paged out. kOutOfMemory leaves the sequence as it was.
  Status own_page(uint32_t layer, size_t block);
  /// Declares count reserved tokens as stored.
  void commit(size_t count) { length_ += static_cast<int32_t>(count); }
  /// Drops tokens from the end, and room that was reserved.
  void truncate(int32_t length);
  /// Frees the pages of a layer that lie wholly inside tokens [begin, end), up to length(); returns
  /// how many. Growing the same range step by step costs only what is new.
  size_t evict(uint32_t layer, int32_t begin, int32_t end);

  /// Changes whenever a page is replaced or dropped, not when pages are added at the end or evicted
  /// (nobody reads those); no two sequences have the same. For copies of the tables elsewhere.
  uint64_t version() const { return version_; }
  std::span<const PageId> pages(uint32_t layer) const { return tables_[layer]; }
  std::byte* page(uint32_t layer, size_t block) const {
    return pool_->data(layer, tables_[layer][block]);
  }
  PagePool& pool() const { return *pool_; }
  /// The pages that hold stored tokens.
  PageMap page_map() const;
  /// Bytes of pages this sequence refers to (shared ones count fully).
  uint64_t bytes() const;

 private:
  friend class PrefixCache;
  struct BlockRange {
    size_t begin = 0, end = 0;
  };

  void hold();
  int32_t leading(size_t blocks) const;
  Status fetch_shared(size_t block, std::span<const char> layers);
  void change_version();
  Status check_room(uint64_t pages, size_t tokens) const;
  void release_from(size_t block);

  PagePool* pool_;
  int32_t length_ = 0;
  uint64_t version_ = 0;
  bool resting_ = false;  // how it refers to its pages
  bool paged_ = false;
  std::vector<std::vector<PageId>> tables_;  // [n_layer][blocks]
  std::vector<BlockRange> holes_;            // [n_layer] one range known to be evicted
};

}  // namespace reprise
