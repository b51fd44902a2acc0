// Pages at rest that are used one layer at a time: brought from disk when they are wanted, or
// ahead.
#include <algorithm>
#include <chrono>

#include "base/try.h"
#include "kv/page_pool.h"

namespace reprise {

std::string PagePool::disk_trouble() const {
  const std::string error = tiers_.stats().disk_error;
  return error.empty() ? error : "; " + error;
}

void PagePool::forget_copy(uint32_t layer, Page& page) {
  if (page.copy == kNoPlace) return;
  tiers_.give_back(layer, std::exchange(page.copy, kNoPlace));
  --copies_;
}

void PagePool::free_slots(uint64_t wanted) {
  for (uint32_t layer = 0; layer < names_.size(); ++layer) {
    for (Page& page : names_[layer].pages) {
      if (tiers_.free(Tier::kDisk) >= wanted || copies_ == 0) return;
      forget_copy(layer, page);
    }
  }
}

void PagePool::drop(uint32_t layer, Page& page) {
  count_resting(layer, page, -1);
  tiers_.give_back(layer, std::exchange(page.place, std::exchange(page.copy, kNoPlace)));
  count_resting(layer, page, 1);
  --copies_;
  ++moves_;
  if (page.expected) ++paging_.unused;
  page.expected = false;
}

bool PagePool::make_frames(uint64_t pages, uint64_t before) {
  const uint64_t free = tiers_.free(Tier::kMemory);
  const bool must = before == ~uint64_t{0};  // nothing is given up for what is only expected
  if (must && free < pages && free_pages() < pages && reclaim_) reclaim_(pages);
  if (free < pages) demote(Tier::kMemory, pages - free, before);
  return tiers_.free(Tier::kMemory) >= pages;
}

void PagePool::start(uint32_t layer, std::span<const PageId> pages, bool urgent) {
  std::vector<PageTiers::Arrival*> started;
  for (const PageId id : pages) {
    const Place frame = tiers_.take(Tier::kMemory, layer);
    if (frame == kNoPlace) break;
    if (free_arrivals_.empty()) {
      free_arrivals_.push_back(static_cast<uint32_t>(arrivals_.size()));
      arrivals_.emplace_back();
    }
    Page& page = at(layer, id);
    page.arrival = free_arrivals_.back();
    free_arrivals_.pop_back();
    PageTiers::Arrival& arrival = arrivals_[page.arrival];
    arrival.turn = static_cast<uint32_t>(under_way_.size());
    under_way_.push_back(page.arrival);
    arrival.layer = layer;
    arrival.page = id;
    arrival.slot = page.place;
    arrival.frame = frame;
    started.push_back(&arrival);
  }
  tiers_.start(started, urgent);
  paging_.read_bytes += started.size() * page_bytes();
}

bool PagePool::arrive(uint32_t index) {
  PageTiers::Arrival& arrival = arrivals_[index];
  Page& page = at(arrival.layer, arrival.page);
  const bool there = tiers_.finish(arrival);
  page.arrival = kNoArrival;
  under_way_[arrival.turn] = under_way_.back();  // there may be tens of thousands
  arrivals_[under_way_.back()].turn = arrival.turn;
  under_way_.pop_back();
  free_arrivals_.push_back(index);
  if (!there) return false;
  const bool resting = page.uses == 0;
  if (resting) count_resting(arrival.layer, page, -1);
  page.copy = std::exchange(page.place, arrival.frame);
  ++copies_;
  ++moves_;
  if (resting) count_resting(arrival.layer, page, 1);
  return true;
}

void PagePool::settle_arrivals(bool wait) {
  for (size_t i = under_way_.size(); i-- > 0;) {
    const uint32_t arrival = under_way_[i];
    if (wait || arrivals_[arrival].read.state != PageReader::Read::kUnderWay) arrive(arrival);
  }
}

uint64_t PagePool::away(uint32_t layer, std::span<const PageId> pages) const {
  return static_cast<uint64_t>(std::ranges::count_if(pages, [&](PageId id) {
    return !in_memory(layer, id) && at(layer, id).arrival == kNoArrival;
  }));
}

Status PagePool::start_all(uint32_t layer, std::span<const PageId> pages) {
  while (!pages.empty()) {
    // On a disk that is nearly full, slots of what arrived serve what makes room for the rest.
    if (!make_frames(pages.size())) settle_arrivals(true);
    make_frames(pages.size());
    const auto room = std::min<uint64_t>(pages.size(), tiers_.free(Tier::kMemory));
    if (room == 0) {
      return fail(ErrorCode::kOutOfMemory,
                  "no KV memory to read {} pages of layer {} from disk into; raise --kv-memory or "
                  "--kv-disk-size{}",
                  pages.size(), layer, disk_trouble());
    }
    start(layer, pages.first(room), true);
    pages = pages.subspan(room);
  }
  return {};
}

Status PagePool::bring(uint32_t layer, std::vector<PageId> away, std::span<const PageId> late) {
  REPRISE_CHECK(start_all(layer, away));
  const auto still_away = [&](PageId id) {
    const uint32_t arrival = at(layer, id).arrival;
    if (arrival != kNoArrival) arrive(arrival);
    return !in_memory(layer, id);
  };
  std::vector<PageId> again, lost;
  std::ranges::copy_if(late, std::back_inserter(again), still_away);
  if (make_frames(again.size())) start(layer, again, true);
  away.insert(away.end(), again.begin(), again.end());
  std::ranges::copy_if(away, std::back_inserter(lost), still_away);
  for (const PageId id : lost) tiers_.count_lost(std::exchange(at(layer, id).place, kNoPlace));
  if (lost.empty()) return {};
  return fail(ErrorCode::kCorrupt,
              "{} pages of layer {} cannot be read back from --kv-disk; what they held is computed "
              "anew when the prompt is read again",
              lost.size(), layer);
}

void PagePool::let_go(uint32_t layer, PageId page, uint64_t stamp) {
  --fetched_;
  rest(layer, page, stamp);
}

bool PagePool::claim(uint64_t pages) {
  if (promised_ > 0 && pageable() + fetched_ < promised_ + pages) return false;
  return make_room(pages);
}

Status PagePool::fetch(uint32_t layer, std::span<const PageId> pages) {
  std::vector<PageId> away, late;
  bool lost = false;
  for (const PageId id : pages) {
    hold(layer, id);
    ++fetched_;
    Page& page = at(layer, id);
    page.expected = false;
    if (!has(layer, id))
      lost = true;
    else if (page.arrival != kNoArrival)
      late.push_back(id);
    else if (in_memory(layer, id))
      ++paging_.hits;
    else
      away.push_back(id);
  }
  if (!lost && away.empty() && late.empty()) return {};
  paging_.late += late.size();
  paging_.fetched += away.size();
  const auto start = std::chrono::steady_clock::now();
  Status status = lost ? fail(ErrorCode::kCorrupt,
                              "KV of layer {} was lost on --kv-disk; read the prompt again", layer)
                       : bring(layer, std::move(away), late);
  const std::chrono::duration<double, std::milli> waited = std::chrono::steady_clock::now() - start;
  paging_.wait_ms += waited.count();
  if (!status) {
    for (const PageId id : pages) let_go(layer, id, at(layer, id).stamp);
  }
  return status;
}

bool PagePool::prefetch(uint32_t layer, std::span<const PageId> pages, uint64_t since) {
  settle_arrivals(false);
  const uint64_t stamp = now();
  std::vector<PageId> away;
  for (const PageId id : pages) {
    if (!has(layer, id)) continue;
    Page& page = at(layer, id);
    page.stamp = stamp;
    if (page.arrival == kNoArrival && !in_memory(layer, id)) away.push_back(id);
  }
  if (away.empty()) return true;
  make_frames(away.size(), since);
  const auto room = std::min<uint64_t>(away.size(), tiers_.free(Tier::kMemory));
  const auto first = std::span(away).first(room);
  start(layer, first, false);
  for (const PageId id : first) at(layer, id).expected = true;
  paging_.prefetched += room;
  return room == away.size();
}

uint64_t PagePool::spare(uint64_t pages, uint64_t since) {
  settle_arrivals(false);
  if (make_frames(pages, since)) return 0;
  return pages - tiers_.free(Tier::kMemory);
}

uint64_t PagePool::give_up(uint32_t layer, std::span<const PageId> pages, uint64_t count) {
  uint64_t given = 0;
  for (size_t i = pages.size(); i-- > 0 && given < count;) {
    Page& page = at(layer, pages[i]);
    if (page.copy == kNoPlace || !rests_in(Tier::kMemory, layer, page)) continue;
    drop(layer, page);
    ++given;
  }
  return given;
}

}  // namespace reprise
