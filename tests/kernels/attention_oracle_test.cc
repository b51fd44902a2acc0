// Every instruction set, page type and shape against double precision.
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "kernels/attention_case.h"

namespace reprise::kernels {
namespace {

class AttentionOracle : public IsaTest<std::tuple<Isa, KvType, Phase>> {
 protected:
  void SetUp() override {
    IsaTest::SetUp();
    options_.type = std::get<1>(GetParam());
    options_.phase = std::get<2>(GetParam());
  }

  void check(const CaseOptions& options) {
    const AttentionCase problem(options);
    expect_close(problem, expected(problem), problem.attend_all());
  }
  static void expect_logits(const AttentionCase& problem, std::span<const float> logits,
                            size_t stride) {
    const CaseOptions& options = problem.options;
    int wrong = 0;
    for (size_t row = 0; row < options.rows; ++row) {
      for (size_t i = 0; i < problem.pages.size() * kPageTokens && wrong < 3; ++i) {
        const PageSpan& page = problem.pages[i / kPageTokens];
        const size_t slot = i % kPageTokens;
        const int32_t key = page.index + static_cast<int32_t>(slot);
        const bool seen = (page.slots >> slot & 1) != 0 && key >= problem.row_begin[row] &&
                          key < problem.row_end[row];
        double want = -INFINITY, error = 0.0;
        if (seen) {
          const Dot dot = key_dot(problem, row, page, slot);
          want = problem.scale * dot.sum;
          error = problem.scale * dot.magnitude * 0x1p-8 + 1e-5;  // rotated keys in bf16
          if (options.soft_cap > 0) want = options.soft_cap * std::tanh(want / options.soft_cap);
          if (page.bias != nullptr) want += page.bias[slot];
        }
        const float got = logits[row * stride + i];
        const bool equal = std::isinf(want) ? got == want : std::fabs(got - want) <= error;
        if (equal) continue;
        ++wrong;
        ADD_FAILURE() << "row " << row << " key " << key << ": " << got << ", want " << want
                      << " in " << describe(options);
      }
    }
  }
  bool stored(size_t head_dim) const { return suits(options_.type, head_dim); }

  CaseOptions options_;
};

TEST_P(AttentionOracle, HeadDims) {
  for (const size_t head_dim : {2, 18, 32, 64, 72, 80, 96, 112, 128, 256}) {
    if (!stored(head_dim)) continue;
    options_.head_dim = head_dim;
    for (const size_t rows : {1, 4, 35}) {
      options_.rows = rows;
      options_.seed += 1;
      check(options_);
    }
  }
}

TEST_P(AttentionOracle, RowCountsAndGroups) {
  for (const size_t rows : {1, 2, 3, 5, 6, 7, 8, 12, 16, 17, 31, 33, 64, 200}) {
    options_.rows = rows;
    options_.heads_per_row = 1 + rows % 8;
    options_.head_dim = 32;
    options_.seed += 1;
    check(options_);
  }
}

TEST_P(AttentionOracle, KeyCounts) {
  options_.rows = 6;
  options_.heads_per_row = 3;
  for (const size_t keys : {1, 2, 15, 16, 17, 31, 33, 127, 128, 129, 255, 256, 257, 700, 1500}) {
    options_.keys = keys;
    options_.seed += 1;
    check(options_);
  }
}

TEST_P(AttentionOracle, WindowsAndHoles) {
  options_.rows = 48;
  options_.heads_per_row = 2;
  options_.keys = 420;
  for (const int32_t window : {0, 1, 7, 100, 300}) {
    for (const bool holes : {false, true}) {
      options_.window = window;
      options_.holes = holes;
      options_.seed += 1;
      check(options_);
    }
  }
}

TEST_P(AttentionOracle, SoftCap) {
  options_.rows = 20;
  options_.soft_cap = 5.0f;
  options_.amplitude = 2.0f;
  check(options_);
}

TEST_P(AttentionOracle, MasksAndBiases) {
  for (const size_t rows : {1, 3, 4, 35}) {
    for (const float bias : {0.0f, 2.0f, 500.0f}) {
      for (const float soft_cap : {0.0f, 5.0f}) {
        options_.rows = rows;
        options_.keys = 330;
        options_.holes = true;
        options_.bias = bias;
        options_.soft_cap = soft_cap;
        options_.seed += 1;
        check(options_);
      }
    }
  }
}

TEST_P(AttentionOracle, LogitsAreThoseOfEveryKey) {
  if (options_.phase == Phase::kPrefill) GTEST_SKIP() << "decode only";
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    options_.seed = seed;
    options_.rows = 1 + seed * 5 % 20;
    options_.keys = 40 + seed * 61 % 300;
    options_.window = seed % 3 == 0 ? 50 : 0;
    options_.holes = seed % 2 == 0;
    options_.soft_cap = seed % 4 == 0 ? 30.0f : 0.0f;
    options_.bias = seed % 3 == 1 ? 3.0f : 0.0f;
    const AttentionCase problem(options_);
    AttendResult plain = problem.attend_all(), result;
    AttendArgs args = problem.args(0, options_.rows, result);
    args.logits_stride = problem.pages.size() * kPageTokens + 5;
    std::vector<float> logits(options_.rows * args.logits_stride, 77.0f);
    args.logits = logits.data();
    std::vector<std::byte> scratch(attend_scratch_bytes(args));
    attend(args, scratch.data());
    EXPECT_EQ(result.out, plain.out) << describe(options_);  // asking changes nothing
    EXPECT_EQ(result.lse, plain.lse) << describe(options_);
    expect_logits(problem, logits, args.logits_stride);
  }
}

TEST_P(AttentionOracle, PositionFreeKeys) {
  for (const size_t head_dim : {64, 80, 128}) {
    if (!stored(head_dim)) continue;
    for (const size_t pairs : {head_dim / 2, head_dim / 2 - 3, size_t{4}}) {
      options_.head_dim = head_dim;
      options_.rope_pairs = pairs;
      options_.rows = 9;
      options_.holes = true;
      options_.seed += 1;
      check(options_);
    }
  }
}

TEST_P(AttentionOracle, RandomMixtures) {
  for (uint32_t seed = 1; seed <= 12; ++seed) {
    options_.seed = seed;
    options_.head_dim = 32 * (1 + seed % 4);
    options_.rows = 1 + seed * 17 % 70;
    options_.heads_per_row = 1 + seed % 5;
    options_.keys = 1 + seed * 97 % 600;
    options_.window = seed % 3 == 0 ? 50 : 0;
    options_.holes = seed % 2 == 0;
    options_.soft_cap = seed % 4 == 0 ? 30.0f : 0.0f;
    options_.rope_pairs = seed % 5 == 0 ? 16 : 0;
    options_.bias = seed % 3 == 1 ? 3.0f : 0.0f;
    check(options_);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kernels, AttentionOracle,
    testing::Combine(testing::Values(Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAmx),
                     testing::ValuesIn(kKvTypes), testing::Values(Phase::kDecode, Phase::kPrefill)),
    [](const auto& test) {
      return std::string(isa_name(std::get<0>(test.param))) + "_" +
             std::string(kv_type_name(std::get<1>(test.param))) +
             (std::get<2>(test.param) == Phase::kDecode ? "_decode" : "_prefill");
    });

}  // namespace
}  // namespace reprise::kernels
