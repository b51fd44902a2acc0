// Chunks in several forms in one store.
#include "store/store_testing.h"

namespace reprise {
namespace {

BlockCodec codec_of(uint32_t number) { return kTestCodecs[number % std::size(kTestCodecs)]; }

void expect_all(ChunkStore& store, uint32_t count) {
  for (uint32_t n = 0; n < count; ++n) {
    EXPECT_EQ(look_up(store, n, codec_of(n)), Found::kRight) << n;
  }
  EXPECT_TRUE(store.verify()->empty());
}

TEST(StoredForms, OneStoreHoldsSeveral) {
  const TemporaryFolder folder;
  const std::string path = folder.file("store");
  {
    ChunkStore store = open_store(path, {.segment_bytes = 100'000});
    for (uint32_t n = 0; n < 40; ++n) ASSERT_TRUE(add_chunk(store, n, codec_of(n)).value());
    expect_all(store, 40);
  }
  ASSERT_TRUE(ChunkStore::rebuild(path));
  ChunkStore store = open_store(path, {.segment_bytes = 100'000});
  expect_all(store, 40);
  auto rows = *store.list();
  for (const ChunkRow& row : rows) {
    EXPECT_EQ((*store.read(row))->record().codec, codec_of(row.part));
  }
  std::erase_if(rows, [](const ChunkRow& row) { return row.part < 20; });
  ASSERT_TRUE(store.remove(rows));
  EXPECT_GT(*store.collect(1.0), 0u);
  EXPECT_EQ(store.stats()->disk_bytes, store.stats()->live_bytes);
  expect_all(store, 20);
}

// Compressed records are smaller, so more of them stay.
TEST(StoredForms, EvictionCountsStoredBytes) {
  const TemporaryFolder folder;
  const ChunkIdentity wide = {{1, 2, 3}, kernels::KvType::kBF16, 4, 4, 64};
  uint64_t kept[2] = {};
  for (const bool zstd : {false, true}) {
    ChunkStore store = open_store(folder.file(zstd ? "small" : "large"), {.bytes = 3'000'000});
    for (uint32_t n = 0; n < 60; ++n) {
      const TestChunk chunk = make_chunk(20, wide);
      auto ids = chunk.tokens;
      ids[0] = static_cast<int32_t>(n);
      ASSERT_TRUE(store.add(wide, {kTestContext, ids}, chunk.source, chunk.blocks, {.zstd = zstd}));
      EXPECT_LE(store.stats()->disk_bytes, 3'000'000u);
    }
    kept[zstd ? 1 : 0] = store.stats()->chunks;
  }
  EXPECT_GT(kept[1], kept[0] * 6 / 5);
}

// Rounded values do not stand for exact ones; the better form stays, whatever comes later.
TEST(StoredForms, ExactReplacesRounded) {
  const TemporaryFolder folder;
  const std::string path = folder.file("store");
  const BlockCodec rounded = {.q8_0 = true}, exact = {.zstd = true};
  {
    ChunkStore store = open_store(path);
    EXPECT_TRUE(add_chunk(store, 1, rounded).value());
    EXPECT_FALSE(add_chunk(store, 1, rounded).value());
    const auto before = store.list()->front();
    EXPECT_TRUE(add_chunk(store, 1, exact).value());
    EXPECT_EQ(look_up(store, 1), Found::kRight);
    EXPECT_EQ(look_up(store, 1, rounded), Found::kWrong);
    EXPECT_EQ(store.stats()->chunks, 1u);
    EXPECT_EQ(store.search(kTestIdentity, "number1", 5)->size(), 1u);
    EXPECT_EQ((*store.find(before))->record().codec, exact);  // the row is looked up once more
    EXPECT_FALSE(add_chunk(store, 1, rounded).value());
    EXPECT_FALSE(add_chunk(store, 1, {}).value());
  }
  // Earlier versions left both in the segment.
  const std::string segment = path + "/seg-00000001.kv";
  write_all(segment, read_all(segment).replace(0, kChunkMagic.size(), kChunkMagic.data(),
                                               kChunkMagic.size()));
  ASSERT_TRUE(ChunkStore::rebuild(path));
  ChunkStore store = open_store(path);
  EXPECT_EQ(look_up(store, 1), Found::kRight);
  EXPECT_EQ(store.stats()->chunks, 1u);
}

TEST(StoredForms, WhatCannotBeRoundedIsAnError) {
  const TemporaryFolder folder;
  ChunkStore store = open_store(folder.file("store"));
  TestChunk chunk = make_chunk(1);
  chunk.blocks[3] = std::byte{0x7f};
  chunk.blocks[2] = std::byte{0xff};
  const auto added = store.add(kTestIdentity, chunk.ids(), {}, chunk.blocks, {.q8_0 = true});
  ASSERT_FALSE(added);
  EXPECT_EQ(added.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(store.stats()->chunks, 0u);
}

}  // namespace
}  // namespace reprise
