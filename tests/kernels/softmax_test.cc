#include "kernels/softmax.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/isa.h"

namespace reprise::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class Softmax : public IsaTest<> {};

INSTANTIATE_TEST_SUITE_P(Isas, Softmax, ::testing::Values(Isa::kScalar, Isa::kAvx2, Isa::kAvx512));

TEST_P(Softmax, MatchesDouble) {
  std::mt19937 random(1);
  for (const size_t n : {1, 7, 8, 9, 16, 31, 100, 4099}) {
    for (const float spread : {0.0f, 1.0f, 30.0f, 1e4f}) {
      std::normal_distribution<float> normal(-3.0f, spread + 1e-20f);
      std::vector<float> x(n);
      for (float& value : x) value = normal(random);
      if (n > 8) x[n / 2] = x[3] = -kInfinity;
      double total = 0.0, top = -INFINITY;
      for (const float value : x) top = std::max(top, double{value});
      for (const float value : x) total += std::exp(value - top);
      std::vector<float> weights = x;
      const float lse = softmax(weights.data(), n);
      EXPECT_NEAR(lse, top + std::log(total), 1e-6 * (1 + std::abs(top)));
      for (size_t i = 0; i < n; ++i) {
        const double want = std::exp(x[i] - top) / total;
        const double relative = std::isinf(x[i]) ? 0.0 : 2e-7 * (5 + top - x[i]);
        EXPECT_NEAR(weights[i], want, relative * want + 0x1p-126) << n << " " << spread << " " << i;
      }
    }
  }
}

TEST_P(Softmax, NothingVisibleHasNoWeight) {
  for (const size_t n : {0, 1, 20}) {
    std::vector<float> x(n, -kInfinity);
    EXPECT_EQ(softmax(x.data(), n), -kInfinity);
    for (const float weight : x) EXPECT_EQ(weight, 0.0f);
  }
}

TEST_P(Softmax, SharesOfPagesAreThoseOfTheirLogits) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal(4.0f, 5.0f);
  for (const size_t pages : {1, 2, 7, 16, 17, 130}) {
    for (const bool largest : {false, true}) {
      std::vector<float> x(16 * pages), shares(pages, 0.25f);
      for (float& value : x) value = normal(random);
      std::fill_n(&x[16 * (pages / 2)], pages > 1 ? 16 : 3, -kInfinity);
      std::vector<float> weights = x;
      softmax(weights.data(), weights.size());
      add_page_shares(x.data(), pages, largest, 0.5f, shares.data());
      for (size_t p = 0; p < pages; ++p) {
        double want = 0.0;
        for (size_t i = 16 * p; i < 16 * p + 16; ++i) {
          want = largest ? std::max(want, double{weights[i]}) : want + weights[i];
        }
        // Of a sum of 16: as many roundings of each kind, of a share below 1 beside the 0.25.
        EXPECT_NEAR(shares[p], 0.25 + 0.5 * want, 0x1p-24 * (1 + 20 * want)) << pages << " " << p;
      }
    }
  }
}

TEST_P(Softmax, SharesOfAKnownSumAreThoseOfTheirLogits) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(4.0f, 5.0f);
  for (const size_t pages : {1, 2, 7, 16, 17, 130}) {
    for (const bool largest : {false, true}) {
      std::vector<float> x(16 * pages), shares(pages + 1, -7.0f);
      for (float& value : x) value = normal(random);
      std::fill_n(&x[16 * (pages / 2)], pages > 1 ? 16 : 3, -kInfinity);
      double total = 0.0;
      for (const float value : x) total += std::exp(double{value});
      const auto lse = static_cast<float>(std::log(total) + 2.0);  // other pages have a part, too
      page_shares(x.data(), pages, largest, lse, shares.data());
      for (size_t p = 0; p < pages; ++p) {
        double want = 0.0, error = 0.0;
        for (size_t i = 16 * p; i < 16 * p + 16; ++i) {
          const double weight = std::exp(double{x[i]} - lse);
          want = largest ? std::max(want, weight) : want + weight;
          if (weight > 0.0) error += weight * 2e-7 * (5 + lse - x[i]);
        }
        EXPECT_NEAR(shares[p], want, error + 16 * 0x1p-24 * want + 0x1p-120) << pages << " " << p;
      }
      EXPECT_EQ(shares[pages], -7.0f);
    }
  }
  std::vector<float> nothing(32, -kInfinity), shares = {1.0f, 2.0f};
  page_shares(nothing.data(), 2, false, -kInfinity, shares.data());
  EXPECT_EQ(shares, (std::vector<float>{0.0f, 0.0f}));
}

TEST_P(Softmax, PagesOfNothingGetNoShare) {
  std::vector<float> x(48, -kInfinity), shares = {1.0f, 2.0f, 3.0f};
  add_page_shares(x.data(), 3, false, 1.0f, shares.data());
  add_page_shares(x.data(), 0, false, 1.0f, shares.data());
  EXPECT_EQ(shares, (std::vector<float>{1.0f, 2.0f, 3.0f}));
}

}  // namespace
}  // namespace reprise::kernels
