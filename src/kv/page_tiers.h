// Places that pages may have in memory, in the host's memory beside a device and on disk, and moves
// between them. What is moved when is PagePool's to say.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kv/page_file.h"
#include "kv/page_frames.h"
#include "reprise/kv_tiers.h"

namespace reprise {

/// A frame of the page's layer, or a slot of the file.
using Place = uint32_t;
inline constexpr Place kNoPlace = kNoFrame;

struct PageMove {
  uint32_t layer = 0;
  Place from = kNoPlace, to = kNoPlace;
  uint32_t tag = 0;         // the caller's; moves change their order
  Place result = kNoPlace;  // out: to; from when it failed; kNoPlace when it is lost on disk
};

class PageTiers {
 public:
  explicit PageTiers(PageFrames frames) : frames_(std::move(frames)) {}
  void add(std::unique_ptr<PageFile> file) { file_ = std::move(file); }

  /// A free place; kNoPlace when the tier is full.
  Place take(Tier tier, uint32_t layer);
  /// The same for the end of a move.
  Place take_for_move(Tier tier, uint32_t layer);
  void give_back(uint32_t layer, Place place);
  /// Moves pages, all of them up or all down; the places that they leave, or fail to reach, are
  /// given back. Copies in memory may still be under way when it returns: the next passes wait for
  /// pages that arrive in kMemory layer by layer, settle() for all.
  void move(std::span<PageMove> moves);
  /// Whatever is asked of the memory from now on finds all moves done.
  void settle() { frames_.join(); }
  /// Starts to read pages from slots, which stay taken.
  struct Arrival {
    uint32_t layer = 0, page = 0;  // the caller's
    uint32_t turn = 0;             // its place among those under way, the caller's
    Place slot = kNoPlace, frame = kNoPlace;
    PageReader::Read read;
  };
  void start(std::span<Arrival* const> arrivals, bool urgent);
  /// Waits for it. False: the frame is given back, zeroed.
  bool finish(Arrival& arrival);
  void count_lost(Place slot);
  /// A page's bytes, wherever it lies. Errors: kCorrupt; the device's.
  Status read(std::byte* host, uint32_t layer, Place place);

  Tier tier(uint32_t layer, Place place) const {
    return (place & kDiskPlace) != 0 ? Tier::kDisk : frames_.tier(layer, place);
  }
  const PageFrames& frames() const { return frames_; }
  PageMemory& memory() const { return frames_.memory(); }
  uint64_t limit(Tier tier) const;  // in pages
  uint64_t used(Tier tier) const;
  uint64_t free(Tier tier) const { return limit(tier) - used(tier); }
  uint64_t lost() const { return lost_; }  // pages that could not be read back
  KvTiers stats() const;

 private:
  static constexpr Place kDiskPlace = Place{1} << 31;

  void copy(std::span<PageMove> moves, bool arriving);
  void write_out(std::span<PageMove> moves);
  void read_in(std::span<PageMove> moves);
  /// Where the bytes of a frame can be used; of a device's, a copy to come.
  std::byte* staged(const PageMove& move, Place frame, size_t index);
  void finish(PageMove& move, bool failed);
  /// Gives back a frame that was to be read into. What came instead is not left to its next user.
  void discard(uint32_t layer, Place frame);

  PageFrames frames_;
  std::unique_ptr<PageFile> file_;
  std::vector<std::byte> copy_;  // of pages that the host cannot reach
  std::vector<PageFile::Transfer> transfers_;
  std::vector<PageCopy> copies_;
  uint64_t moved_in_[kTiers] = {}, moved_out_[kTiers] = {}, lost_ = 0;
};

}  // namespace reprise
