#include "base/huge_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <mutex>

namespace reprise {
namespace {

constexpr size_t kHugePage = size_t{2} << 20, kBlock = 16 * kHugePage;

size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

struct Block {
  explicit Block(size_t bytes) : room(bytes) {
    // One page more than asked for, to begin at the start of one; what is not touched costs
    // nothing.
    memory = ::mmap(nullptr, room + kHugePage, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return;
    first = reinterpret_cast<std::byte*>(round_up(reinterpret_cast<uintptr_t>(memory), kHugePage));
    ::madvise(first, room, MADV_HUGEPAGE);  // a refusal costs speed alone
  }
  ~Block() {
    if (memory != MAP_FAILED) ::munmap(memory, room + kHugePage);
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  void* memory;
  std::byte* first = nullptr;
  size_t room, used = 0;
};

}  // namespace

std::shared_ptr<std::byte[]> huge_page_memory(size_t bytes, size_t alignment) {
  static std::mutex mutex;
  static std::weak_ptr<Block> latest;  // alive as long as a piece of it is
  const std::lock_guard lock(mutex);
  std::shared_ptr<Block> block = latest.lock();
  size_t at = block == nullptr ? 0 : round_up(block->used, alignment);
  if (block == nullptr || at > block->room || block->room - at < bytes) {
    block = std::make_shared<Block>(std::max(kBlock, round_up(bytes, kHugePage)));
    if (block->first == nullptr) return nullptr;
    latest = block;
    at = 0;
  }
  block->used = at + bytes;
  return {block, block->first + at};
}

}  // namespace reprise
