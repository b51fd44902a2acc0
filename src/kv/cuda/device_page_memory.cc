#include "kv/cuda/device_page_memory.h"

#include <bit>

#include "base/try.h"
#include "kernels/cuda/page_copy.h"

namespace reprise {
namespace {

using kernels::cuda::CudaEvent;
using kernels::cuda::DeviceScope;

constexpr std::string_view kWhat = "moving keys and values";

class JointPageMemory : public PageMemory {
 public:
  using Devices = std::vector<std::unique_ptr<DevicePageMemory>>;
  JointPageMemory(Devices devices, size_t page_bytes)
      : devices_(std::move(devices)),
        page_bytes_(page_bytes),
        part_bytes_(page_bytes / devices_.size()) {}

  std::byte* slab(uint32_t index) const override { return devices_.front()->slab(index); }
  bool provide(std::byte* from, size_t bytes) override {
    const size_t begin = part_offset(from), end = part_offset(from + bytes);
    for (const auto& device : devices_) device->provide(device->slab(0) + begin, end - begin);
    return true;
  }
  void give_back(std::byte*, size_t) override {}
  bool reachable() const override { return false; }
  Status read(std::byte* host, const std::byte* from, size_t bytes) override {
    return each_part(from, bytes, [&](DevicePageMemory& device, std::byte* part, size_t at) {
      return device.read(host + at, part, part_bytes_);
    });
  }
  Status write(std::byte* to, const std::byte* host, size_t bytes) override {
    return each_part(to, bytes, [&](DevicePageMemory& device, std::byte* part, size_t at) {
      return device.write(part, host + at, part_bytes_);
    });
  }
  void copy(std::byte* to, const std::byte* from, size_t bytes) override {
    for (const auto& device : devices_) {
      std::byte* const start = device->slab(0);
      device->copy(start + part_offset(to), start + part_offset(from), bytes / devices_.size());
    }
  }
  Status start_copies(std::span<const PageCopy> copies, size_t, bool arriving) override {
    for (const auto& device : devices_) {
      REPRISE_CHECK(device->start_copies(copies, part_bytes_, arriving));
    }
    return {};
  }
  void join() override {
    for (const auto& device : devices_) device->join();
  }
  Status written(std::span<const uint32_t> pages) override {
    for (const auto& device : devices_) REPRISE_CHECK(device->written(pages));
    return {};
  }
  KvPaging paging() const override {
    KvPaging all;
    for (const auto& device : devices_) all = all + device->paging();
    return all;
  }

 private:
  /// In any device's slab, of the pages before an address.
  size_t part_offset(const std::byte* page) const {
    return static_cast<size_t>(page - slab(0)) / page_bytes_ * part_bytes_;
  }
  /// Calls transfer with every device's part of every page and where in them it belongs.
  template <class Transfer>
  Status each_part(const std::byte* pages, size_t bytes, Transfer&& transfer) const {
    for (size_t i = 0; i < devices_.size(); ++i) {
      for (size_t at = 0; at < bytes; at += page_bytes_) {
        std::byte* const part = devices_[i]->slab(0) + part_offset(pages + at);
        REPRISE_CHECK(transfer(*devices_[i], part, at + i * part_bytes_));
      }
    }
    return {};
  }

  Devices devices_;
  size_t page_bytes_, part_bytes_;
};

}  // namespace

std::unique_ptr<PageMemory> joint_page_memory(
    std::vector<std::unique_ptr<DevicePageMemory>> devices, size_t page_bytes) {
  if (devices.size() == 1) return std::move(devices.front());
  return std::make_unique<JointPageMemory>(std::move(devices), page_bytes);
}

Result<std::unique_ptr<DevicePageMemory>> DevicePageMemory::create(const Size& size,
                                                                   cudaStream_t stream) {
  std::unique_ptr<DevicePageMemory> memory(new DevicePageMemory(size, stream));
  REPRISE_CHECK(memory->allocate());
  return memory;
}

DevicePageMemory::~DevicePageMemory() {
  if (copies_.get() != nullptr) cudaStreamSynchronize(copies_.get());
}

Status DevicePageMemory::allocate() {
  const size_t device = size_.device_pages * size_.page_bytes;
  if (size_.host_pages == 0) return memory_.reserve(device, "keys and values");
  REPRISE_CHECK(split_.reserve(device + size_.hot_pages * size_.page_bytes,
                               size_.host_pages * size_.page_bytes));
  if (size_.hot_pages > 0) {
    HotPages::Size hot;
    hot.layers = size_.layers;
    hot.n_kv_head = size_.n_kv_head;
    hot.first_slot = static_cast<uint32_t>(size_.device_pages);
    hot.slots = static_cast<uint32_t>(size_.hot_pages);
    hot.first_host = static_cast<uint32_t>(first_host());
    hot.host_frames = static_cast<uint32_t>(size_.host_pages);
    hot.part_bytes = size_.page_bytes / size_.n_kv_head;
    REPRISE_TRY(hot_, HotPages::create(hot, split_.data()));
  }
  REPRISE_TRY(copies_, kernels::cuda::CudaStream::create());
  REPRISE_TRY(asked_, CudaEvent::create());
  REPRISE_TRY(copied_, CudaEvent::create());
  arriving_.resize(size_.layers);
  for (uint32_t layer = 0; layer < size_.layers; ++layer) {
    REPRISE_TRY(arrived_.emplace_back(), CudaEvent::create());
  }
  return {};
}

bool DevicePageMemory::provide(std::byte* from, size_t bytes) {
  const uint64_t page = (static_cast<size_t>(from - slab(0)) + bytes) / size_.page_bytes;
  const uint64_t device = size_.device_pages, all = first_host() + size_.host_pages;
  if (from < slab(0) + device * size_.page_bytes)
    used_device_ = std::max(used_device_, std::min(page, device));
  else
    used_host_ = std::max(used_host_, std::min(page, all) - first_host());
  return true;
}

Status DevicePageMemory::for_used(const ChangedFn& fn) const {
  const auto first = static_cast<uint32_t>(first_host());
  REPRISE_CHECK(fn({nullptr, 0, static_cast<uint32_t>(used_device_)}, stream_));
  return fn({nullptr, first, static_cast<uint32_t>(used_host_)}, stream_);
}

Status DevicePageMemory::tell(const kernels::cuda::PageIds& pages, cudaStream_t stream) {
  if (hot_ != nullptr) REPRISE_CHECK(hot_->forget(pages, stream));
  return changed_ ? changed_(pages, stream) : Status();
}

Status DevicePageMemory::transfer(void* to, const void* from, size_t bytes) {
  REPRISE_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), kWhat);
  REPRISE_CUDA(cudaStreamSynchronize(stream_), kWhat);
  return {};
}

Status DevicePageMemory::read(std::byte* host, const std::byte* from, size_t bytes) {
  return transfer(host, from, bytes);
}

Status DevicePageMemory::write(std::byte* to, const std::byte* host, size_t bytes) {
  return transfer(to, host, bytes);
}

void DevicePageMemory::copy(std::byte* to, const std::byte* from, size_t bytes) {
  // A failure is the device's, and the next pass reports it.
  cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_);
}

Result<DevicePageMemory::Lists*> DevicePageMemory::free_lists(size_t count) {
  auto found = std::find_if(lists_.begin(), lists_.end(), [](const Lists& lists) {
    return lists.done.reached().value_or(false);
  });
  if (found == lists_.end()) {
    REPRISE_TRY(auto event, CudaEvent::create());
    found = lists_.insert(lists_.end(), Lists{{}, std::move(event)});
  }
  REPRISE_CHECK(found->ids.reserve(std::bit_ceil(count), kWhat));
  return &*found;
}

Status DevicePageMemory::start_copies(std::span<const PageCopy> copies, size_t page_bytes,
                                      bool arriving) {
  const DeviceScope scope(device_);
  cudaStream_t stream = copies_.get();
  REPRISE_TRY(Lists* const lists, free_lists(2 * copies.size()));
  uint32_t* const from = lists->ids.data();
  uint32_t* const to = from + copies.size();
  for (size_t i = 0; i < copies.size(); ++i) {
    from[i] = copies[i].from;
    to[i] = copies[i].to;
  }
  REPRISE_CHECK(asked_.record(stream_));
  REPRISE_CHECK(asked_.hold(stream));
  for (size_t first = 0; first < copies.size();) {
    const uint32_t layer = copies[first].layer;
    size_t end = first;
    while (end < copies.size() && copies[end].layer == layer) ++end;
    const auto count = static_cast<uint32_t>(end - first);
    REPRISE_CUDA(
        kernels::cuda::copy_pages(slab(0), page_bytes, from + first, to + first, count, stream),
        kWhat);
    REPRISE_CHECK(tell({to + first, 0, count}, stream));
    if (arriving) {
      REPRISE_CHECK(arrived_[layer].record(stream));
      arriving_[layer] = true;
    }
    first = end;
  }
  REPRISE_CHECK(lists->done.record(stream));
  return copied_.record(stream);
}

void DevicePageMemory::join() {
  if (size_.host_pages == 0) return;
  // A failure is the device's, and the next pass reports it.
  static_cast<void>(copied_.hold(stream_));
  arriving_.assign(arriving_.size(), false);
}

Status DevicePageMemory::written(std::span<const uint32_t> pages) {
  if (pages.empty()) return {};
  const DeviceScope scope(device_);
  REPRISE_TRY(Lists* const lists, free_lists(pages.size()));
  std::copy(pages.begin(), pages.end(), lists->ids.data());
  REPRISE_CHECK(tell({lists->ids.data(), 0, static_cast<uint32_t>(pages.size())}, stream_));
  return lists->done.record(stream_);
}

Status DevicePageMemory::await(uint32_t layer) {
  if (layer >= arriving_.size() || !arriving_[layer]) return {};
  arriving_[layer] = false;
  return arrived_[layer].hold(stream_);
}

Status DevicePageMemory::await_all() {
  for (uint32_t layer = 0; layer < arriving_.size(); ++layer) REPRISE_CHECK(await(layer));
  return {};
}

}  // namespace reprise
