#include "kernels/cuda/packed_keys.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "cuda/device_testing.h"
#include "cuda/page_testing.h"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kOwn = 40, kPacked = 12;

// Pages of a sequence and of packed keys, in any order of ids.
struct Tables {
  explicit Tables(std::mt19937& random) {
    std::vector<uint32_t> ids(kOwn + kPacked);
    std::iota(ids.begin(), ids.end(), 0u);
    std::shuffle(ids.begin(), ids.end(), random);
    own.assign(ids.begin(), ids.begin() + kOwn);
    packed.assign(ids.begin() + kOwn, ids.end());
  }
  std::vector<uint32_t> own, packed;
};

// Some keys are packed, then those behind them, and what lies around them stays as it was.
TEST(PackKeys, CopiesThoseThatAreNamed) {
  REPRISE_NEEDS_DEVICE();
  for (const KvType type : {KvType::kBF16, KvType::kF16, KvType::kFP8}) {
    for (const uint32_t dim : {64u, 96u, 128u, 256u}) {
      const uint32_t heads = 3, count = 133, first = 37;
      std::mt19937 random(dim);
      const Tables tables(random);
      TestTiles tiles(type, dim, size_t{kOwn + kPacked} * heads * 2);
      tiles.fill(random);
      std::vector<int32_t> positions(kOwn * kPageTokens);
      std::iota(positions.begin(), positions.end(), 0);
      std::shuffle(positions.begin(), positions.end(), random);
      positions.resize(count);
      std::sort(positions.begin(), positions.end());
      DeviceArray<uint8_t> bytes(tiles.bytes());
      const DeviceArray<uint32_t> own(tables.own), packed(tables.packed);
      const DeviceArray<int32_t> keys(positions);
      PackKeysArgs args;
      args.kv = {bytes.get(), type, heads, dim};
      args.pages = own.get();
      args.positions = keys.get();
      args.packed_pages = packed.get();
      args.first = first;
      args.end = count;
      ASSERT_EQ(pack_keys(args, nullptr), cudaSuccess);
      const TestTiles before = tiles;
      tiles.bytes() = bytes.host();
      for (uint32_t key = 0; key < kPacked * kPageTokens; ++key) {
        const bool copied = key >= first && key < count;
        const auto at = copied ? static_cast<uint32_t>(positions[key]) : key;
        const uint32_t from = copied ? tables.own[at / 16] : tables.packed[at / 16];
        for (uint32_t tile = 0; tile < heads * 2; ++tile) {
          const size_t to = size_t{tables.packed[key / 16]} * heads * 2 + tile;
          for (uint32_t d = 0; d < dim; ++d) {
            ASSERT_EQ(tiles.value(to, key % 16, d),
                      before.value(size_t{from} * heads * 2 + tile, at % 16, d))
                << "key " << key << ", tile " << tile;
          }
        }
      }
    }
  }
}

TEST(PackedTables, HavePackedPagesBeforeThoseOfTheSequence) {
  REPRISE_NEEDS_DEVICE();
  std::mt19937 random(3);
  const Tables tables(random);
  const std::vector<PackedTable> wanted = {{0, 0}, {12, 31}, {5, 5}, {0, 39}, {12, 0}};
  constexpr uint32_t kCapacity = kOwn + kPacked;
  DeviceArray<uint32_t> out(wanted.size() * kCapacity, 0xff);
  const DeviceArray<uint32_t> own(tables.own), packed(tables.packed);
  const DeviceArray<PackedTable> rows(wanted);
  PackedTablesArgs args;
  args.pages = own.get();
  args.pages_end = kOwn;
  args.packed_pages = packed.get();
  args.tables = rows.get();
  args.count = static_cast<uint32_t>(wanted.size());
  args.capacity = kCapacity;
  args.out = out.get();
  ASSERT_EQ(packed_tables(args, nullptr), cudaSuccess);
  const std::vector<uint32_t> got = out.host();
  for (size_t i = 0; i < wanted.size(); ++i) {
    std::vector<uint32_t> want(tables.packed.begin(), tables.packed.begin() + wanted[i].packed);
    want.insert(want.end(), tables.own.begin() + wanted[i].first, tables.own.end());
    want.resize(kCapacity, ~0u);
    EXPECT_EQ(std::vector<uint32_t>(got.begin() + static_cast<std::ptrdiff_t>(i * kCapacity),
                                    got.begin() + static_cast<std::ptrdiff_t>((i + 1) * kCapacity)),
              want);
  }
}

}  // namespace
}  // namespace reprise::kernels::cuda
