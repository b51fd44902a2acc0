#include "kernels/cuda/peak.h"

#include <gtest/gtest.h>

#include <vector>

#include "cuda/device_testing.h"

namespace reprise::kernels::cuda {
namespace {

constexpr size_t kPieceWords = kReadPieceBytes / sizeof(uint32_t);

std::vector<uint32_t> numbered(size_t count) {
  std::vector<uint32_t> words(count);
  for (size_t i = 0; i < count; ++i) words[i] = static_cast<uint32_t>(i) * 2654435761u;
  return words;
}

TEST(Peak, EveryWordIsReadInEveryRound) {
  REPRISE_NEEDS_DEVICE();
  for (const size_t pieces : {1, 2, 333, 2048}) {  // fewer and more than blocks
    const auto words = numbered(pieces * kPieceWords);
    const DeviceArray<uint32_t> data(words);
    uint32_t once = 0;
    for (const uint32_t word : words) once += word;
    for (const uint32_t rounds : {1u, 2u, 5u}) {
      const DeviceArray<uint32_t> sum(1);
      ASSERT_EQ(read_all(data.get(), words.size() * 4, rounds, sum.get(), nullptr), cudaSuccess);
      EXPECT_EQ(sum.host()[0], once * rounds) << pieces << " pieces, " << rounds << " rounds";
    }
  }
}

TEST(Peak, SizesThatAreNotWholePiecesAreRefused) {
  REPRISE_NEEDS_DEVICE();
  const DeviceArray<uint32_t> data(kPieceWords), sum(1);
  EXPECT_EQ(read_all(data.get(), 0, 1, sum.get(), nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(read_all(data.get(), kReadPieceBytes - 16, 1, sum.get(), nullptr),
            cudaErrorInvalidValue);
  EXPECT_EQ(read_all(data.get(), kReadPieceBytes, 0, sum.get(), nullptr), cudaSuccess);
}

}  // namespace
}  // namespace reprise::kernels::cuda
