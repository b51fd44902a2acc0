#include "kernels/ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <random>
#include <vector>

#include "kernels/isa.h"
#include "kernels/ops_isa.h"

namespace reprise::kernels {
namespace {

constexpr double kFloat = 0x1p-24;

class Ops : public IsaTest<> {
 protected:
  std::vector<float> random_floats(size_t n, float scale = 1.0f) {
    std::normal_distribution<float> normal(0.0f, scale);
    std::vector<float> values(n);
    for (float& x : values) x = normal(random_);
    return values;
  }

  std::mt19937 random_{7};
};

TEST_P(Ops, RmsNorm) {
  for (const size_t n : {1, 7, 16, 33, 64, 576, 1000}) {
    const auto x = random_floats(n, 3.0f), weight = random_floats(n);
    double squares = 0;
    for (const float v : x) squares += static_cast<double>(v) * v;
    const double inverse = 1.0 / std::sqrt(squares / static_cast<double>(n) + 1e-5);
    // summing n squares errs by at most n units, halved by the root; the rest are single roundings
    const double unit = (static_cast<double>(n) / 2 + 6) * kFloat;
    std::vector<float> out(n), in_place = x;
    rms_norm(x.data(), weight.data(), 1e-5f, n, out.data());
    for (size_t i = 0; i < n; ++i) {
      const double want = x[i] * inverse * weight[i];
      EXPECT_NEAR(out[i], want, std::fabs(want) * unit);
    }
    rms_norm(in_place.data(), nullptr, 1e-5f, n, in_place.data());
    for (size_t i = 0; i < n; ++i) {
      EXPECT_NEAR(in_place[i], x[i] * inverse, std::fabs(x[i] * inverse) * unit);
    }
  }
}

TEST_P(Ops, RopeRotatesOnlyTheFirstPairsOfEveryHead) {
  for (const size_t head_dim : {2, 6, 32, 64, 80, 128}) {
    for (const size_t pairs : {head_dim / 2, head_dim / 4, size_t{0}}) {
      const size_t heads = 3;
      const auto x = random_floats(heads * head_dim);
      std::vector<float> cos_sin(2 * pairs), out = x;
      for (size_t i = 0; i < pairs; ++i) {
        cos_sin[2 * i] = std::cos(static_cast<float>(i) * 0.7f);
        cos_sin[2 * i + 1] = std::sin(static_cast<float>(i) * 0.7f);
      }
      rope(out.data(), cos_sin.data(), heads, head_dim, pairs);
      for (size_t head = 0; head < heads; ++head) {
        for (size_t d = 0; d < head_dim; ++d) {
          const size_t at = head * head_dim + d, pair = d / 2;
          if (pair >= pairs) {
            EXPECT_EQ(out[at], x[at]);
            continue;
          }
          const double c = cos_sin[2 * pair], s = cos_sin[2 * pair + 1];
          const double a = x[at - d % 2], b = x[at - d % 2 + 1];
          const double want = d % 2 == 0 ? a * c - b * s : a * s + b * c;
          EXPECT_NEAR(out[at], want, 2 * kFloat * (std::fabs(a) + std::fabs(b)));
        }
      }
    }
  }
}

TEST_P(Ops, GatedActivation) {
  std::vector<float> gate = random_floats(1000, 4.0f);
  for (const float x : {0.0f, -0.0f, 100.0f, -100.0f, 1e4f, -1e4f, 1e-6f}) gate.push_back(x);
  const auto up = random_floats(gate.size());
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
    std::vector<float> out = gate;
    gated_activation(out.data(), up.data(), out.size(), activation);
    for (size_t i = 0; i < gate.size(); ++i) {
      const double x = gate[i];
      const double u = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
      const double sigmoid = 1 / (1 + std::exp(activation == Activation::kSilu ? -x : -2 * u));
      const double want = x * sigmoid * up[i];
      // 1e-6 for exp and tanh (see ops_isa.h); the exponent's own rounding grows with it
      const double exponent = std::min(std::fabs(2 * u) + std::fabs(x), 100.0);
      const double bound = std::fabs(x * up[i]) * (1e-6 + 4 * exponent * kFloat);
      EXPECT_NEAR(out[i], want, bound) << "x = " << x;
    }
  }
}

TEST_P(Ops, SoftCap) {
  for (const float cap : {0.5f, 30.0f, 50.0f}) {
    std::vector<float> x = random_floats(100, 2 * cap);
    x.insert(x.end(), {0.0f, 1e6f, -1e6f, 1e-3f});
    std::vector<float> out = x;
    soft_cap(out.data(), out.size(), cap);
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_NEAR(out[i], cap * std::tanh(static_cast<double>(x[i]) / cap), 1e-6 * cap);
    }
  }
}

TEST_P(Ops, AddScaled) {
  for (const size_t n : {1, 15, 16, 17, 100}) {
    const auto x = random_floats(n), before = random_floats(n);
    std::vector<float> out = before;
    add_scaled(out.data(), x.data(), 0.3f, n);
    for (size_t i = 0; i < n; ++i) {
      const double product = static_cast<double>(x[i]) * 0.3f;
      EXPECT_NEAR(out[i], before[i] + product,
                  2 * kFloat * (std::fabs(before[i]) + std::fabs(product)));
    }
  }
}

TEST_P(Ops, WidenKeepsEveryBit) {
  for (const size_t n : {1, 7, 8, 16, 31, 33, 65536}) {
    std::vector<Bf16> x(n);
    for (size_t i = 0; i < n; ++i) x[i].bits = static_cast<uint16_t>(i * 40503u);
    std::vector<float> out(n + 1, 5.0f);
    widen(x.data(), n, out.data());
    for (size_t i = 0; i < n; ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), uint32_t{x[i].bits} << 16);
    }
    EXPECT_EQ(out[n], 5.0f);
  }
}

// Any codes and scales, NaN and infinite ones too, as the reference rounds them.
TEST_P(Ops, CodesTimesScalesAreRoundedAsTheReferenceRoundsThem) {
  for (const size_t n : {1, 31, 32, 33, 64, 1000, 65536}) {
    std::vector<std::byte> codes(n + 1), scales((n + 31) / 32 * sizeof(F16) + 1);
    for (auto* bytes : {&codes, &scales}) {
      for (std::byte& byte : *bytes) byte = static_cast<std::byte>(random_());
    }
    std::vector<Bf16> out(n + 1, Bf16{7}), want(n);
    // Neither is aligned.
    widen_codes(&codes[1], &scales[1], n, out.data());
    widen_codes_ref(&codes[1], &scales[1], n, want.data());
    for (size_t i = 0; i < n; ++i) {
      if (std::isnan(to_float(want[i]))) {
        EXPECT_TRUE(std::isnan(to_float(out[i]))) << i;
      } else {
        ASSERT_EQ(out[i].bits, want[i].bits) << i;
      }
    }
    EXPECT_EQ(out[n].bits, 7);
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, Ops,
                         testing::Values(Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAmx),
                         [](const auto& test) { return std::string(isa_name(test.param)); });

}  // namespace
}  // namespace reprise::kernels
