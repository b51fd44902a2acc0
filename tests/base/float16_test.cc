#include "base/float16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace reprise {
namespace {

struct HalfFormat {
  using Type = F16;
  static constexpr int kMantissaBits = 10, kMinExponent = -14, kMaxExponent = 15;
  static Type from(float value) { return to_f16(value); }
};

struct BrainFormat {
  using Type = Bf16;
  static constexpr int kMantissaBits = 7, kMinExponent = -126, kMaxExponent = 127;
  static Type from(float value) { return to_bf16(value); }
};

template <class Format>
class Float16 : public testing::Test {
 public:
  /// What the bits mean by IEEE 754's definition.
  static double decode(uint32_t bits) {
    constexpr int kM = Format::kMantissaBits;
    const auto mantissa = static_cast<int>(bits & ((1u << kM) - 1));
    const int exponent = static_cast<int>(bits & 0x7fffu) >> kM;
    const double sign = (bits & 0x8000u) != 0 ? -1.0 : 1.0;
    if (exponent == Format::kMaxExponent - Format::kMinExponent + 2) {
      return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                           : sign * std::numeric_limits<double>::infinity();
    }
    const int whole = exponent == 0 ? mantissa : mantissa + (1 << kM);
    return sign * std::ldexp(whole, std::max(exponent, 1) - 1 + Format::kMinExponent - kM);
  }

  /// The nearest value of the format, ties to even: every step but nearbyint is exact in double.
  static double nearest(double value) {
    if (value == 0 || !std::isfinite(value)) return value;
    const int exponent = std::max(std::ilogb(value), Format::kMinExponent);
    const double unit = std::ldexp(1.0, exponent - Format::kMantissaBits);
    const double rounded = std::nearbyint(value / unit) * unit;
    const bool overflows = std::abs(rounded) >= std::ldexp(1.0, Format::kMaxExponent + 1);
    return overflows ? std::copysign(std::numeric_limits<double>::infinity(), value) : rounded;
  }

  static void expect_rounds(float value) {
    const double got = to_float(Format::from(value));
    const double want = nearest(value);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(got)) << std::bit_cast<uint32_t>(value);
    } else if (got != want || std::signbit(got) != std::signbit(want)) {
      ADD_FAILURE() << value << " became " << got << ", nearest is " << want;
    }
  }
};

using Formats = testing::Types<HalfFormat, BrainFormat>;
TYPED_TEST_SUITE(Float16, Formats);

TYPED_TEST(Float16, EveryValueIsReadByItsDefinitionAndSurvivesARoundTrip) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const typename TypeParam::Type stored{static_cast<uint16_t>(bits)};
    const float value = to_float(stored);
    const double want = TestFixture::decode(bits);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_TRUE(std::isnan(to_float(TypeParam::from(value)))) << bits;
      ASSERT_EQ(TypeParam::from(value).bits & 0x8000u, bits & 0x8000u);
    } else {
      ASSERT_EQ(value, want) << bits;
      ASSERT_EQ(TypeParam::from(value).bits, bits);
    }
  }
}

TYPED_TEST(Float16, RoundsRandomBitsToTheNearest) {
  std::mt19937 random(1);
  for (int i = 0; i < 300000; ++i) {
    TestFixture::expect_rounds(std::bit_cast<float>(static_cast<uint32_t>(random())));
  }
  std::uniform_real_distribution<float> exponents(-27, 18);  // around all that a half can hold
  for (int i = 0; i < 300000; ++i) {
    const float value = std::exp2(exponents(random));
    TestFixture::expect_rounds(i % 2 == 0 ? value : -value);
  }
}

TYPED_TEST(Float16, TiesGoToEven) {
  const uint32_t infinity = TypeParam::from(std::numeric_limits<float>::infinity()).bits;
  for (uint32_t bits = 0; bits < infinity; ++bits) {  // the last tie is with infinity
    const double here = TestFixture::decode(bits);
    const double unit = bits == 0 ? TestFixture::decode(1) : here - TestFixture::decode(bits - 1);
    const double above = bits + 1 == infinity ? here + unit : TestFixture::decode(bits + 1);
    const auto tie = static_cast<float>((here + above) / 2);
    ASSERT_EQ(tie, (here + above) / 2) << "a tie is a float";
    ASSERT_EQ(TypeParam::from(tie).bits, bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(TypeParam::from(std::nextafterf(tie, 0.0f)).bits, bits);
    ASSERT_EQ(TypeParam::from(std::nextafterf(tie, HUGE_VALF)).bits, bits + 1);
    ASSERT_EQ(TypeParam::from(-tie).bits, TypeParam::from(tie).bits | 0x8000u);
  }
}

TYPED_TEST(Float16, NotANumberStaysOneWhereverItsPayloadLies) {
  for (int bit = 0; bit < 23; ++bit) {
    for (const uint32_t sign : {0u, 0x80000000u}) {
      const auto nan = std::bit_cast<float>(sign | 0x7f800000u | (1u << bit));
      EXPECT_TRUE(std::isnan(to_float(TypeParam::from(nan)))) << bit;
    }
  }
}

TEST(Float16Values, KnownBits) {
  EXPECT_EQ(to_f16(1.0f).bits, 0x3c00u);
  EXPECT_EQ(to_f16(-2.0f).bits, 0xc000u);
  EXPECT_EQ(to_f16(65504.0f).bits, 0x7bffu);  // largest
  EXPECT_EQ(to_f16(65519.0f).bits, 0x7bffu);
  EXPECT_EQ(to_f16(65520.0f).bits, 0x7c00u);  // infinity
  EXPECT_EQ(to_f16(0x1p-24f).bits, 0x0001u);  // smallest subnormal
  EXPECT_EQ(to_f16(0x1p-25f).bits, 0x0000u);  // a tie with zero
  EXPECT_EQ(to_f16(-0.0f).bits, 0x8000u);
  EXPECT_EQ(to_bf16(1.0f).bits, 0x3f80u);
  EXPECT_EQ(to_bf16(3.4028235e38f).bits, 0x7f80u);  // FLT_MAX rounds to infinity
  EXPECT_EQ(to_bf16(0x1p-133f).bits, 0x0001u);      // smallest subnormal
}

}  // namespace
}  // namespace reprise
