#include "kv/cuda/device_page_memory.h"

#include "base/try.h"

namespace reprise {
namespace {

class DevicePageMemory : public PageMemory {
 public:
  DevicePageMemory(std::vector<DevicePages> devices, size_t page_bytes)
      : devices_(std::move(devices)),
        page_bytes_(page_bytes),
        part_bytes_(page_bytes / devices_.size()) {}

  /// A whole page's name: its place if the first device held all of it.
  std::byte* slab(uint32_t) const override { return devices_.front().memory.data(); }
  bool provide(std::byte* from, size_t bytes) override {
    // The pool asks for whole steps of kSlabAlignment.
    const size_t size = devices_.front().memory.size() / part_bytes_ * page_bytes_;
    return from + bytes < slab(0) + size + kSlabAlignment;
  }
  void give_back(std::byte*, size_t) override {}
  bool reachable() const override { return false; }

  Status read(std::byte* host, const std::byte* from, size_t bytes) override {
    return each_part(from, bytes, [&](std::byte* part, size_t at, cudaStream_t stream) {
      return cudaMemcpyAsync(host + at, part, part_bytes_, cudaMemcpyDeviceToHost, stream);
    });
  }
  Status write(std::byte* to, const std::byte* host, size_t bytes) override {
    return each_part(to, bytes, [&](std::byte* part, size_t at, cudaStream_t stream) {
      return cudaMemcpyAsync(part, host + at, part_bytes_, cudaMemcpyHostToDevice, stream);
    });
  }
  void copy(std::byte* to, const std::byte* from, size_t bytes) override {
    for (const DevicePages& device : devices_) {
      for (size_t at = 0; at < bytes; at += page_bytes_) {
        // A failure is the device's, and the next pass reports it.
        cudaMemcpyAsync(part_of(device, to + at), part_of(device, from + at), part_bytes_,
                        cudaMemcpyDeviceToDevice, device.stream);
      }
    }
  }

 private:
  std::byte* part_of(const DevicePages& device, const std::byte* page) const {
    return device.memory.data() + static_cast<size_t>(page - slab(0)) / page_bytes_ * part_bytes_;
  }

  /// Calls transfer with every device's part of the pages and where in them it belongs; waits.
  template <class Transfer>
  Status each_part(const std::byte* pages, size_t bytes, Transfer&& transfer) const {
    constexpr std::string_view kWhat = "copying keys and values";
    size_t skipped = 0;
    for (const DevicePages& device : devices_) {
      for (size_t at = 0; at < bytes; at += page_bytes_) {
        REPRISE_CUDA(transfer(part_of(device, pages + at), at + skipped, device.stream), kWhat);
      }
      skipped += part_bytes_;
    }
    for (const DevicePages& device : devices_) {
      REPRISE_CUDA(cudaStreamSynchronize(device.stream), kWhat);
    }
    return {};
  }

  std::vector<DevicePages> devices_;
  size_t page_bytes_, part_bytes_;
};

}  // namespace

std::unique_ptr<PageMemory> device_page_memory(std::vector<DevicePages> devices,
                                               size_t page_bytes) {
  return std::make_unique<DevicePageMemory>(std::move(devices), page_bytes);
}

}  // namespace reprise
