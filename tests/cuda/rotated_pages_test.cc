#include "kernels/cuda/rotated_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/float16.h"
#include "cuda/device_testing.h"
#include "cuda/page_testing.h"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kPages = 7, kHeads = 3, kCopied = 5;

double angle(uint32_t position, uint32_t pair) { return position * std::pow(0.7, pair); }

// [count][pairs][2] of positions step * i.
std::vector<float> angles(uint32_t count, uint32_t step, uint32_t pairs, double factor) {
  std::vector<float> table;
  for (uint32_t i = 0; i < count * pairs; ++i) {
    const double turn = angle(step * (i / pairs), i % pairs);
    table.push_back(static_cast<float>(factor * std::cos(turn)));
    table.push_back(static_cast<float>(factor * std::sin(turn)));
  }
  return table;
}

// named: the keys that are copied; empty: all.
void check(KvType type, uint32_t dim, uint32_t pairs, const std::vector<int32_t>& named = {}) {
  constexpr double kFactor = 1.25;
  const KvType out_type = rotated_type(type);
  std::mt19937 random(dim + pairs);
  TestTiles tiles(type, dim, kPages * kHeads * 2), copies(out_type, dim, kCopied * kHeads * 2);
  tiles.fill(random);
  const std::vector<uint32_t> order = {6, 0, 3, 3, 5};
  const DeviceArray<uint8_t> kv(tiles.bytes()), out(copies.bytes().size(), 0xff);
  const DeviceArray<uint32_t> pages(order);
  const DeviceArray<float> of_pages(angles(kCopied, kPageTokens, pairs, kFactor)),
      of_tokens(angles(kPageTokens, 1, pairs, 1.0));
  RotatedPagesArgs args;
  args.kv = {kv.get(), type, kHeads, dim};
  args.pages = pages.get();
  args.count = kCopied;
  args.angles = {of_pages.get(), of_tokens.get(), pairs};
  args.out = out.get();
  const auto count = static_cast<uint32_t>(named.empty() ? kCopied * kPageTokens : named.size());
  const DeviceArray<int32_t> tokens(named), keys(std::vector<int32_t>{static_cast<int32_t>(count)});
  if (!named.empty()) {
    args.tokens = tokens.get();
    args.keys = keys.get();
  }
  ASSERT_EQ(rotate_pages(args, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  copies.bytes() = out.host();
  const double round = out_type == KvType::kBF16 ? 0x1.01p-8 : 0x1.01p-11;
  for (uint32_t i = 0; i < kCopied * kHeads * 2 * kPageTokens * dim; ++i) {
    const uint32_t d = i % dim, token = i / dim % kPageTokens, tile = i / dim / kPageTokens;
    const uint32_t place = tile / (kHeads * 2), in_page = tile % (kHeads * 2);
    const uint32_t position = place * kPageTokens + token;
    if (position >= count) {
      const bool in_last = place * kPageTokens < count;
      ASSERT_TRUE(!in_last || std::isfinite(copies.value(tile, token, d)));
      continue;
    }
    const auto key = named.empty() ? position : static_cast<uint32_t>(named[position]);
    const size_t from = size_t{order[key / kPageTokens]} * kHeads * 2 + in_page;
    const uint32_t slot = key % kPageTokens;
    double want = tiles.value(from, slot, d), size = std::fabs(want);
    if (in_page % 2 == 0 && d / 2 < pairs) {
      const double other = tiles.value(from, slot, d ^ 1);
      const double turn = angle(position, d / 2);
      size = kFactor * (size + std::fabs(other));
      want = kFactor * (want * std::cos(turn) + (d % 2 == 0 ? -other : other) * std::sin(turn));
    }
    ASSERT_NEAR(copies.value(tile, token, d), want,
                round * std::fabs(want) + 0x1p-20 * size + 0x1p-25)
        << "tile " << tile << ", token " << token << ", dimension " << d;
  }
}

TEST(RotatedPages, KeysStandAtTheirPlacesAndValuesAreCopied) {
  REPRISE_NEEDS_DEVICE();
  for (const KvType type : {KvType::kBF16, KvType::kF16, KvType::kFP8}) {
    for (const uint32_t dim : {64u, 96u, 128u, 256u}) {
      for (const uint32_t pairs : {dim / 2, dim / 4}) {
        SCOPED_TRACE(std::to_string(static_cast<int>(type)) + ", head_dim " + std::to_string(dim));
        check(type, dim, pairs);
        check(type, dim, pairs,
              {0, 1, 2, 17, 18, 31, 32, 33, 40, 41, 42, 43, 44, 45, 46, 47, 48, 64, 65, 79});
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(RotatedPages, WhatIsNotServedIsSaid) {
  RotatedPagesArgs args;
  args.count = 1;
  args.kv = {nullptr, KvType::kFP8, 1, 72};
  EXPECT_EQ(rotate_pages(args, nullptr), cudaErrorNotSupported);
}

}  // namespace
}  // namespace reprise::kernels::cuda
