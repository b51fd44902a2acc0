#include "base/percentile.h"

#include <gtest/gtest.h>

#include <limits>

namespace reprise {
namespace {

TEST(Percentile, LiesBetweenNeighboursInProportion) {
  const std::vector<double> values = {5, 1, 4, 2, 3};
  EXPECT_EQ(percentile(values, 0), 1);
  EXPECT_EQ(percentile(values, 0.5), 3);
  EXPECT_DOUBLE_EQ(percentile(values, 0.6), 3.4);
  EXPECT_DOUBLE_EQ(percentile(values, 0.7), 3.8);
  EXPECT_DOUBLE_EQ(percentile(values, 0.99), 4.96);
  EXPECT_EQ(percentile(values, 1), 5);
}

TEST(Percentile, AMedianOfAnEvenNumberIsTheMeanOfTheMiddleTwo) {
  EXPECT_EQ(percentile({9, 1}, 0.5), 5);
  EXPECT_EQ(percentile({8, 100, 1, 2}, 0.5), 5);
}

TEST(Percentile, OfFewValues) {
  EXPECT_EQ(percentile({}, 0.5), 0);
  EXPECT_EQ(percentile({7}, 0.99), 7);
}

TEST(Percentile, ValuesThatAreNotFiniteStayApart) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(percentile({1, infinity, 2}, 0.5), 2);
  EXPECT_EQ(percentile({1, infinity}, 0.5), infinity);
}

}  // namespace
}  // namespace reprise
