#include "base/checked.h"

#include <gtest/gtest.h>

#include <limits>

namespace reprise {
namespace {

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

TEST(CheckedSize, ComputesLikePlainNumbers) {
  EXPECT_EQ((CheckedSize(3) * 4 + 5 - 7).value(), 10u);
  EXPECT_EQ(CheckedSize(kMax).value(), kMax);
  EXPECT_EQ((CheckedSize(kMax - 1) + 1).value(), kMax);
  EXPECT_EQ((CheckedSize(kMax) * 1).value(), kMax);
  EXPECT_EQ((CheckedSize(uint64_t{1} << 32) * ((uint64_t{1} << 32) - 1)).value(),
            kMax - 0xffffffffu);
  EXPECT_EQ((CheckedSize(5) - 5).value(), 0u);
}

TEST(CheckedSize, OverflowMakesItInvalid) {
  EXPECT_FALSE((CheckedSize(kMax) + 1).valid());
  EXPECT_FALSE((CheckedSize(1) + kMax).valid());
  EXPECT_FALSE((CheckedSize(4) - 5).valid());
  EXPECT_FALSE((CheckedSize(uint64_t{1} << 32) * (uint64_t{1} << 32)).valid());
  EXPECT_FALSE((CheckedSize(kMax) * kMax).valid());
  EXPECT_EQ((CheckedSize(kMax) + 1).value(), std::nullopt);
}

TEST(CheckedSize, StaysInvalidWhateverFollows) {
  const CheckedSize bad = CheckedSize(kMax) + 1;  // wraps to 0, which must not look valid again
  EXPECT_FALSE((bad + 1).valid());
  EXPECT_FALSE((CheckedSize(1) + bad).valid());
  EXPECT_FALSE((bad - bad).valid());
  EXPECT_FALSE((bad * 0).valid());
  EXPECT_FALSE((CheckedSize(0) * bad).valid());
  EXPECT_FALSE(bad.align_up(8).valid());
  EXPECT_FALSE(bad.fits(kMax));
}

TEST(CheckedSize, Fits) {
  EXPECT_TRUE(CheckedSize(0).fits(0));
  EXPECT_TRUE(CheckedSize(7).fits(7));
  EXPECT_FALSE(CheckedSize(8).fits(7));
  EXPECT_TRUE(CheckedSize(kMax).fits(kMax));
}

TEST(CheckedSize, AlignUp) {
  EXPECT_EQ(CheckedSize(0).align_up(32).value(), 0u);
  EXPECT_EQ(CheckedSize(1).align_up(32).value(), 32u);
  EXPECT_EQ(CheckedSize(32).align_up(32).value(), 32u);
  EXPECT_EQ(CheckedSize(33).align_up(32).value(), 64u);
  EXPECT_EQ(CheckedSize(10).align_up(1).value(), 10u);
  EXPECT_EQ(CheckedSize(10).align_up(7).value(), 14u);
  EXPECT_EQ(CheckedSize(kMax - 31).align_up(32).value(), kMax - 31);
  EXPECT_FALSE(CheckedSize(kMax - 30).align_up(32).valid());
  EXPECT_FALSE(CheckedSize(kMax).align_up(2).valid());
  EXPECT_EQ(CheckedSize(kMax).align_up(1).value(), kMax);
}

}  // namespace
}  // namespace reprise
