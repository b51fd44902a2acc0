#include "kv/cuda/device_page_memory.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "cuda/device_testing.h"

namespace reprise {
namespace {

constexpr size_t kPages = 5;

std::vector<std::byte> numbered(size_t size, int seed) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>((i * 31 + static_cast<size_t>(seed)) % 251);
  }
  return bytes;
}

std::vector<std::byte> on_host(const std::byte* from, size_t size) {
  std::vector<std::byte> bytes(size);
  EXPECT_EQ(cudaMemcpy(bytes.data(), from, size, cudaMemcpyDeviceToHost), cudaSuccess);
  return bytes;
}

// Parts of one device stand for several devices.
TEST(DevicePageMemory, DevicesHoldTheirPartsOfPages) {
  using kernels::cuda::has_device;
  REPRISE_NEEDS_DEVICE();
  for (const size_t count : {1, 2, 3}) {
    const size_t part = 128, page = part * count;
    auto stream = kernels::cuda::CudaStream::create();
    ASSERT_TRUE(stream);
    std::vector<std::unique_ptr<DevicePageMemory>> devices;
    std::vector<const std::byte*> memory;
    for (size_t i = 0; i < count; ++i) {
      auto device = DevicePageMemory::create({kPages, 0, part, 1}, stream->get());
      ASSERT_TRUE(device) << device.error().message;
      memory.push_back((*device)->slab(0));
      devices.push_back(std::move(*device));
    }
    const auto pages = joint_page_memory(std::move(devices), page);
    EXPECT_TRUE(pages->provide(pages->slab(0), kPages * page));
    EXPECT_FALSE(pages->reachable());

    const auto two = numbered(2 * page, 7);  // pages 1 and 2
    ASSERT_TRUE(pages->write(pages->slab(0) + page, two.data(), two.size()));
    for (size_t i = 0; i < count; ++i) {
      std::vector<std::byte> own;
      for (size_t at = i * part; at < two.size(); at += page) {
        own.insert(own.end(), two.begin() + static_cast<ptrdiff_t>(at),
                   two.begin() + static_cast<ptrdiff_t>(at + part));
      }
      EXPECT_EQ(on_host(memory[i] + part, 2 * part), own) << "device " << i << " of " << count;
    }
    std::vector<std::byte> back(two.size());
    ASSERT_TRUE(pages->read(back.data(), pages->slab(0) + page, back.size()));
    EXPECT_EQ(back, two);

    pages->copy(pages->slab(0) + 4 * page, pages->slab(0) + 2 * page, page);
    std::vector<std::byte> copied(page);
    ASSERT_TRUE(pages->read(copied.data(), pages->slab(0) + 4 * page, page));
    EXPECT_TRUE(
        std::equal(copied.begin(), copied.end(), two.begin() + static_cast<ptrdiff_t>(page)));
  }
}

}  // namespace
}  // namespace reprise
