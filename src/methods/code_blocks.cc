#include "methods/code_blocks.h"

#include <algorithm>
#include <new>

#include "base/huge_pages.h"

namespace reprise {
namespace {

constexpr size_t kPage = 4096;  // of memory

std::shared_ptr<uint8_t[]> whole_pages(size_t bytes) {
  const std::shared_ptr<std::byte[]> memory = huge_page_memory(bytes, kPage);
  if (memory == nullptr) throw std::bad_alloc();
  return {memory, reinterpret_cast<uint8_t*>(memory.get())};
}

}  // namespace

void CodeBlocks::own(size_t first, size_t end) {
  blocks_.resize((end - run_keys() + kBlock - 1) / kBlock);
  for (size_t i = (first - run_keys()) / kBlock; i < blocks_.size(); ++i) {
    if (blocks_[i] != nullptr && blocks_[i].use_count() == 1) continue;
    Codes own = std::make_shared<uint8_t[]>(planes_ * kBlock);
    if (blocks_[i] != nullptr) std::copy_n(blocks_[i].get(), planes_ * kBlock, own.get());
    blocks_[i] = std::move(own);
  }
}

void CodeBlocks::join(size_t end) {
  size_t joined = 0;
  for (; run_keys() + kRun <= end; joined += kRunBlocks) {
    Codes run = whole_pages(planes_ * kRun);
    for (size_t i = 0; i < kRunBlocks; ++i) {
      const uint8_t* block = blocks_[joined + i].get();
      for (size_t plane = 0; plane < planes_; ++plane) {
        std::copy_n(block + plane * kBlock, kBlock, run.get() + plane * kRun + i * kBlock);
      }
    }
    runs_.push_back(std::move(run));
  }
  blocks_.erase(blocks_.begin(), blocks_.begin() + static_cast<std::ptrdiff_t>(joined));
}

void CodeBlocks::truncate(size_t length) {
  if (length < run_keys()) {
    const Codes cut = std::move(runs_[length / kRun]);
    runs_.resize(length / kRun);
    blocks_.clear();
    own(run_keys(), length);
    for (size_t i = 0; i < blocks_.size() * planes_; ++i) {
      const size_t plane = i % planes_, block = i / planes_;
      std::copy_n(cut.get() + plane * kRun + block * kBlock, kBlock,
                  blocks_[block].get() + plane * kBlock);
    }
  }
  blocks_.resize((length - run_keys() + kBlock - 1) / kBlock);
}

}  // namespace reprise
