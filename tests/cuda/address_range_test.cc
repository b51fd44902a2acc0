// Ranges of addresses that get their memory by and by.
#include "kernels/cuda/address_range.h"

#include <gtest/gtest.h>

#include "cuda/device_testing.h"

namespace reprise::kernels::cuda {
namespace {

class CudaAddressRange : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_device()) GTEST_SKIP() << "no CUDA device";
  }
};

std::vector<unsigned char> fetch(const std::byte* from, size_t bytes) {
  std::vector<unsigned char> host(bytes);
  EXPECT_EQ(cudaMemcpy(host.data(), from, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
  return host;
}

TEST_F(CudaAddressRange, AddressesStayWhileMemoryIsAdded) {
  constexpr size_t kStep = AddressRange::kStep;
  AddressRange range;
  ASSERT_TRUE(range.reserve(10 * kStep, nullptr, "a test"));
  EXPECT_EQ(range.mapped(), 0u);
  ASSERT_TRUE(range.extend(1, false, "a test"));
  EXPECT_EQ(range.mapped(), kStep);
  std::byte* const start = range.data();
  ASSERT_EQ(cudaMemset(start, 7, kStep), cudaSuccess);

  // What was captured before stays valid.
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(start, 3, kStep / 2, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);

  ASSERT_TRUE(range.extend(3 * kStep + 5, false, "a test"));
  EXPECT_EQ(range.mapped(), 4 * kStep);
  EXPECT_EQ(range.data(), start);
  ASSERT_TRUE(range.extend(2 * kStep, false, "a test"));  // it has that
  EXPECT_EQ(range.mapped(), 4 * kStep);
  ASSERT_EQ(cudaMemset(start + kStep, 5, 3 * kStep), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  std::vector<unsigned char> want(4 * kStep, 5);
  std::fill_n(want.begin(), kStep, 7);
  std::fill_n(want.begin(), kStep / 2, 3);
  EXPECT_EQ(fetch(start, want.size()), want);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

TEST_F(CudaAddressRange, SaysWhereThereIsNoMemory) {
  constexpr size_t kHuge = size_t{1} << 43;  // more than any device has
  AddressRange range;
  ASSERT_TRUE(range.reserve(kHuge, nullptr, "a test"));
  ASSERT_TRUE(range.extend(1, false, "a test"));
  const Status status = range.extend(kHuge, false, "a test");
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(range.mapped(), AddressRange::kStep);
  EXPECT_EQ(cudaMemset(range.data(), 1, AddressRange::kStep), cudaSuccess);
}

}  // namespace
}  // namespace reprise::kernels::cuda
