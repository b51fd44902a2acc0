#include "kernels/cuda/device_status.h"

#include "cuda/device_testing.h"
#include "kernels/cuda/page_table.h"

namespace reprise::kernels::cuda {
namespace {

Status choose_no_device() {
  REPRISE_CUDA(cudaSetDevice(-1), "choosing a device");
  return {};
}

TEST(DeviceStatus, WhatWasToldIsNotToldAgain) {
  REPRISE_NEEDS_DEVICE();
  const DeviceArray<int32_t> positions(std::vector<int32_t>{7}), keys(1);
  const Status status = choose_no_device();
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kDeviceUnavailable);
  EXPECT_EQ(count_keys(positions.get(), 1, keys.get(), nullptr), cudaSuccess);
  EXPECT_EQ(keys.host(), std::vector<int32_t>{8});
}

}  // namespace
}  // namespace reprise::kernels::cuda
