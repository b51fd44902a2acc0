#include "base/percentile.h"

#include <gtest/gtest.h>

namespace reprise {
namespace {

TEST(Percentile, IsTheNearestValueInOrder) {
  const std::vector<double> values = {5, 1, 4, 2, 3};
  EXPECT_EQ(percentile(values, 0), 1);
  EXPECT_EQ(percentile(values, 0.5), 3);
  EXPECT_EQ(percentile(values, 0.6), 3);
  EXPECT_EQ(percentile(values, 0.7), 4);
  EXPECT_EQ(percentile(values, 0.99), 5);
  EXPECT_EQ(percentile(values, 1), 5);
}

TEST(Percentile, OfFewValues) {
  EXPECT_EQ(percentile({}, 0.5), 0);
  EXPECT_EQ(percentile({7}, 0.99), 7);
}

}  // namespace
}  // namespace reprise
