// Damage of any file of a store is found, and never gives wrong KV.
#include "kv/read_faults.h"
#include "store/store_testing.h"

namespace reprise {
namespace {

constexpr uint32_t kChunks = 3;

struct Damaged : testing::TestWithParam<BlockCodec> {
  const BlockCodec codec = GetParam();
  TemporaryFolder folder;
  std::string path = folder.file("store");
  std::string segment = path + "/seg-00000001.kv";
  std::string whole, index;  // what the files hold
  uint64_t record = 0;

  void SetUp() override {
    {
      ChunkStore store = open_store(path);
      for (uint32_t n = 0; n < kChunks; ++n) ASSERT_TRUE(add_chunk(store, n, codec));
      record = store.list()->front().place.bytes;
    }
    whole = read_all(segment);
    index = read_all(path + "/index.db");
  }
  void restore_index() const {
    remove_index();
    write_all(path + "/index.db", index);
  }
  /// Flips bits of a byte of the second chunk's record, looks, and puts everything back.
  void flip(uint64_t at, int bits, bool padding) {
    const uint64_t in_file = record + at;
    write_byte(segment, in_file, static_cast<char>(whole[in_file] ^ bits));
    {
      ChunkStore store = open_store(path);
      const auto bad = store.verify();
      ASSERT_TRUE(bad);
      ASSERT_EQ(bad->size(), padding ? 0u : 1u);
      ASSERT_EQ(look_up(store, 1, codec), padding ? Found::kRight : Found::kMissing);
      ASSERT_EQ(look_up(store, 2, codec), Found::kRight);
    }
    write_byte(segment, in_file, whole[in_file]);
    restore_index();
  }
  void remove_index() const {
    for (const char* name : {"/index.db", "/index.db-wal", "/index.db-shm"}) {
      std::filesystem::remove(path + name);
    }
  }
};

// A flipped bit of any byte is found by verify and by a read, and nothing else is lost: every bit
// of what describes a chunk, of some bytes of every block and of the zeros between; one of each
// other byte.
TEST_P(Damaged, FlippedBitsAreFound) {
  const auto chunk = [&] {
    ChunkStore store = open_store(path);
    return **store.find(store.list()->at(1));
  }();
  const RecordLayout& layout = chunk.record().layout;
  const uint64_t used = sizeof(ChunkHeader) + layout.about_bytes;
  const StoredBlock& last = chunk.record().blocks.back();
  const uint64_t blocks_end = last.offset + last.bytes;
  std::mt19937 random(1);
  for (uint64_t at = 0; at < chunk.row().place.bytes; ++at) {
    const bool padding = (at >= used && at < layout.blocks_offset) || at >= blocks_end;
    if (padding && at % 128 != 0) continue;
    const bool ends_block =
        std::ranges::any_of(chunk.record().blocks, [&](const StoredBlock& block) {
          return at == block.offset || at + 1 == block.offset + block.bytes;
        });
    const bool every_bit = at < used || ends_block || at % 64 == 0;
    const uint32_t one = random() % 8;
    for (uint32_t bit = 0; bit < 8; ++bit) {
      if (!every_bit && bit != one) continue;
      ASSERT_NO_FATAL_FAILURE(flip(at, 1 << bit, padding)) << at;
    }
  }
}

// The index may lose chunks then; what it finds is right, and it can be made again.
TEST_P(Damaged, FlippedBitsOfTheIndexGiveNoWrongKv) {
  std::mt19937 random(2);
  int lost = 0, made_again = 0;
  for (int n = 0; n < 150; ++n) {
    const size_t at = random() % index.size();
    for (int bit = 0; bit < 8; ++bit) {
      remove_index();
      std::string bad = index;
      bad[at] = static_cast<char>(bad[at] ^ 1 << bit);
      write_all(path + "/index.db", bad);
      bool all = true;
      if (auto store = ChunkStore::open(path, false)) {
        for (uint32_t i = 0; i < kChunks; ++i) {
          const Found found = look_up(*store, i, codec);
          ASSERT_NE(found, Found::kWrong) << at;
          all = all && found == Found::kRight;
        }
        made_again += store->take_warning().empty() ? 0 : 1;
      } else {
        all = false;
      }
      if (all) continue;
      ++lost;
      ASSERT_TRUE(ChunkStore::rebuild(path)) << at;
      ChunkStore again = open_store(path);
      for (uint32_t i = 0; i < kChunks; ++i) ASSERT_EQ(look_up(again, i, codec), Found::kRight);
    }
  }
  EXPECT_GT(lost, 0);
  EXPECT_GT(made_again, 0);
}

// It was dropped, so it can be added again.
TEST_P(Damaged, WhatWasDroppedIsAddedAgain) {
  write_byte(segment, record + 40, static_cast<char>(whole[record + 40] ^ 1));
  ChunkStore store = open_store(path);
  EXPECT_EQ(look_up(store, 1, codec), Found::kMissing);
  EXPECT_TRUE(*add_chunk(store, 1, codec));
  for (uint32_t n = 0; n < kChunks; ++n) EXPECT_EQ(look_up(store, n, codec), Found::kRight);
  ASSERT_TRUE(store.collect());
  for (uint32_t n = 0; n < kChunks; ++n) EXPECT_EQ(look_up(store, n, codec), Found::kRight);
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

TEST_P(Damaged, DamagedIndexIsMadeAgain) {
  std::filesystem::remove(path + "/index.db-wal");
  write_all(path + "/index.db", std::string(8192, 'x'));
  ChunkStore store = open_store(path);
  EXPECT_THAT(store.take_warning(), testing::HasSubstr("index of '" + path + "' was damaged"));
  EXPECT_EQ(store.take_warning(), "");
  for (uint32_t n = 0; n < kChunks; ++n) EXPECT_EQ(look_up(store, n, codec), Found::kRight);
  EXPECT_EQ(store.search(kTestIdentity, "number2", 3)->size(), 1u);
  ChunkStore again = open_store(path);
  EXPECT_TRUE(*add_chunk(again, 7, codec));
  EXPECT_EQ(again.take_warning(), "");
  EXPECT_EQ(look_up(store, 7, codec), Found::kRight);
}

// Damage behind the first page is found where it is read.
TEST_P(Damaged, DamagedPagesOfTheIndexAreMadeAgain) {
  write_all(path + "/index.db", index.substr(0, 4096) + std::string(index.size() - 4096, 'x'));
  ChunkStore store = open_store(path);
  for (uint32_t n = 0; n < kChunks; ++n) EXPECT_EQ(look_up(store, n, codec), Found::kRight);
  EXPECT_EQ(store.search(kTestIdentity, "number2", 3)->size(), 1u);
  EXPECT_THAT(store.take_warning(), testing::HasSubstr("index"));
}

// What a process has open meanwhile goes on with the index that another one makes.
TEST_P(Damaged, AnOpenStoreSeesTheIndexThatAnotherMakes) {
  ChunkStore open = open_store(path);
  EXPECT_TRUE(*add_chunk(open, 5, codec));
  ASSERT_TRUE(ChunkStore::rebuild(path));
  EXPECT_TRUE(*add_chunk(open, 6, codec));
  for (uint64_t at = 0; at < 14; ++at) write_byte(path + "/index.db", at, 'x');
  ChunkStore other = open_store(path);
  EXPECT_TRUE(*add_chunk(open, 7, codec));
  for (const uint32_t n : {0u, 5u, 6u, 7u}) {
    EXPECT_EQ(look_up(open, n, codec), Found::kRight);
    EXPECT_EQ(look_up(other, n, codec), Found::kRight);
  }
  EXPECT_EQ(open.damaged() + other.damaged(), 0u);
}

// The file may be anybody's.
TEST_P(Damaged, AnIndexWithoutSegmentsIsAnError) {
  remove_index();
  std::filesystem::remove(segment);
  write_all(path + "/index.db", std::string(8192, 'x'));
  const auto store = ChunkStore::open(path, true);
  ASSERT_FALSE(store);
  EXPECT_EQ(store.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(store.error().message, testing::HasSubstr("no segments"));
  EXPECT_EQ(read_all(path + "/index.db"), std::string(8192, 'x'));
}

TEST_P(Damaged, WhatWasRemovedDoesNotComeBackWithTheIndex) {
  {
    ChunkStore store = open_store(path);
    auto rows = *store.list();
    ASSERT_TRUE(add_chunk(store, 3, {.q8_0 = true}));
    ASSERT_TRUE(*add_chunk(store, 3, {}));  // in its place
    ASSERT_TRUE(store.remove({&rows[1], 1}));
    ASSERT_TRUE(store.remove({&store.list()->back(), 1}));
    ASSERT_TRUE(store.remove({&rows[2], 1}));
    ASSERT_TRUE(add_chunk(store, 2, codec));
  }
  ASSERT_TRUE(ChunkStore::rebuild(path));
  ChunkStore store = open_store(path);
  EXPECT_EQ(store.list()->size(), 2u);
  EXPECT_EQ(look_up(store, 0, codec), Found::kRight);
  EXPECT_EQ(look_up(store, 2, codec), Found::kRight);
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

// Removing a chunk by a wrong row harms no other one.
TEST_P(Damaged, RemovalErasesOnlyWhatItMeans) {
  for (const std::string wrong : {"bytes", "4096"}) {
    {
      auto database = SqlDatabase::open(path + "/index.db");
      ASSERT_TRUE(database);
      ASSERT_TRUE(database->run(("UPDATE chunks SET offset = offset + " + wrong).c_str()));
    }
    ChunkStore store = open_store(path);
    const auto rows = *store.list();
    ASSERT_TRUE(store.remove({&rows[0], 1}));
    EXPECT_EQ(read_all(segment), whole);
    ASSERT_TRUE(ChunkStore::rebuild(path));
  }
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

// A disk that fails to read says nothing of what lies on it.
TEST_P(Damaged, CollectKeepsWhatADiskFailsToRead) {
  int failed = 0;
  for (int every = 1; every <= 16; ++every) {
    const TemporaryFolder other;
    const std::string at = other.file("store");
    {
      ChunkStore store = open_store(at);
      for (uint32_t n = 0; n < kChunks; ++n) ASSERT_TRUE(add_chunk(store, n, codec));
      ASSERT_TRUE(store.remove({&store.list()->front(), 1}));
      const ReadFault fault(ReadFault::kBroken, every);
      failed += store.collect(1.0) ? 0 : 1;
    }
    ChunkStore store = open_store(at);
    EXPECT_EQ(look_up(store, 1, codec), Found::kRight) << every;
    EXPECT_EQ(look_up(store, 2, codec), Found::kRight) << every;
  }
  EXPECT_GT(failed, 2);
}

constexpr BlockCodec kTried[] = {{}, {.q8_0 = true, .zstd = true}};
INSTANTIATE_TEST_SUITE_P(Codecs, Damaged, testing::ValuesIn(kTried), [](const auto& codec) {
  std::string name(codec_name(codec.param));
  std::ranges::replace(name, '+', '_');
  return name;
});

}  // namespace
}  // namespace reprise
