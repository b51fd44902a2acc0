#include "kv/page_frames.h"

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "base/checked.h"
#include "base/try.h"

namespace reprise {
namespace {

// A short text needs no more of a slab; to zero a huge page of each would delay its first token.
constexpr size_t kFirstBytes = size_t{512} << 10;
constexpr uint64_t kReturnFraction = 4;  // free frames kept backed: up to limit / 4

uintptr_t round_up(uintptr_t value, size_t to) { return (value + to - 1) / to * to; }

uint32_t pop(std::vector<uint32_t>& frames) {
  const uint32_t frame = frames.back();
  frames.pop_back();
  return frame;
}

}  // namespace

Result<PageFrames> PageFrames::create(size_t page_bytes, uint32_t n_layer, uint64_t limit) {
  const auto slab_bytes = (CheckedSize(limit) * page_bytes).align_up(kSlabAlignment).value();
  REPRISE_TRY(auto memory, host_page_memory(n_layer, slab_bytes.value_or(~size_t{0})));
  const auto frames = static_cast<uint32_t>(limit);
  PageFrames made(std::move(memory), page_bytes, frames, 0);
  made.slabs_.resize(n_layer, made.slabs_.front());
  for (uint32_t layer = 0; layer < n_layer; ++layer) {
    made.slabs_[layer].base = made.memory_->slab(layer);
  }
  return made;
}

PageFrames::PageFrames(std::unique_ptr<PageMemory> memory, size_t page_bytes,
                       uint32_t memory_frames, uint32_t host_frames, uint32_t skipped)
    : page_bytes_(page_bytes), memory_(std::move(memory)), slabs_(1) {
  counts_[0].limit = memory_frames;
  counts_[1].limit = host_frames;
  Slab& slab = slabs_.front();
  slab.base = memory_->slab(0);
  slab.regions[0].end = memory_frames;
  slab.regions[1].begin = slab.regions[1].next = memory_frames + skipped;
  slab.regions[1].end = memory_frames + skipped + host_frames;
}

bool PageFrames::provide(Slab& slab, Region& region, uint32_t frame) {
  const size_t bytes = (size_t{frame} + 1 - region.begin) * page_bytes_;
  if (bytes > region.provided) {
    const bool few = bytes <= kFirstBytes && memory_->reachable();
    const size_t end = few ? kFirstBytes : round_up(bytes, kSlabAlignment);
    std::byte* from = slab.base + region.begin * page_bytes_ + region.provided;
    if (!memory_->provide(from, end - region.provided)) return false;
    region.provided = end;
  }
  return true;
}

uint32_t PageFrames::take(Tier tier, uint32_t layer, bool for_copy) {
  Count& count = counts_[index(tier)];
  if (count.used == count.limit) return kNoFrame;
  Slab& slab = this->slab(layer);
  Region& region = slab.regions[index(tier)];
  uint32_t frame = kNoFrame;
  if (region.free.empty() && count.backed == count.limit && !region.copying.empty() && !for_copy) {
    join();
  }
  if (!region.free.empty()) {
    frame = pop(region.free);
  } else if (for_copy && !region.copying.empty()) {
    frame = pop(region.copying);
  } else {
    if (count.backed == count.limit) return_one_frame();
    if (!region.returned.empty()) {
      frame = pop(region.returned);
    } else {
      frame = region.next;
      if (!provide(slab, region, frame)) return kNoFrame;
      ++region.next;
      if (slab.used.size() < region.next) slab.used.resize(region.next);
    }
    ++count.backed;
  }
  slab.used[frame] = true;
  ++count.used;
  return frame;
}

void PageFrames::give_back(uint32_t layer, uint32_t frame) {
  const Tier tier = this->tier(layer, frame);
  Slab& slab = this->slab(layer);
  Region& region = slab.regions[index(tier)];
  slab.used[frame] = false;
  (copying_ ? region.copying : region.free).push_back(frame);
  Count& count = counts_[index(tier)];
  --count.used;
  const bool much = count.backed - count.used > count.limit / kReturnFraction;
  if (memory_->reachable() && much) return_free_frames();
}

Status PageFrames::start_copies(std::span<const PageCopy> copies, bool arriving) {
  copying_ = true;
  return memory_->start_copies(copies, page_bytes_, arriving);
}

void PageFrames::join() {
  if (!copying_) return;
  memory_->join();
  copying_ = false;
  for (Slab& slab : slabs_) {
    for (Region& region : slab.regions) {
      region.free.insert(region.free.end(), region.copying.begin(), region.copying.end());
      region.copying.clear();
    }
  }
}

void PageFrames::return_memory(const Slab& slab, size_t begin, size_t end) const {
  const auto system_page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const auto in_use = [&](size_t from_byte, size_t to_byte) {  // by a frame that overlaps the range
    if (from_byte == to_byte) return false;
    const size_t stop = std::min((to_byte - 1) / page_bytes_ + 1, slab.used.size());
    for (size_t frame = from_byte / page_bytes_; frame < stop; ++frame) {
      if (slab.used[frame]) return true;
    }
    return false;
  };
  const size_t first_byte = begin * page_bytes_, last_byte = end * page_bytes_;
  size_t from = first_byte / system_page * system_page;
  if (in_use(from, first_byte)) from += system_page;
  size_t to = round_up(last_byte, system_page);
  if (in_use(last_byte, to)) to -= system_page;
  if (from < to) memory_->give_back(slab.base + from, to - from);
}

void PageFrames::return_one_frame() {
  for (Slab& slab : slabs_) {
    Region& region = slab.regions[0];
    if (region.free.empty()) continue;
    const uint32_t frame = pop(region.free);
    region.returned.push_back(frame);
    return_memory(slab, frame, size_t{frame} + 1);
    --counts_[0].backed;
    return;
  }
}

void PageFrames::return_free_frames() {
  for (Slab& slab : slabs_) {
    Region& region = slab.regions[0];
    if (region.free.empty()) continue;
    auto& returned = region.returned;
    returned.insert(returned.end(), region.free.begin(), region.free.end());
    region.free.clear();
    std::sort(returned.begin(), returned.end(), std::greater<>());
    for (size_t i = 0; i < returned.size();) {
      const size_t end = size_t{returned[i]} + 1;
      size_t begin = returned[i];
      for (++i; i < returned.size() && returned[i] + 1 == begin; ++i) --begin;
      return_memory(slab, begin, end);
    }
  }
  counts_[0].backed = counts_[0].used;
}

}  // namespace reprise
