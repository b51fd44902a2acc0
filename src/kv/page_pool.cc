#include "kv/page_pool.h"

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "base/checked.h"
#include "base/try.h"

namespace reprise {
namespace {

constexpr uint64_t kReturnFraction = 4;  // free pages kept backed: up to limit / 4

uintptr_t round_up(uintptr_t value, size_t to) { return (value + to - 1) / to * to; }

}  // namespace

Result<PagePool> PagePool::create(const kernels::KvLayout& layout, uint32_t n_layer,
                                  uint64_t limit_bytes) {
  if (n_layer == 0 || layout.page_bytes() == 0) {
    return fail(ErrorCode::kInvalidArgument, "a KV pool needs layers, KV heads and a head size");
  }
  PagePool pool;
  pool.layout_ = layout;
  pool.page_bytes_ = layout.page_bytes();
  pool.limit_pages_ = std::min<uint64_t>(limit_bytes / pool.page_bytes_, kNoPage);
  if (pool.limit_pages_ < n_layer) {
    return fail(ErrorCode::kOutOfMemory,
                "{} bytes of KV memory hold less than one page of {} bytes in each of {} layers; "
                "raise the KV memory limit",
                limit_bytes, pool.page_bytes_, n_layer);
  }
  const auto slab_bytes =
      (CheckedSize(pool.limit_pages_) * pool.page_bytes_).align_up(kSlabAlignment).value();
  REPRISE_TRY(pool.memory_, host_page_memory(n_layer, slab_bytes.value_or(~size_t{0})));
  pool.layers_ = n_layer;
  pool.slabs_.resize(n_layer);
  for (uint32_t layer = 0; layer < n_layer; ++layer) {
    pool.slabs_[layer].base = pool.memory_->slab(layer);
  }
  return pool;
}

PagePool PagePool::create(std::unique_ptr<PageMemory> memory, const kernels::KvLayout& layout,
                          size_t page_bytes, uint32_t n_layer, uint64_t pages, ClearSlots clear) {
  PagePool pool;
  pool.layout_ = layout;
  pool.page_bytes_ = page_bytes;
  pool.layers_ = n_layer;
  pool.limit_pages_ = std::min<uint64_t>(pages, kNoPage);
  pool.memory_ = std::move(memory);
  pool.clear_slots_ = std::move(clear);
  pool.slabs_.resize(1);
  pool.slabs_.front().base = pool.memory_->slab(0);
  return pool;
}

bool PagePool::provide(Slab& slab, size_t bytes) {
  if (bytes <= slab.provided) return true;
  const size_t end = round_up(bytes, kSlabAlignment);
  if (!memory_->provide(slab.base + slab.provided, end - slab.provided)) return false;
  slab.provided = end;
  return true;
}

PageId PagePool::allocate(uint32_t layer) {
  if (used_pages_ == limit_pages_) return kNoPage;
  Slab& slab = this->slab(layer);
  PageId page = kNoPage;
  if (!slab.free.empty()) {
    page = slab.free.back();
    slab.free.pop_back();
  } else {
    if (backed_pages_ == limit_pages_) return_one_page();
    if (!slab.returned.empty()) {
      page = slab.returned.back();
      slab.returned.pop_back();
    } else {
      page = static_cast<PageId>(slab.references.size());
      if (!provide(slab, (size_t{page} + 1) * page_bytes_)) return kNoPage;
      slab.references.push_back(0);
    }
    ++backed_pages_;
  }
  slab.references[page] = 1;
  ++used_pages_;
  return page;
}

void PagePool::release(uint32_t layer, PageId page) {
  Slab& slab = this->slab(layer);
  if (--slab.references[page] > 0) return;
  slab.free.push_back(page);
  --used_pages_;
  if (backed_pages_ - used_pages_ > limit_pages_ / kReturnFraction) return_free_pages();
}

void PagePool::clear_slots(std::byte* page, size_t first) const {
  if (clear_slots_) return clear_slots_(page, first);
  const std::vector<float> zeros(size_t{layout_.n_kv_head} * layout_.head_dim);
  for (size_t slot = first; slot < kPageTokens; ++slot) {
    kernels::store_token(layout_, page, slot, zeros.data(), zeros.data());
  }
}

bool PagePool::make_room(uint64_t pages) {
  if (free_pages() < pages && reclaim_) reclaim_(pages);
  return free_pages() >= pages;
}

void PagePool::give_back(const Slab& slab, size_t begin, size_t end) const {
  const auto system_page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const auto in_use = [&](size_t from_byte, size_t to_byte) {  // by a page that overlaps the range
    if (from_byte == to_byte) return false;
    const size_t stop = std::min((to_byte - 1) / page_bytes_ + 1, slab.references.size());
    for (size_t page = from_byte / page_bytes_; page < stop; ++page) {
      if (slab.references[page] > 0) return true;
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

void PagePool::return_one_page() {
  for (Slab& slab : slabs_) {
    if (slab.free.empty()) continue;
    const PageId page = slab.free.back();
    slab.free.pop_back();
    slab.returned.push_back(page);
    give_back(slab, page, size_t{page} + 1);
    --backed_pages_;
    return;
  }
}

void PagePool::return_free_pages() {
  for (Slab& slab : slabs_) {
    if (slab.free.empty()) continue;
    slab.returned.insert(slab.returned.end(), slab.free.begin(), slab.free.end());
    slab.free.clear();
    std::sort(slab.returned.begin(), slab.returned.end(), std::greater<>());
    for (size_t i = 0; i < slab.returned.size();) {
      const size_t end = size_t{slab.returned[i]} + 1;
      size_t begin = slab.returned[i];
      for (++i; i < slab.returned.size() && slab.returned[i] + 1 == begin; ++i) --begin;
      give_back(slab, begin, end);
    }
  }
  backed_pages_ = used_pages_;
}

}  // namespace reprise
