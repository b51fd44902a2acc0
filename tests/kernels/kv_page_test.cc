#include "kernels/kv_page.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "base/float16.h"
#include "kernels/attention.h"
#include "kernels/isa.h"
#include "kernels/ops.h"

namespace reprise::kernels {
namespace {

std::vector<float> random_floats(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& x : values) x = normal(random);
  return values;
}

// Largest error of storing x: half a step of the type; q8_0 has 127 steps to the block's largest,
// bf12 tells nothing apart that is 2^15 times smaller than the token's.
float storing_error(KvType type, float x, float block_largest) {
  switch (type) {
    case KvType::kBF16:
      return std::fabs(x) * 0x1p-8f;
    case KvType::kF16:
      return std::fabs(x) * 0x1p-11f + 0x1p-25f;
    case KvType::kF32:
      return 0.0f;
    case KvType::kQ8_0:
      return block_largest / 127.0f * 0.5001f;
    case KvType::kBF12:
      return std::fabs(x) * 0x1p-8f + block_largest * 0x1p-15f;
  }
  return 0.0f;
}

class KvPage : public testing::TestWithParam<KvType> {};

TEST_P(KvPage, TokensComeBackWithinAStepAndDoNotDisturbEachOther) {
  for (const uint32_t head_dim : {32u, 64u, 80u, 96u, 128u, 256u}) {
    if (!suits(GetParam(), head_dim)) continue;
    const KvLayout layout = {GetParam(), 3, head_dim};
    const size_t width = layout.n_kv_head * head_dim;
    std::vector<std::byte> page(layout.page_bytes());
    const auto k = random_floats(kPageTokens * width, 1), v = random_floats(kPageTokens * width, 2);
    for (const size_t slot : {3, 0, 15, 7, 1, 2, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14}) {
      store_token(layout, page.data(), slot, &k[slot * width], &v[slot * width]);
    }
    std::vector<float> got_k(width), got_v(width);
    for (size_t slot = 0; slot < kPageTokens; ++slot) {
      load_token(layout, page.data(), slot, got_k.data(), got_v.data());
      for (size_t i = 0; i < width; ++i) {
        const size_t size = GetParam() == KvType::kQ8_0 ? kQ8Block : head_dim;
        const auto largest = [&](const std::vector<float>& values) {
          const float* block = &values[slot * width + i / size * size];
          float most = 0.0f;
          for (size_t j = 0; j < size; ++j) most = std::max(most, std::fabs(block[j]));
          return most;
        };
        const float want_k = k[slot * width + i], want_v = v[slot * width + i];
        ASSERT_LE(std::fabs(got_k[i] - want_k), storing_error(GetParam(), want_k, largest(k)));
        ASSERT_LE(std::fabs(got_v[i] - want_v), storing_error(GetParam(), want_v, largest(v)));
      }
    }
  }
}

// Tokens stored together, whole pages and parts of them, by every instruction set, are what tokens
// stored one by one are, bit by bit.
TEST_P(KvPage, TokensStoredTogetherAreThoseStoredOneByOne) {
  for (const uint32_t head_dim : {32u, 64u, 80u, 96u, 128u}) {
    if (!suits(GetParam(), head_dim)) continue;
    const KvLayout layout = {GetParam(), 3, head_dim};
    const size_t width = layout.n_kv_head * head_dim;
    auto k = random_floats(kPageTokens * width, 5), v = random_floats(kPageTokens * width, 6);
    if (GetParam() != KvType::kQ8_0) {
      const float special[] = {0.0f, -0.0f, 1e-40f, -1e-45f, 3.4e38f, INFINITY, -INFINITY, NAN};
      std::ranges::copy(special, k.begin() + 7);
      std::ranges::copy(special, v.begin() + 5);
    }
    for (const auto& [slot, count] :
         {std::pair<size_t, size_t>{0, 16}, {0, 15}, {1, 15}, {5, 3}, {15, 1}, {4, 0}}) {
      std::vector<std::byte> want(layout.page_bytes(), std::byte{7}), got = want;
      for (size_t i = 0; i < count; ++i) {
        store_token(layout, want.data(), slot + i, &k[i * width], &v[i * width]);
      }
      for (const Isa isa : machine_isas()) {
        const IsaScope scope(isa);
        std::ranges::fill(got, std::byte{7});
        store_tokens(layout, got.data(), slot, count, k.data(), v.data());
        EXPECT_EQ(got, want) << head_dim << ": " << count << " from " << slot << " on, "
                             << isa_name(isa);
      }
    }
  }
}

// A page of bf16 tokens is what the steps make of it that are one there, bit by bit.
TEST_P(KvPage, APageOfBf16IsWhatItsStepsMake) {
  for (const uint32_t head_dim : {32u, 64u, 80u, 96u, 128u}) {
    const KvLayout layout = {GetParam(), 3, head_dim};
    const size_t width = layout.n_kv_head * head_dim;
    std::vector<Bf16> k(kPageTokens * width), v(k.size());
    std::ranges::transform(random_floats(k.size(), 5), k.begin(), to_bf16);
    std::ranges::transform(random_floats(v.size(), 6), v.begin(), to_bf16);
    const float special[] = {0.0f, -0.0f, 1e-40f, 3.4e38f, INFINITY, -INFINITY, NAN, -NAN};
    std::ranges::transform(special, v.begin() + 5, to_bf16);
    std::ranges::transform(std::span(special).first(4), k.begin() + 7, to_bf16);
    for (const size_t pairs :
         {size_t{0}, size_t{7}, size_t{12}, size_t{24}, size_t{head_dim / 2}}) {
      if (2 * pairs > head_dim) continue;
      const auto angles = random_floats(kPageTokens * 2 * pairs, 7);
      for (const Isa isa : machine_isas()) {
        const IsaScope scope(isa);
        std::vector<std::byte> want(layout.page_bytes()), got(want.size());
        const Bf16Page from = {k.data(), v.data(), angles.data(), pairs};
        const bool stored = store_bf16_page(layout, got.data(), from);
        EXPECT_EQ(stored, GetParam() == KvType::kBF16 && head_dim % 32 == 0 && isa >= Isa::kAvx512);
        if (!stored) continue;
        std::vector<float> wide_k(k.size()), wide_v(v.size());
        widen(k.data(), k.size(), wide_k.data());
        widen(v.data(), v.size(), wide_v.data());
        for (size_t token = 0; token < kPageTokens; ++token) {
          rope(&wide_k[token * width], angles.data() + token * 2 * pairs, 3, head_dim, pairs);
        }
        store_tokens(layout, want.data(), 0, kPageTokens, wide_k.data(), wide_v.data());
        EXPECT_EQ(got, want) << head_dim << ", " << pairs << " pairs, " << isa_name(isa);
      }
    }
  }
}

TEST_P(KvPage, CopiesOfTokensAreTheSameBits) {
  const KvLayout layout = {GetParam(), 2, 96};
  const size_t width = layout.n_kv_head * layout.head_dim;
  std::vector<std::byte> from(layout.page_bytes()), before(from.size());
  for (size_t slot = 0; slot < kPageTokens; ++slot) {
    const auto k = random_floats(2 * width, 20 + static_cast<uint32_t>(slot));
    store_token(layout, from.data(), slot, k.data(), k.data());
    store_token(layout, before.data(), slot, &k[width], k.data());
  }
  for (const Isa isa : machine_isas()) {
    const IsaScope scope(isa);
    for (const auto& [slot, target] :
         {std::pair<size_t, size_t>{0, 0}, {0, 1}, {3, 8}, {3, 15}, {6, 2}, {15, 14}}) {
      std::vector<std::byte> to = before;
      copy_token(layout, 1, from.data(), slot, to.data(), target);
      for (size_t token = 0; token < kPageTokens; ++token) {
        std::vector<float> k(width), v(width), other_k(width), other_v(width), want_k(width),
            want_v(width);
        load_token(layout, to.data(), token, k.data(), v.data());
        load_token(layout, before.data(), token, want_k.data(), want_v.data());
        load_token(layout, from.data(), slot, other_k.data(), other_v.data());
        if (token == target) {
          std::copy_n(&other_k[layout.head_dim], layout.head_dim, &want_k[layout.head_dim]);
          std::copy_n(&other_v[layout.head_dim], layout.head_dim, &want_v[layout.head_dim]);
        }
        EXPECT_EQ(k, want_k) << isa_name(isa) << " " << slot << " to " << target << ": " << token;
        EXPECT_EQ(v, want_v) << isa_name(isa) << " " << slot << " to " << target << ": " << token;
      }
    }
  }
}

TEST_P(KvPage, ZerosAndSpecialValues) {
  const KvLayout layout = {GetParam(), 1, 64};
  std::vector<std::byte> page(layout.page_bytes());
  std::vector<float> k(64, 0.0f), v(64, 0.0f), got_k(64, 1.0f), got_v(64, 1.0f);
  store_token(layout, page.data(), 5, k.data(), v.data());
  load_token(layout, page.data(), 5, got_k.data(), got_v.data());
  EXPECT_EQ(got_k, k);
  EXPECT_EQ(got_v, v);
}

TEST_P(KvPage, TilesOfHeadsAreDisjointAndFillThePage) {
  const KvLayout layout = {GetParam(), 4, 96};
  size_t offset = 0;
  for (size_t head = 0; head < layout.n_kv_head; ++head) {
    EXPECT_EQ(layout.k_offset(head), offset);
    EXPECT_EQ(layout.v_offset(head), offset + layout.tile_bytes());
    offset += 2 * layout.tile_bytes();
  }
  EXPECT_EQ(layout.page_bytes(), offset);
  EXPECT_EQ(layout.tile_bytes() % 64, 0u);
}

INSTANTIATE_TEST_SUITE_P(Types, KvPage, testing::ValuesIn(kKvTypes),
                         [](const auto& test) { return std::string(kv_type_name(test.param)); });

TEST(KvLayout, ElementsLieWhereTheContractSays) {
  const KvLayout layout = {KvType::kBF16, 1, 64};
  std::vector<std::byte> page(layout.page_bytes());
  std::vector<float> k(64), v(64);
  for (size_t slot = 0; slot < kPageTokens; ++slot) {
    for (size_t d = 0; d < 64; ++d) {  // exact in bf16: at most 8 bits
      k[d] = static_cast<float>(d);
      v[d] = static_cast<float>(slot * 8 + d % 8);
    }
    store_token(layout, page.data(), slot, k.data(), v.data());
  }
  const auto element = [&](size_t i) {
    Bf16 value;
    std::memcpy(&value, &page[2 * i], 2);
    return to_float(value);
  };
  for (size_t slot = 0; slot < kPageTokens; ++slot) {
    for (size_t d = 0; d < 64; ++d) {
      EXPECT_EQ(element(d / 2 * 32 + slot * 2 + d % 2), static_cast<float>(d));
      EXPECT_EQ(element(64 * 16 + slot / 2 * 128 + d * 2 + slot % 2),
                static_cast<float>(slot * 8 + d % 8));
    }
  }
}

TEST(KvLayout, Bf12IsBf16UnlessFarBelowTheLargest) {
  const KvLayout layout = {KvType::kBF12, 2, 64}, wide = {KvType::kBF16, 2, 64};
  std::vector<std::byte> page(layout.page_bytes()), wide_page(wide.page_bytes());
  std::vector<float> k(128), v(128), want_k(128), want_v(128), got_k(128), got_v(128);
  std::mt19937 random(9);
  std::uniform_real_distribution<float> exponent(-14.999f, 0.0f);
  for (const float largest : {1e-20f, 0.3f, 1.0f, 7e4f, 1e30f}) {
    for (size_t i = 0; i < k.size(); ++i) {
      const float sign = random() % 2 == 0 ? -1.0f : 1.0f;
      k[i] = sign * largest * std::exp2(exponent(random));
      v[i] = -sign * largest * std::exp2(exponent(random));
    }
    for (size_t head = 0; head < 2; ++head) k[64 * head + 5] = v[64 * head + 63] = largest;
    k[40] = largest * 0x1p-17f;
    v[3] = 0.0f;
    store_token(layout, page.data(), 6, k.data(), v.data());
    load_token(layout, page.data(), 6, got_k.data(), got_v.data());
    store_token(wide, wide_page.data(), 6, k.data(), v.data());
    load_token(wide, wide_page.data(), 6, want_k.data(), want_v.data());
    const float least = std::exp2(std::floor(std::log2(to_float(to_bf16(largest)))) - 15);
    want_k[40] = want_v[3] = least;
    EXPECT_EQ(got_k, want_k) << largest;
    EXPECT_EQ(got_v, want_v) << largest;
  }
}

// Tiles as they are multiplied hold what tokens hold, whatever their sizes.
TEST(KvLayout, KernelsReadEveryScaleOfBf12) {
  constexpr uint32_t kDim = 96;
  const KvLayout layout = {KvType::kBF12, 1, kDim};
  std::vector<std::byte> page(layout.page_bytes());
  for (size_t slot = 0; slot < kPageTokens; ++slot) {
    auto k = random_floats(kDim, static_cast<uint32_t>(slot)), v = k;
    const float size = slot == 3 ? 0.0f : std::ldexp(1.0f, 12 * static_cast<int>(slot) - 96);
    for (float& x : k) x *= size;
    for (float& x : v) x *= size;
    store_token(layout, page.data(), slot, k.data(), v.data());
  }
  PageSpan span;
  span.k = page.data() + layout.k_offset(0);
  span.v = page.data() + layout.v_offset(0);
  const int32_t begin = 0, end = kPageTokens;
  for (size_t slot = 0; slot < kPageTokens; ++slot) {
    span.slots = static_cast<uint16_t>(1u << slot);
    std::vector<float> q(kDim), k(kDim), v(kDim), out(kDim);
    load_k(layout, span.k, slot, k.data());
    load_v(layout, span.v, slot, v.data());
    q[5] = k[5] == 0.0f ? 1.0f : to_float(to_bf16(1.0f / k[5]));  // a logit of about 1
    float lse = 0.0f;
    AttendArgs args;
    args.layout = &layout;
    args.rows = 1;
    args.q = q.data();
    args.row_begin = &begin;
    args.row_end = &end;
    args.pages = {&span, 1};
    args.out = out.data();
    args.lse = &lse;
    std::vector<std::byte> scratch(attend_scratch_bytes(args));
    for (const Isa isa : machine_isas()) {
      const IsaScope scope(isa);
      for (const Phase phase : {Phase::kDecode, Phase::kPrefill}) {
        args.phase = phase;
        attend(args, scratch.data());
        EXPECT_NEAR(lse, q[5] * k[5], 0x1p-7f) << slot << isa_name(isa);
        for (size_t d = 0; d < kDim; ++d) {
          // The weight is one, or rounded to bf16 where its base is not its logit.
          EXPECT_NEAR(out[d], v[d], std::fabs(v[d]) * 0x1p-7f) << slot << isa_name(isa);
        }
      }
    }
  }
}

// Slots of a page that is given on are read before they are written, if only times zero.
TEST_P(KvPage, LargeValuesStayFinite) {
  const KvLayout layout = {GetParam(), 1, 64};
  std::vector<std::byte> page(layout.page_bytes());
  std::vector<float> k(64, 1e6f), v(64, -3e20f);
  store_token(layout, page.data(), 3, k.data(), v.data());
  load_token(layout, page.data(), 3, k.data(), v.data());
  for (size_t d = 0; d < 64; ++d) {
    EXPECT_TRUE(std::isfinite(k[d]) && k[d] >= 65504.0f) << k[d];
    EXPECT_TRUE(std::isfinite(v[d]) && v[d] <= -65504.0f) << v[d];
  }
}

TEST_P(KvPage, ValuesThatAreNoNumbersAreStoredAsSome) {
  const KvLayout layout = {GetParam(), 2, 64};
  const size_t width = layout.n_kv_head * layout.head_dim;
  for (const float bad : {NAN, -NAN, INFINITY, -INFINITY, 3.4e38f, -3.4e38f}) {
    std::vector<float> k(kPageTokens * width, 1.0f), v(k.size(), 1.0f);
    for (size_t i = 0; i < v.size(); i += 7) v[i] = bad;
    for (const size_t count : {size_t{1}, kPageTokens}) {
      for (const Isa isa : machine_isas()) {
        const IsaScope scope(isa);
        std::vector<std::byte> page(layout.page_bytes());
        store_tokens(layout, page.data(), 0, count, k.data(), v.data());
        std::vector<float> got_k(width), got_v(width);
        load_token(layout, page.data(), count - 1, got_k.data(), got_v.data());
        for (const float x : got_v) ASSERT_TRUE(std::isfinite(x)) << bad << isa_name(isa);
        EXPECT_TRUE(std::ranges::all_of(got_k, [](float x) { return x == 1.0f; }));
      }
    }
  }
}

TEST_P(KvPage, ACopiedTokenIsTheSameAndDisturbsNoOther) {
  const KvLayout layout = {GetParam(), 3, 96};
  const size_t width = layout.n_kv_head * layout.head_dim;
  std::vector<std::byte> from(layout.page_bytes()), to(layout.page_bytes());
  const auto k = random_floats(2 * kPageTokens * width, 3), v = random_floats(k.size(), 4);
  for (size_t slot = 0; slot < kPageTokens; ++slot) {
    store_token(layout, from.data(), slot, &k[slot * width], &v[slot * width]);
    const size_t other = kPageTokens + slot;
    store_token(layout, to.data(), slot, &k[other * width], &v[other * width]);
  }
  const auto before = to;
  copy_token(layout, 1, from.data(), 5, to.data(), 14);
  std::vector<float> want_k(width), want_v(width), got_k(width), got_v(width);
  for (size_t slot = 0; slot < kPageTokens; ++slot) {
    load_token(layout, to.data(), slot, got_k.data(), got_v.data());
    load_token(layout, before.data(), slot, want_k.data(), want_v.data());
    if (slot == 14) {
      load_k(layout, &from[layout.k_offset(1)], 5, &want_k[layout.head_dim]);
      load_v(layout, &from[layout.v_offset(1)], 5, &want_v[layout.head_dim]);
    }
    EXPECT_EQ(got_k, want_k) << slot;
    EXPECT_EQ(got_v, want_v) << slot;
  }
  copy_token(layout, 1, to.data(), 14, to.data(), 2);
  load_v(layout, &to[layout.v_offset(1)], 2, got_v.data());
  load_v(layout, &from[layout.v_offset(1)], 5, want_v.data());
  EXPECT_EQ(got_v, want_v);
}

}  // namespace
}  // namespace reprise::kernels
