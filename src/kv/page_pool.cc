#include "kv/page_pool.h"

#include <algorithm>

#include "base/try.h"

namespace reprise {
namespace {

// What is moved down together: this part of the memory, but not more than so many bytes.
constexpr uint64_t kBatchFraction = 32, kBatchBytes = uint64_t{128} << 20;
constexpr uint64_t kColdPages = 1 << 16;            // found by one look through all pages
constexpr uint64_t kMinStep = 16, kMaxStep = 8192;  // pages that are brought back together

}  // namespace

Result<PagePool> PagePool::create(const kernels::KvLayout& layout, uint32_t n_layer,
                                  uint64_t limit_bytes, bool one_slab) {
  const size_t page_bytes = layout.page_bytes();
  if (n_layer == 0 || page_bytes == 0) {
    return fail(ErrorCode::kInvalidArgument, "a KV pool needs layers, KV heads and a head size");
  }
  const uint64_t pages = std::min<uint64_t>(limit_bytes / page_bytes, kMaxFrames);
  if (pages < n_layer) {
    return fail(ErrorCode::kOutOfMemory,
                "{} bytes of KV memory hold less than one page of {} bytes in each of {} layers; "
                "raise the KV memory limit",
                limit_bytes, page_bytes, n_layer);
  }
  REPRISE_TRY(auto frames, PageFrames::create(page_bytes, one_slab ? 1 : n_layer, pages));
  return create(std::move(frames), layout, n_layer, {});
}

PagePool PagePool::create(PageFrames frames, const kernels::KvLayout& layout, uint32_t n_layer,
                          ClearSlots clear) {
  PagePool pool(std::move(frames));
  pool.layout_ = layout;
  pool.layers_ = n_layer;
  pool.clear_slots_ = std::move(clear);
  pool.names_.resize(pool.tiers_.frames().slabs());
  return pool;
}

Status PagePool::add_disk(const std::string& folder, uint64_t bytes) {
  REPRISE_TRY(auto file, PageFile::create(folder, bytes, page_bytes(), memory().reachable()));
  tiers_.add(std::move(file));
  return {};
}

uint64_t PagePool::limit_pages() const {
  return tiers_.limit(Tier::kMemory) + tiers_.limit(Tier::kHost) + tiers_.limit(Tier::kDisk);
}

uint64_t PagePool::free_pages() const {
  return tiers_.free(Tier::kMemory) + tiers_.free(Tier::kHost) + tiers_.free(Tier::kDisk) +
         copies_ + under_way_.size();
}

KvTiers PagePool::tiers() const {
  KvTiers tiers = tiers_.stats();
  tiers.paging = paging();
  return tiers;
}

PageId PagePool::allocate(uint32_t layer) {
  Place place = tiers_.take(Tier::kMemory, layer);
  if (place == kNoPlace) place = tiers_.take(Tier::kHost, layer);
  if (place == kNoPlace) return kNoPage;
  Names& names = this->names(layer);
  if (names.free.empty()) {
    names.free.push_back(static_cast<PageId>(names.pages.size()));
    names.pages.emplace_back();
  }
  const PageId page = names.free.back();
  names.free.pop_back();
  names.pages[page] = {.references = 1, .uses = 1, .place = place};
  return page;
}

void PagePool::retain(uint32_t layer, PageId page, bool in_use) {
  ++at(layer, page).references;
  if (in_use) hold(layer, page);
}

void PagePool::hold(uint32_t layer, PageId page) {
  Page& held = at(layer, page);
  if (held.uses++ == 0) count_resting(layer, held, -1);
}

void PagePool::rest(uint32_t layer, PageId page, uint64_t stamp) {
  Page& left = at(layer, page);
  left.stamp = stamp;
  if (--left.uses == 0) count_resting(layer, left, 1);
}

void PagePool::release(uint32_t layer, PageId page, bool in_use) {
  Page& left = at(layer, page);
  if (in_use && --left.uses == 0) count_resting(layer, left, 1);
  if (--left.references > 0) return;
  if (left.arrival != kNoArrival) arrive(left.arrival);
  if (left.expected) ++paging_.unused;
  forget_copy(layer, left);
  if (left.place != kNoPlace) {
    count_resting(layer, left, -1);
    tiers_.give_back(layer, left.place);
  }
  names(layer).free.push_back(page);
}

void PagePool::count_resting(uint32_t layer, const Page& page, int change) {
  if (page.place == kNoPlace) return;
  resting_[static_cast<size_t>(tiers_.tier(layer, page.place))] += static_cast<uint64_t>(change);
}

void PagePool::clear_slots(std::byte* page, size_t first) const {
  if (clear_slots_) return clear_slots_(page, first);
  const std::vector<float> zeros(size_t{layout_.n_kv_head} * layout_.head_dim);
  for (size_t slot = first; slot < kPageTokens; ++slot) {
    kernels::store_token(layout_, page, slot, zeros.data(), zeros.data());
  }
}

void PagePool::copy(uint32_t layer, PageId to, PageId from) {
  tiers_.settle();
  memory().copy(data(layer, to), data(layer, from), page_bytes());
}

Status PagePool::read(std::byte* host, uint32_t layer, PageId page) {
  return tiers_.read(host, layer, at(layer, page).place);
}

Status PagePool::write(uint32_t layer, std::span<const PageId> pages, const std::byte* host) {
  std::vector<uint32_t> frames;
  for (const PageId page : pages) {
    REPRISE_CHECK(memory().write(data(layer, page), host, page_bytes()));
    host += page_bytes();
    frames.push_back(frame(layer, page));
  }
  return memory().written(frames);
}

bool PagePool::make_room(uint64_t pages, uint64_t spare) {
  const uint64_t wanted = pages + spare;
  for (int attempt = 0; attempt < 2; ++attempt) {  // once more when the disk failed
    if (free_pages() < wanted && reclaim_) reclaim_(wanted);
    if (move_down(pages) && (room() >= pages || under_way_.empty())) break;
    settle_arrivals(true);  // what is being read takes memory and cannot be moved
  }
  return room() >= pages && free_pages() >= wanted;
}

uint64_t PagePool::batch() const {
  return std::min(tiers_.limit(Tier::kMemory) / kBatchFraction, kBatchBytes / page_bytes());
}

bool PagePool::move_down(uint64_t pages) {
  if (tiers_.limit(Tier::kHost) + tiers_.limit(Tier::kDisk) == 0) return true;
  const uint64_t batch = this->batch();
  const uint64_t free = tiers_.free(Tier::kMemory);
  // Beyond what is needed now, so that the next passes need not wait for copies.
  const bool ahead = resting_[0] >= batch && free < pages + batch;
  if (free < pages || ahead) {
    if (!demote(Tier::kMemory, pages + 2 * batch - free)) return false;
  }
  return room() >= pages || demote(Tier::kHost, pages - room());
}

bool PagePool::demote(Tier tier, uint64_t wanted, uint64_t before) {
  const uint64_t host = tier == Tier::kMemory ? tiers_.free(Tier::kHost) : 0;
  wanted = std::min(
      {wanted, resting_[static_cast<size_t>(tier)], host + tiers_.free(Tier::kDisk) + copies_});
  if (wanted == 0) return true;
  if (tier == Tier::kMemory && host < wanted) {
    if (!demote(Tier::kHost, wanted - host + batch())) return false;
  }
  std::vector<Named> pages = least_recently_used(tier, wanted, before);
  if (copies_ > 0) {
    std::erase_if(pages, [&](const Named& named) {
      Page& page = at(named.layer, named.page);
      if (page.copy == kNoPlace) return false;
      drop(named.layer, page);
      return true;
    });
    free_slots(pages.size());
  }
  const auto failed = move(pages, [&](uint32_t layer, const Page&) {
    Place to = kNoPlace;
    if (tier == Tier::kMemory) to = tiers_.take_for_move(Tier::kHost, layer);
    return to != kNoPlace ? to : tiers_.take_for_move(Tier::kDisk, layer);
  });
  return failed.empty();
}

bool PagePool::rests_in(Tier tier, uint32_t layer, const Page& page) const {
  return page.references > 0 && page.uses == 0 && page.place != kNoPlace &&
         tiers_.tier(layer, page.place) == tier;
}

std::vector<PagePool::Named> PagePool::least_recently_used(Tier tier, uint64_t count,
                                                           uint64_t before) {
  std::vector<Named>& cold = cold_[static_cast<size_t>(tier)];
  std::vector<Named> found;
  for (const bool look : {false, true}) {
    if (look) cold = find_cold(tier, std::max(count, kColdPages));
    found.clear();
    for (; found.size() < count && !cold.empty(); cold.pop_back()) {
      const Named& named = cold.back();
      const Page& page = at(named.layer, named.page);
      if (page.stamp != named.order || !rests_in(tier, named.layer, page)) continue;
      if (page.stamp >= before) return found;  // and so is every other page
      found.push_back(named);
    }
    if (found.size() == count) break;
  }
  return found;
}

std::vector<PagePool::Named> PagePool::find_cold(Tier tier, uint64_t count) const {
  std::vector<Named> found;
  for (uint32_t slab = 0; slab < names_.size(); ++slab) {
    const auto& pages = names_[slab].pages;
    for (PageId id = 0; id < pages.size(); ++id) {
      if (rests_in(tier, slab, pages[id])) found.push_back({pages[id].stamp, slab, id});
    }
  }
  const auto newer = [](const Named& a, const Named& b) { return a.order > b.order; };
  if (found.size() > count) {
    const auto rest = found.end() - static_cast<std::ptrdiff_t>(count);
    std::nth_element(found.begin(), rest, found.end(), newer);
    found.erase(found.begin(), rest);
  }
  std::sort(found.begin(), found.end(), newer);
  return found;
}

std::vector<PagePool::Named> PagePool::move(std::span<const Named> pages, const PlaceFn& place) {
  std::vector<PageMove> moves;
  std::vector<Named> moved, failed;
  for (const Named& named : pages) {
    const Page& page = at(named.layer, named.page);
    const Place to = place(named.layer, page);
    if (to == kNoPlace) continue;
    moves.push_back({named.layer, page.place, to, static_cast<uint32_t>(moved.size())});
    moved.push_back(named);
  }
  if (moves.empty()) return failed;
  tiers_.move(moves);
  ++moves_;
  for (const PageMove& move : moves) {
    const Named& named = moved[move.tag];
    Page& page = at(named.layer, named.page);
    const bool resting = page.uses == 0;
    if (resting) count_resting(named.layer, page, -1);
    page.place = move.result;
    if (resting) count_resting(named.layer, page, 1);
    if (move.result != move.to) failed.push_back(named);
  }
  return failed;
}

Result<size_t> PagePool::bring_back(std::span<const std::vector<PageId>> tables) {
  size_t lost = ~size_t{0};
  std::vector<Named> away;
  if (tiers_.used(Tier::kHost) + tiers_.used(Tier::kDisk) + tiers_.lost() == 0) return lost;
  settle_arrivals(true);
  for (uint32_t layer = 0; layer < tables.size(); ++layer) {
    for (size_t block = 0; block < tables[layer].size(); ++block) {
      const PageId page = tables[layer][block];
      if (page == kNoPage) continue;
      forget_copy(layer, at(layer, page));  // it may be written from now on
      if (!has(layer, page))
        lost = std::min(lost, block);
      else if (tiers_.tier(layer, at(layer, page).place) != Tier::kMemory)
        away.push_back({block, layer, page});
    }
  }
  const PlaceFn nearer = [this](uint32_t layer, const Page& page) {
    const Place to = tiers_.take_for_move(Tier::kMemory, layer);
    const bool host = to == kNoPlace && tiers_.tier(layer, page.place) == Tier::kDisk;
    return host ? tiers_.take_for_move(Tier::kHost, layer) : to;
  };
  const size_t most = std::clamp(tiers_.limit(Tier::kMemory) / kBatchFraction, kMinStep, kMaxStep);
  for (size_t first = 0; first < away.size(); first += most) {
    const auto step = std::span(away).subspan(first, std::min(most, away.size() - first));
    make_room(step.size());
    for (const Named& named : move(step, nearer)) {
      if (!has(named.layer, named.page)) lost = std::min<size_t>(lost, named.order);
    }
  }
  for (const Named& named : away) {
    if (!has(named.layer, named.page)) continue;
    const Tier tier = tiers_.tier(named.layer, at(named.layer, named.page).place);
    if (tier == Tier::kHost) tiers_.settle();  // read in place, wherever copies to it stand
    if (tier != Tier::kDisk) continue;
    return fail(ErrorCode::kOutOfMemory,
                "no KV memory to read {} pages from disk into; raise --kv-memory{}", away.size(),
                disk_trouble());
  }
  return lost;
}

}  // namespace reprise
