#include <linux/mman.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/checked.h"
#include "kv/page_memory.h"

namespace reprise {
namespace {

class HostPageMemory : public PageMemory {
 public:
  HostPageMemory(void* reservation, size_t reserved, size_t slab_bytes)
      : reservation_(reservation), reserved_(reserved), slab_bytes_(slab_bytes) {
    const auto start = reinterpret_cast<uintptr_t>(reservation);
    first_ = static_cast<std::byte*>(reservation) + (kSlabAlignment - start % kSlabAlignment);
  }
  ~HostPageMemory() override { ::munmap(reservation_, reserved_); }

  std::byte* slab(uint32_t index) const override { return first_ + index * slab_bytes_; }
  bool provide(std::byte* from, size_t bytes) override {
    if (::mprotect(from, bytes, PROT_READ | PROT_WRITE) != 0) return false;
    const size_t before = static_cast<size_t>(from - first_) % kSlabAlignment;
    if (before + bytes < kSlabAlignment) return true;  // to zero a huge page would cost more
    // A refusal of either costs speed alone.
    ::madvise(from - before, before + bytes, MADV_HUGEPAGE);
    if (before > 0) ::madvise(from - before, kSlabAlignment, MADV_COLLAPSE);
    return true;
  }
  void give_back(std::byte* from, size_t bytes) override { ::madvise(from, bytes, MADV_DONTNEED); }
  bool reachable() const override { return true; }
  Status read(std::byte* host, const std::byte* from, size_t bytes) override {
    std::memcpy(host, from, bytes);
    return {};
  }
  Status write(std::byte* to, const std::byte* host, size_t bytes) override {
    std::memcpy(to, host, bytes);
    return {};
  }
  void copy(std::byte* to, const std::byte* from, size_t bytes) override {
    std::memcpy(to, from, bytes);
  }

 private:
  void* reservation_;
  size_t reserved_, slab_bytes_;
  std::byte* first_;
};

}  // namespace

Result<std::unique_ptr<PageMemory>> host_page_memory(uint32_t slabs, size_t slab_bytes) {
  const auto reserved = (CheckedSize(slab_bytes) * slabs + kSlabAlignment).value();
  void* memory = MAP_FAILED;
  errno = ENOMEM;
  if (reserved) {
    // Unreadable address space costs nothing until it is provided.
    memory =
        ::mmap(nullptr, *reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  if (memory == MAP_FAILED) {
    return fail(ErrorCode::kOutOfMemory,
                "cannot reserve address space for {} layers of {} MiB KV each: {}; lower the KV "
                "memory limit or lift the limit on address space",
                slabs, slab_bytes >> 20, std::strerror(errno));
  }
  return std::make_unique<HostPageMemory>(memory, *reserved, slab_bytes);
}

}  // namespace reprise
