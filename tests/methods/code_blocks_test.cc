// Codes stay what they are wherever they lie.
#include "methods/code_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace reprise {
namespace {

constexpr size_t kPlanes = 3;

uint8_t expected(size_t plane, size_t key, unsigned seed) {
  return static_cast<uint8_t>(key * 7 + key / 256 * 31 + plane * 101 + seed);
}

void fill(CodeBlocks& codes, size_t first, size_t end, unsigned seed = 0) {
  codes.own(first, end);
  for (size_t key = first; key < end; ++key) {
    for (size_t plane = 0; plane < kPlanes; ++plane) {
      codes.block(key)[plane * CodeBlocks::kBlock + key % CodeBlocks::kBlock] =
          expected(plane, key, seed);
    }
  }
  codes.join(end);
}

size_t wrong(const CodeBlocks& codes, size_t first, size_t end, unsigned seed = 0) {
  size_t wrong = 0;
  for (size_t key = first; key < end; ++key) {
    for (size_t plane = 0; plane < kPlanes; ++plane) {
      const CodeBlocks::Place place = codes.place(key);
      wrong += place.codes[plane * place.stride] != expected(plane, key, seed);
    }
  }
  return wrong;
}

TEST(CodeBlocks, JoinIntoRunsAsTheyGrow) {
  for (const size_t step : {16u, 100u, 5000u, 20000u}) {
    CodeBlocks codes(kPlanes);
    for (size_t first = 0; first < 9000; first += step) {
      fill(codes, first, std::min<size_t>(9000, first + step));
    }
    EXPECT_EQ(codes.run_keys(), 8192u);
    EXPECT_EQ(codes.bytes(), kPlanes * (8192u + 1024u));
    EXPECT_EQ(wrong(codes, 0, 9000), 0u) << step;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(codes.place(4096).codes) % 4096, 0u);
  }
}

TEST(CodeBlocks, CopiesAndCutsKeepTheirOwn) {
  CodeBlocks codes(kPlanes);
  fill(codes, 0, 9000);
  for (const size_t length : {9000u, 8960u, 8500u, 8192u, 8100u, 5000u, 4096u, 10u, 0u}) {
    CodeBlocks copy = codes;
    copy.truncate(length);
    EXPECT_EQ(wrong(copy, 0, length), 0u) << length;
    fill(copy, length, 9100, 5);
    EXPECT_EQ(copy.run_keys(), 8192u);
    EXPECT_EQ(wrong(copy, 0, length), 0u) << length;
    EXPECT_EQ(wrong(copy, length, 9100, 5), 0u) << length;
  }
  EXPECT_EQ(wrong(codes, 0, 9000), 0u);
}

}  // namespace
}  // namespace reprise
