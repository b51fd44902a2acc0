// Damage of any file of a store is found, and never gives wrong KV.
#include "store/store_testing.h"

namespace reprise {
namespace {

constexpr uint32_t kChunks = 3;

struct Damaged : testing::TestWithParam<BlockCodec> {
  const BlockCodec codec = GetParam();
  TemporaryFolder folder;
  std::string path = folder.file("store");
  std::string segment = path + "/seg-00000001.kv";
  std::string whole;
  uint64_t record = 0;

  void SetUp() override {
    ChunkStore store = open_store(path);
    for (uint32_t n = 0; n < kChunks; ++n) ASSERT_TRUE(add_chunk(store, n, codec));
    record = store.list()->front().place.bytes;
    whole = read_all(segment);
  }
  void remove_index() const {
    for (const char* name : {"/index.db", "/index.db-wal", "/index.db-shm"}) {
      std::filesystem::remove(path + name);
    }
  }
};

// A flipped bit of any byte is found by verify; a read is right or a miss.
TEST_P(Damaged, EveryFlippedByteIsFound) {
  const auto chunk = [&] {
    ChunkStore store = open_store(path);
    return **store.find(store.list()->at(1));
  }();
  const uint64_t start = chunk.row().place.offset;
  const RecordLayout& layout = chunk.record().layout;
  const uint64_t used = sizeof(ChunkHeader) + layout.about_bytes;
  const StoredBlock& last = chunk.record().blocks.back();
  const uint64_t blocks_end = last.offset + last.bytes;
  std::mt19937 random(1);
  for (uint64_t at = 0; at < chunk.row().place.bytes; ++at) {
    const bool padding = (at >= used && at < layout.blocks_offset) || at >= blocks_end;
    if (padding && at % 64 != 0) continue;
    const int bit = 1 << random() % 8;
    write_byte(segment, start + at, static_cast<char>(whole[start + at] ^ bit));
    {
      ChunkStore store = open_store(path);
      const auto bad = store.verify();
      ASSERT_TRUE(bad);
      ASSERT_EQ(bad->size(), padding ? 0u : 1u) << at;
      ASSERT_EQ(look_up(store, 1, codec), padding ? Found::kRight : Found::kMissing) << at;
      ASSERT_EQ(look_up(store, 2, codec), Found::kRight);
    }
    write_byte(segment, start + at, whole[start + at]);
    ChunkStore store = open_store(path);
    if (look_up(store, 1, codec) == Found::kRight) continue;
    ASSERT_TRUE(*add_chunk(store, 1, codec));  // it was dropped, so it can be added again
    ASSERT_TRUE(store.remove(*store.list()));
    ASSERT_TRUE(store.collect());
    for (uint32_t n = 0; n < kChunks; ++n) ASSERT_TRUE(*add_chunk(store, n, codec));
    segment = fmt::format("{}/seg-{:08}.kv", path, store.list()->front().place.segment);
    ASSERT_EQ(read_all(segment), whole);
  }
}

TEST_P(Damaged, CutOffAnywhere) {
  for (size_t length = 0; length <= whole.size(); length += 97) {
    remove_index();
    write_all(segment, whole);
    { open_store(path); }  // index of the whole segment
    std::filesystem::resize_file(segment, length);
    ChunkStore store = open_store(path);
    for (uint32_t n = 0; n < kChunks; ++n) {
      const Found found = look_up(store, n, codec);
      ASSERT_NE(found, Found::kWrong);
      const bool whole_record = length >= (n + 1) * record, none = length <= n * record;
      ASSERT_TRUE(!whole_record || found == Found::kRight) << length;
      ASSERT_TRUE(!none || found == Found::kMissing) << length;
    }
  }
}

TEST_P(Damaged, LostIndexIsMadeAgain) {
  remove_index();
  ChunkStore store = open_store(path);
  for (uint32_t n = 0; n < kChunks; ++n) EXPECT_EQ(look_up(store, n, codec), Found::kRight);
  EXPECT_EQ(store.search(kTestIdentity, "number2", 3)->size(), 1u);
}

// Records behind a damaged one are found again, too.
TEST_P(Damaged, RebuildSkipsWhatIsDamaged) {
  remove_index();
  write_byte(segment, record + 40, static_cast<char>(whole[record + 40] ^ 1));
  ChunkStore store = open_store(path);
  EXPECT_EQ(look_up(store, 0, codec), Found::kRight);
  EXPECT_EQ(look_up(store, 1, codec), Found::kMissing);
  EXPECT_EQ(look_up(store, 2, codec), Found::kRight);
}

TEST_P(Damaged, DamagedIndexIsAnErrorUntilRebuilt) {
  std::filesystem::remove(path + "/index.db-wal");
  write_all(path + "/index.db", std::string(8192, 'x'));
  const auto store = ChunkStore::open(path, false);
  ASSERT_FALSE(store);
  EXPECT_EQ(store.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(store.error().message, testing::HasSubstr("verify --rebuild"));
  ASSERT_TRUE(ChunkStore::rebuild(path));
  ChunkStore again = open_store(path);
  for (uint32_t n = 0; n < kChunks; ++n) EXPECT_EQ(look_up(again, n, codec), Found::kRight);
}

// Rows of the index that point elsewhere find another chunk or none, never its KV.
TEST_P(Damaged, IndexThatPointsElsewhere) {
  {
    auto database = SqlDatabase::open(path + "/index.db");
    ASSERT_TRUE(database);
    ASSERT_TRUE(database->run("UPDATE chunks SET offset = offset + bytes"));
  }
  ChunkStore store = open_store(path);
  for (uint32_t n = 0; n < kChunks; ++n) EXPECT_EQ(look_up(store, n, codec), Found::kMissing);
  EXPECT_EQ(store.damaged(), kChunks);
}

TEST_P(Damaged, CollectDropsWhatCannotBeRead) {
  ChunkStore store = open_store(path);
  const auto rows = *store.list();
  ASSERT_TRUE(store.remove({&rows[0], 1}));
  write_byte(segment, 2 * record - 4000, '\x55');
  const uint64_t blocks = rows[1].place.offset + 4096;
  write_byte(segment, blocks, static_cast<char>(whole[blocks] ^ 1));
  ASSERT_TRUE(store.collect(1.0));
  EXPECT_EQ(look_up(store, 1, codec), Found::kMissing);
  EXPECT_EQ(look_up(store, 2, codec), Found::kRight);
}

constexpr BlockCodec kTried[] = {{}, {.q8_0 = true, .zstd = true}};
INSTANTIATE_TEST_SUITE_P(Codecs, Damaged, testing::ValuesIn(kTried), [](const auto& codec) {
  std::string name(codec_name(codec.param));
  std::ranges::replace(name, '+', '_');
  return name;
});

}  // namespace
}  // namespace reprise
