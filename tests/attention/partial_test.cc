#include "attention/partial.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace reprise {
namespace {

Partial random_partial(uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Partial partial = empty_partial(3, 2, 8);
  for (float& value : partial.out) value = normal(random);
  for (float& value : partial.lse) value = 5.0f * normal(random);
  return partial;
}

void expect_near(const Partial& a, const Partial& b) {
  for (size_t i = 0; i < a.out.size(); ++i) EXPECT_NEAR(a.out[i], b.out[i], 1e-5f) << i;
  for (size_t i = 0; i < a.lse.size(); ++i) EXPECT_NEAR(a.lse[i], b.lse[i], 1e-5f) << i;
}

TEST(Partial, EmptyIsTheIdentity) {
  const Partial a = random_partial(1);
  Partial left = empty_partial(3, 2, 8), right = a;
  merge(left, a);
  merge(right, empty_partial(3, 2, 8));
  EXPECT_EQ(left.out, a.out);
  EXPECT_EQ(right.out, a.out);
  EXPECT_EQ(left.lse, a.lse);
  EXPECT_EQ(right.lse, a.lse);
}

TEST(Partial, TwoEmptyOnesStayEmpty) {
  Partial a = empty_partial(1, 1, 4);
  merge(a, empty_partial(1, 1, 4));
  EXPECT_EQ(a.lse[0], -INFINITY);
  EXPECT_EQ(a.out, std::vector<float>(4, 0.0f));
}

TEST(Partial, MergeIsCommutative) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    Partial ab = random_partial(seed), ba = random_partial(seed + 100);
    const Partial a = ab, b = ba;
    merge(ab, b);
    merge(ba, a);
    expect_near(ab, ba);
  }
}

TEST(Partial, MergeIsAssociative) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    Partial left = random_partial(seed), right = random_partial(seed + 100);
    const Partial c = random_partial(seed + 200);
    merge(left, right);  // (a b) c
    merge(left, c);
    merge(right, c);  // a (b c)
    Partial a = random_partial(seed);
    merge(a, right);
    expect_near(left, a);
  }
}

TEST(Partial, WeightsFollowTheMassOfEachSide) {
  Partial a = empty_partial(1, 1, 1), b = empty_partial(1, 1, 1);
  a.out[0] = 1.0f;
  a.lse[0] = std::log(3.0f);
  b.out[0] = 5.0f;
  b.lse[0] = std::log(1.0f);
  merge(a, b);
  EXPECT_FLOAT_EQ(a.out[0], 2.0f);
  EXPECT_FLOAT_EQ(a.lse[0], std::log(4.0f));
}

}  // namespace
}  // namespace reprise
