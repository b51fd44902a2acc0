// Pages in the memory of a CUDA device, and of the host beside it.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/page_bounds.h"
#include "kernels/cuda/split_memory.h"
#include "kv/cuda/hot_pages.h"
#include "kv/page_memory.h"

namespace reprise {

/// One slab. Passes run on a stream, which is idle when it goes; copies between the device's memory
/// and the host's on a stream of their own. They begin after what the passes' stream was given
/// before, and that stream waits for them only where it must.
class DevicePageMemory : public PageMemory {
 public:
  struct Size {
    uint64_t device_pages = 0, host_pages = 0;
    size_t page_bytes = 0;
    uint32_t layers = 0;
    uint64_t hot_pages = 0;  // between the two, in the device's memory: slots of HotPages
    uint32_t n_kv_head = 0;  // where there are hot pages
  };
  /// On the current device, zeroed.
  static Result<std::unique_ptr<DevicePageMemory>> create(const Size& size, cudaStream_t stream);
  ~DevicePageMemory() override;

  std::byte* slab(uint32_t) const override {
    return size_.host_pages > 0 ? split_.data() : memory_.data();
  }
  bool provide(std::byte* from, size_t bytes) override;
  void give_back(std::byte*, size_t) override {}
  bool reachable() const override { return false; }
  Status read(std::byte* host, const std::byte* from, size_t bytes) override;
  Status write(std::byte* to, const std::byte* host, size_t bytes) override;
  void copy(std::byte* to, const std::byte* from, size_t bytes) override;
  Status start_copies(std::span<const PageCopy> copies, size_t page_bytes, bool arriving) override;
  void join() override;
  Status written(std::span<const uint32_t> pages) override;
  KvPaging paging() const override { return hot_ != nullptr ? hot_->paging() : KvPaging(); }

  bool has_host_pages() const { return size_.host_pages > 0; }
  size_t page_bytes() const { return size_.page_bytes; }
  /// Null without hot pages.
  HotPages* hot() const { return hot_.get(); }
  /// Lets the passes' stream wait for what is still arriving of a layer.
  Status await(uint32_t layer);
  Status await_all();

  /// Tells of pages whose content came from elsewhere; what it enqueues on the stream comes before
  /// whatever reads them.
  using ChangedFn = std::function<Status(const kernels::cuda::PageIds& pages, cudaStream_t stream)>;
  void set_changed(ChangedFn changed) { changed_ = std::move(changed); }
  /// Calls fn with all pages that may hold something.
  Status for_used(const ChangedFn& fn) const;

 private:
  struct Lists {  // page ids that kernels read
    kernels::cuda::PinnedBuffer<uint32_t> ids;
    kernels::cuda::CudaEvent done;
  };
  DevicePageMemory(const Size& size, cudaStream_t stream) : size_(size), stream_(stream) {
    cudaGetDevice(&device_);
  }
  Status allocate();
  uint64_t first_host() const { return size_.device_pages + size_.hot_pages; }
  /// Tells those who keep what they know of pages.
  Status tell(const kernels::cuda::PageIds& pages, cudaStream_t stream);
  Status transfer(void* to, const void* from, size_t bytes);
  /// Lists with room that no kernel reads any more; theirs is the next event.
  Result<Lists*> free_lists(size_t count);

  Size size_;
  int device_ = 0;
  cudaStream_t stream_;
  kernels::cuda::DeviceBuffer<std::byte> memory_;  // without host pages
  kernels::cuda::SplitMemory split_;               // with them
  std::unique_ptr<HotPages> hot_;
  uint64_t used_device_ = 0, used_host_ = 0;  // pages that were ever handed out
  kernels::cuda::CudaStream copies_;
  kernels::cuda::CudaEvent asked_;                 // of the passes' stream
  kernels::cuda::CudaEvent copied_;                // the last copies
  std::vector<kernels::cuda::CudaEvent> arrived_;  // [layers]
  std::vector<bool> arriving_;                     // [layers] the passes' stream has not waited
  std::deque<Lists> lists_;
  ChangedFn changed_;
};

/// Devices hold equal parts of every page of page_bytes, in their order: those of their KV heads.
/// Addresses are those that pages had if the first device held them whole.
std::unique_ptr<PageMemory> joint_page_memory(
    std::vector<std::unique_ptr<DevicePageMemory>> devices, size_t page_bytes);

}  // namespace reprise
