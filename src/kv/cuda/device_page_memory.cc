#include "kv/cuda/device_page_memory.h"

#include "base/checked.h"
#include "base/try.h"
#include "kernels/cuda/device_buffer.h"

namespace reprise {
namespace {

class DevicePageMemory : public PageMemory {
 public:
  explicit DevicePageMemory(cudaStream_t stream) : stream_(stream) {}

  Status allocate(size_t bytes) {
    // The pool asks for whole steps of kSlabAlignment.
    const size_t room = (bytes + kSlabAlignment - 1) / kSlabAlignment * kSlabAlignment;
    return memory_.reserve(room, "keys and values");
  }

  std::byte* slab(uint32_t) const override { return memory_.data(); }
  bool provide(std::byte* from, size_t bytes) override {
    return from + bytes <= memory_.data() + memory_.size();
  }
  void give_back(std::byte*, size_t) override {}
  bool reachable() const override { return false; }
  Status read(std::byte* host, const std::byte* from, size_t bytes) override {
    return transfer(host, from, bytes, cudaMemcpyDeviceToHost);
  }
  Status write(std::byte* to, const std::byte* host, size_t bytes) override {
    return transfer(to, host, bytes, cudaMemcpyHostToDevice);
  }
  void copy(std::byte* to, const std::byte* from, size_t bytes) override {
    // A failure is the device's, and the next pass reports it.
    cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_);
  }

 private:
  Status transfer(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    constexpr std::string_view kWhat = "copying keys and values";
    REPRISE_CUDA(cudaMemcpyAsync(to, from, bytes, kind, stream_), kWhat);
    REPRISE_CUDA(cudaStreamSynchronize(stream_), kWhat);
    return {};
  }

  kernels::cuda::DeviceBuffer<std::byte> memory_;
  cudaStream_t stream_;
};

}  // namespace

Result<std::unique_ptr<PageMemory>> device_page_memory(size_t bytes, cudaStream_t stream) {
  auto memory = std::make_unique<DevicePageMemory>(stream);
  REPRISE_CHECK(memory->allocate(bytes));
  return memory;
}

}  // namespace reprise
