#include "kv/page_pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <utility>

#include "base/checked.h"

namespace reprise {
namespace {

constexpr size_t kGrowBytes = size_t{2} << 20;  // memory is made writable in steps of a huge page
constexpr uint64_t kReturnFraction = 4;         // free pages kept backed: up to limit / 4

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
  const CheckedSize slab = (CheckedSize(pool.limit_pages_) * pool.page_bytes_).align_up(kGrowBytes);
  const auto reserved = (slab * n_layer + kGrowBytes).value();
  void* memory = MAP_FAILED;
  errno = ENOMEM;
  if (reserved) {
    // Unreadable address space costs nothing until make_writable.
    memory =
        ::mmap(nullptr, *reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  if (memory == MAP_FAILED) {
    return fail(ErrorCode::kOutOfMemory,
                "cannot reserve address space for {} layers of {} MiB KV each: {}; lower the KV "
                "memory limit or lift the limit on address space",
                n_layer, limit_bytes >> 20, std::strerror(errno));
  }
  pool.reservation_ = memory;
  pool.reserved_bytes_ = *reserved;
  pool.slab_bytes_ = *slab.value();
  const uintptr_t start = round_up(reinterpret_cast<uintptr_t>(memory), kGrowBytes);
  auto* base = static_cast<std::byte*>(memory) + (start - reinterpret_cast<uintptr_t>(memory));
  pool.slabs_.resize(n_layer);
  for (Slab& each : pool.slabs_) {
    each.base = base;
    base += pool.slab_bytes_;
  }
  return pool;
}

PagePool::PagePool(PagePool&& other) noexcept { *this = std::move(other); }

PagePool& PagePool::operator=(PagePool&& other) noexcept {
  std::swap(layout_, other.layout_);
  std::swap(page_bytes_, other.page_bytes_);
  std::swap(slab_bytes_, other.slab_bytes_);
  std::swap(limit_pages_, other.limit_pages_);
  std::swap(used_pages_, other.used_pages_);
  std::swap(backed_pages_, other.backed_pages_);
  std::swap(reservation_, other.reservation_);
  std::swap(reserved_bytes_, other.reserved_bytes_);
  std::swap(slabs_, other.slabs_);
  std::swap(reclaim_, other.reclaim_);
  return *this;
}

PagePool::~PagePool() {
  if (reservation_ != nullptr) ::munmap(reservation_, reserved_bytes_);
}

bool PagePool::make_writable(Slab& slab, size_t bytes) const {
  if (bytes <= slab.writable) return true;
  const size_t end = round_up(bytes, kGrowBytes);
  std::byte* from = slab.base + slab.writable;
  const size_t size = end - slab.writable;
  if (::mprotect(from, size, PROT_READ | PROT_WRITE) != 0) return false;
  ::madvise(from, size, MADV_HUGEPAGE);  // a refusal costs speed alone
  slab.writable = end;
  return true;
}

PageId PagePool::allocate(uint32_t layer) {
  if (used_pages_ == limit_pages_) return kNoPage;
  Slab& slab = slabs_[layer];
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
      if (!make_writable(slab, (size_t{page} + 1) * page_bytes_)) return kNoPage;
      slab.references.push_back(0);
    }
    ++backed_pages_;
  }
  slab.references[page] = 1;
  ++used_pages_;
  return page;
}

void PagePool::release(uint32_t layer, PageId page) {
  Slab& slab = slabs_[layer];
  if (--slab.references[page] > 0) return;
  slab.free.push_back(page);
  --used_pages_;
  if (backed_pages_ - used_pages_ > limit_pages_ / kReturnFraction) return_free_pages();
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
  if (from < to) ::madvise(slab.base + from, to - from, MADV_DONTNEED);
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
