// Key logits and bounds of every instruction set and page type against double precision.
#include "kernels/key_logits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <tuple>

#include "kernels/attention_case.h"

namespace reprise::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
using Logits = std::vector<float>;  // [rows, 16 pages]

class KeyLogits : public IsaTest<std::tuple<Isa, KvType>> {
 protected:
  void SetUp() override {
    IsaTest::SetUp();
    options_.type = std::get<1>(GetParam());
    options_.holes = true;
  }

  bool stored(size_t head_dim) const { return suits(options_.type, head_dim); }

  // A problem whose q is not exact in bf16.
  AttentionCase make_case() {
    options_.seed += 1;
    AttentionCase problem(options_);
    for (float& x : problem.q) x *= 1.0f / 3.0f;
    return problem;
  }

  CaseOptions options_;
};

KeyLogitsArgs make_args(const AttentionCase& problem) {
  KeyLogitsArgs args;
  args.layout = &problem.layout;
  args.rows = problem.options.rows;
  args.q = problem.q.data();
  args.q_stride = problem.options.head_dim;
  args.pages = problem.pages;
  args.scale = 0.7f;
  args.soft_cap = problem.options.soft_cap;
  args.rope_pairs = problem.options.rope_pairs;
  return args;
}

// Runs the kernel; `before` is what out holds at first.
Logits run(KeyLogitsArgs args, float before = 77.0f) {
  args.out_stride = args.pages.size() * kPageTokens;
  Logits out(args.rows * args.out_stride, before);
  args.out = out.data();
  key_logits(args);
  return out;
}

// Every product and sum rounds once, a rotation three times more, a soft cap within 1e-6 of it.
void expect_logits(const AttentionCase& problem, const KeyLogitsArgs& args, const Logits& got) {
  const double unit = (static_cast<double>(problem.options.head_dim) + 8) * 0x1p-24;
  const size_t stride = args.pages.size() * kPageTokens;
  for (size_t i = 0; i < got.size(); ++i) {
    const PageSpan& page = args.pages[i % stride / kPageTokens];
    const size_t slot = i % kPageTokens;
    if ((page.slots >> slot & 1) == 0) {
      ASSERT_EQ(got[i], -kInfinity) << describe(problem.options);
      continue;
    }
    if (page.index + slot >= problem.options.keys) continue;  // read, but holds garbage
    const Dot dot = key_dot(problem, i / stride, page, slot, args.pairs);
    double want = args.scale * dot.sum;
    double error = args.scale * dot.magnitude * unit;
    if (args.soft_cap > 0.0f) {
      want = args.soft_cap * std::tanh(want / args.soft_cap);
      error += 1e-6 * args.soft_cap;
    }
    ASSERT_LE(std::fabs(got[i] - want), error) << i << " " << describe(problem.options);
  }
}

std::vector<uint16_t> some_pairs(size_t head_dim, std::mt19937& random) {
  std::vector<uint16_t> pairs;
  for (size_t pair = 0; pair < head_dim / 2; ++pair) {
    if (random() % 3 == 0) pairs.push_back(static_cast<uint16_t>(pair));
  }
  if (pairs.empty()) pairs.push_back(0);
  return pairs;
}

TEST_P(KeyLogits, AgreeWithDoublePrecision) {
  std::mt19937 random(3);
  for (const size_t head_dim : {2, 18, 32, 64, 72, 80, 128, 256}) {
    if (!stored(head_dim)) continue;
    for (const size_t rows : {1, 2, 3, 4, 5, 7, 8, 16}) {
      options_.head_dim = head_dim;
      options_.rows = rows;
      options_.keys = 1 + random() % 300;
      options_.rope_pairs = random() % 3 == 0 ? head_dim / 2 - random() % (head_dim / 2) : 0;
      options_.soft_cap = random() % 3 == 0 ? 4.0f : 0.0f;
      const AttentionCase problem = make_case();
      KeyLogitsArgs args = make_args(problem);
      expect_logits(problem, args, run(args));
      const std::vector<uint16_t> pairs = some_pairs(head_dim, random);
      args.pairs = pairs;
      expect_logits(problem, args, run(args));
    }
  }
}

TEST_P(KeyLogits, BestRowsHaveTheLargestProducts) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (const size_t rows : {1, 3, 4, 16, 33}) {
    for (const size_t pairs : {1, 2, 8, 9}) {
      options_.head_dim = 64;
      options_.rows = rows;
      options_.keys = 1 + random() % 700;
      const AttentionCase problem = make_case();
      KeyLogitsArgs args = make_args(problem);
      args.scale = 1.0f;
      args.soft_cap = 0.0f;
      std::vector<uint16_t> list(pairs);
      for (size_t i = 0; i < pairs; ++i) list[i] = static_cast<uint16_t>(3 * i + i % 2);
      args.pairs = list;
      std::vector<float> offsets(rows);
      for (float& offset : offsets) offset = normal(random);
      std::vector<int32_t> best(args.pages.size() * kPageTokens, -1);
      KeyLogitsArgs others = args;  // none of them counts
      others.scale = 0.1f;
      others.soft_cap = 0.5f;
      others.accumulate = true;
      best_rows(others, offsets.data(), best.data());
      const Logits products = run(args);
      for (size_t i = 0; i < best.size(); ++i) {
        if ((args.pages[i / kPageTokens].slots >> i % kPageTokens & 1) == 0) continue;
        if (args.pages[i / kPageTokens].index + i % kPageTokens >= options_.keys) continue;
        const auto value = [&](size_t row) {
          return products[row * best.size() + i] - offsets[row];
        };
        ASSERT_GE(best[i], 0);
        ASSERT_LT(best[i], static_cast<int32_t>(rows));
        for (size_t row = 0; row < rows; ++row) {
          ASSERT_LE(value(row), value(static_cast<size_t>(best[i])) + 1e-4f);
        }
      }
    }
  }
}

TEST_P(KeyLogits, ListsMayMixRotatedAndPlainPages) {
  options_.rope_pairs = 24;
  AttentionCase problem = make_case();
  for (size_t i = 0; i < problem.pages.size(); i += 3) problem.pages[i].cos_sin = nullptr;
  const KeyLogitsArgs args = make_args(problem);
  expect_logits(problem, args, run(args));
}

TEST_P(KeyLogits, PairsThatAreNotReadAreAsZeroInTheQuery) {
  std::mt19937 random(5);
  for (const size_t rope_pairs : {0, 32}) {
    options_.rope_pairs = rope_pairs;
    options_.keys = 304;  // whole pages: no slot that is read holds garbage
    AttentionCase problem = make_case();
    const std::vector<uint16_t> pairs = some_pairs(options_.head_dim, random);
    KeyLogitsArgs args = make_args(problem);
    args.pairs = pairs;
    const Logits some = run(args);
    for (size_t i = 0; i < problem.q.size(); ++i) {
      const auto pair = static_cast<uint16_t>(i % options_.head_dim / 2);
      if (!std::binary_search(pairs.begin(), pairs.end(), pair)) problem.q[i] = 0.0f;
    }
    args.pairs = {};
    EXPECT_EQ(some, run(args)) << describe(options_);
  }
}

TEST_P(KeyLogits, AccumulateAddsToWhatIsThere) {
  options_.keys = 304;
  const AttentionCase problem = make_case();
  KeyLogitsArgs args = make_args(problem);
  const Logits plain = run(args);
  args.accumulate = true;
  const Logits got = run(args, 1.25f);
  for (size_t i = 0; i < got.size(); ++i) {  // one rounding of the sum, and one of the product
    const float want = plain[i] + 1.25f, error = 0x1p-23f * (std::fabs(plain[i]) + 1.25f);
    ASSERT_TRUE(got[i] == want || std::fabs(got[i] - want) <= error) << describe(options_);
  }
}

TEST_P(KeyLogits, DoNotDependOnTheOtherRowsOrPages) {
  options_.rows = 11;
  for (const size_t rope_pairs : {0, 32}) {
    options_.rope_pairs = rope_pairs;
    const AttentionCase problem = make_case();
    KeyLogitsArgs all = make_args(problem);
    all.accumulate = rope_pairs == 0;
    const Logits want = run(all);
    const size_t stride = all.pages.size() * kPageTokens;
    for (const size_t rows : {1, 2, 3, 4, 6}) {
      for (const size_t pages : {1, 2, 3, 5}) {
        const size_t row = (3 * rows + pages) % (options_.rows - rows);
        const size_t page = (7 * pages + rows) % (all.pages.size() - pages);
        KeyLogitsArgs args = all;
        args.rows = rows;
        args.q += row * args.q_stride;
        args.pages = all.pages.subspan(page, pages);
        const Logits got = run(args);
        for (size_t r = 0; r < rows; ++r) {
          EXPECT_EQ(std::memcmp(&got[r * pages * kPageTokens],
                                &want[(row + r) * stride + page * kPageTokens],
                                pages * kPageTokens * sizeof(float)),
                    0)
              << rows << " rows " << pages << " pages " << describe(options_);
        }
      }
    }
  }
}

TEST_P(KeyLogits, NothingIsWrittenWithoutRowsOrPages) {
  const AttentionCase problem = make_case();
  KeyLogitsArgs args = make_args(problem);
  float out = 5.0f;
  args.out = &out;
  args.rows = 0;
  key_logits(args);
  args.rows = 3;
  args.pages = {};
  key_logits(args);
  EXPECT_EQ(out, 5.0f);
}

TEST_P(KeyLogits, BoundsAreThoseOfTheKeysThatAreSet) {
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  for (const uint32_t head_dim : {2u, 18u, 32u, 64u, 80u, 96u, 128u, 256u}) {
    if (!stored(head_dim)) continue;
    const KvLayout layout = {options_.type, 1, head_dim};
    std::vector<std::byte> page(layout.page_bytes());
    std::vector<float> key(head_dim);
    for (const uint32_t mask : {0xffffu, 1u, 0x8000u, 0x0ff0u, 0xa5a5u, 0x1234u}) {
      const auto slots = static_cast<uint16_t>(mask);
      std::vector<float> low(head_dim, kInfinity), high(head_dim, -kInfinity);
      for (size_t slot = 0; slot < kPageTokens; ++slot) {
        const bool set = (slots >> slot & 1) != 0;
        for (float& x : key) x = set ? normal(random) : (slot % 2 == 0 ? 6e4f : -6e4f);
        store_token(layout, page.data(), slot, key.data(), key.data());
        load_k(layout, page.data(), slot, key.data());
        for (size_t d = 0; set && d < head_dim; ++d) {
          low[d] = std::min(low[d], key[d]);
          high[d] = std::max(high[d], key[d]);
        }
      }
      std::vector<float> got_low(head_dim + 1, 77.0f), got_high(head_dim + 1, 77.0f);
      key_bounds(layout, page.data(), slots, got_low.data(), got_high.data());
      low.push_back(77.0f);  // nothing is written past the end
      high.push_back(77.0f);
      EXPECT_EQ(got_low, low) << head_dim << " " << mask;
      EXPECT_EQ(got_high, high) << head_dim << " " << mask;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, KeyLogits,
                         testing::Combine(testing::Values(Isa::kScalar, Isa::kAvx2, Isa::kAvx512),
                                          testing::ValuesIn(kKvTypes)),
                         [](const auto& test) {
                           return std::string(isa_name(std::get<0>(test.param))) + "_" +
                                  std::string(kv_type_name(std::get<1>(test.param)));
                         });

}  // namespace
}  // namespace reprise::kernels
