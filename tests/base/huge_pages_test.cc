#include "base/huge_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace reprise {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

TEST(HugePages, PiecesAreZeroAlignedAndApart) {
  std::vector<std::shared_ptr<std::byte[]>> pieces;
  const std::vector<size_t> sizes = {1, 63, 64, 65, 3 * kMiB, 40 * kMiB, 100};
  for (const size_t bytes : sizes) {
    pieces.push_back(huge_page_memory(bytes));
    ASSERT_NE(pieces.back(), nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pieces.back().get()) % 64, 0u);
    EXPECT_TRUE(std::all_of(pieces.back().get(), pieces.back().get() + bytes,
                            [](std::byte each) { return each == std::byte{0}; }));
    std::memset(pieces.back().get(), static_cast<int>(pieces.size()), bytes);
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    const auto own = static_cast<std::byte>(i + 1);
    EXPECT_TRUE(std::all_of(pieces[i].get(), pieces[i].get() + sizes[i], [&](std::byte each) {
      return each == own;
    })) << sizes[i];
  }
}

TEST(HugePages, PiecesOfABlockLieOneBehindTheOther) {
  const auto first = huge_page_memory(40 * kMiB);  // fills a block of its own
  const auto second = huge_page_memory(100), third = huge_page_memory(64);
  EXPECT_EQ(third.get() - second.get(), 128);
}

TEST(HugePages, PiecesAreAlignedAsAskedFor) {
  const auto first = huge_page_memory(40 * kMiB);  // fills a block of its own
  const auto second = huge_page_memory(100), third = huge_page_memory(5000, 4096);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(third.get()) % 4096, 0u);
  EXPECT_EQ(third.get() - second.get(), 4096);
  const auto fourth = huge_page_memory(64);
  EXPECT_EQ(fourth.get() - third.get(), 5056);
  const auto large = huge_page_memory(31 * kMiB, 2 * kMiB);  // no room behind the others
  EXPECT_EQ(reinterpret_cast<uintptr_t>(large.get()) % (2 * kMiB), 0u);
}

TEST(HugePages, APieceOutlivesTheOthersOfItsBlock) {
  auto first = huge_page_memory(64);
  const auto second = huge_page_memory(64);
  second[0] = std::byte{7};
  first.reset();
  EXPECT_EQ(second[0], std::byte{7});
}

TEST(HugePages, NoMemoryIsNull) { EXPECT_EQ(huge_page_memory(size_t{1} << 60), nullptr); }

}  // namespace
}  // namespace reprise
