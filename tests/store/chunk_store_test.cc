// What goes into the store comes out of it, and nothing else.
#include "store/chunk_store.h"

#include "store/store_testing.h"

namespace reprise {
namespace {

using testing::HasSubstr;

std::string code_of(const auto& result) {
  return result ? "done" : std::string(error_name(result.error().code));
}

TEST(ChunkStore, GivesBackWhatWasAdded) {
  const TemporaryFolder folder;
  {
    ChunkStore store = open_store(folder.file("store"));
    for (uint32_t n = 0; n < 50; ++n) ASSERT_TRUE(add_chunk(store, n).value());
    for (uint32_t n = 0; n < 50; ++n) EXPECT_EQ(look_up(store, n), Found::kRight);
    EXPECT_EQ(look_up(store, 50), Found::kMissing);
  }
  ChunkStore again = open_store(folder.file("store"));
  for (uint32_t n = 0; n < 50; ++n) EXPECT_EQ(look_up(again, n), Found::kRight);
  const auto rows = again.list();
  ASSERT_TRUE(rows);
  ASSERT_EQ(rows->size(), 50u);
  EXPECT_EQ((*rows)[7].part, 7u);
  EXPECT_EQ((*rows)[7].document, "document");
  const auto chunk = again.find((*rows)[7]);
  ASSERT_TRUE(chunk && *chunk);
  EXPECT_EQ((*chunk)->record().source.text, "chunk number7");
  EXPECT_TRUE(again.verify()->empty());
}

TEST(ChunkStore, AddsEqualChunksOnce) {
  const TemporaryFolder folder;
  ChunkStore store = open_store(folder.file("store"));
  EXPECT_EQ(*add_chunk(store, 1), true);
  const uint64_t bytes = store.stats()->disk_bytes;
  EXPECT_EQ(*add_chunk(store, 1), false);
  EXPECT_EQ(store.stats()->disk_bytes, bytes);
  EXPECT_EQ(store.stats()->chunks, 1u);
}

// A change of anything that the KV depends on is a miss.
TEST(ChunkStore, IdentityAndTokensMustAgree) {
  const TemporaryFolder folder;
  ChunkStore store = open_store(folder.file("store"));
  ASSERT_TRUE(add_chunk(store, 1));
  const TestChunk chunk = make_chunk(1);
  const auto missing = [&](const ChunkIdentity& identity, const ChunkTokens& tokens) {
    const auto found = store.find(identity, tokens);
    return found && !*found;
  };
  EXPECT_FALSE(missing(kTestIdentity, chunk.ids()));
  for (int field = 0; field < 7; ++field) {
    ChunkIdentity other = kTestIdentity;
    if (field == 0) ++other.kv.model;
    if (field == 1) ++other.kv.tokenizer;
    if (field == 2) ++other.kv.numerics;
    if (field == 3) other.type = kernels::KvType::kF32;
    if (field == 4) ++other.n_layer;
    if (field == 5) ++other.n_kv_head;
    if (field == 6) ++other.head_dim;
    EXPECT_TRUE(missing(other, chunk.ids())) << field;
  }
  for (size_t i = 0; i < chunk.tokens.size(); ++i) {
    TestChunk other = chunk;
    ++other.tokens[i];
    EXPECT_TRUE(missing(kTestIdentity, other.ids()));
  }
  TestChunk shorter = chunk;
  shorter.tokens.pop_back();
  EXPECT_TRUE(missing(kTestIdentity, shorter.ids()));
  const std::vector<int32_t> other_context = {1};
  EXPECT_TRUE(missing(kTestIdentity, {other_context, chunk.tokens}));
  EXPECT_TRUE(missing(kTestIdentity, {{}, chunk.tokens}));
  // The same row of ids, cut elsewhere.
  const std::span<const int32_t> ids = chunk.tokens;
  EXPECT_TRUE(missing(kTestIdentity, {ids.first(1), ids.subspan(1)}));
}

TEST(ChunkStore, RefusesWhatDoesNotFit) {
  const TemporaryFolder folder;
  ChunkStore store = open_store(folder.file("store"), {.bytes = 8192});
  TestChunk chunk = make_chunk(1);
  chunk.blocks.pop_back();
  EXPECT_EQ(code_of(store.add(kTestIdentity, chunk.ids(), {}, chunk.blocks)), "invalid_argument");
  EXPECT_EQ(code_of(store.add(kTestIdentity, {kTestContext, {}}, {}, {})), "invalid_argument");
  const ChunkIdentity large = {{1, 2, 3}, kernels::KvType::kF32, 30, 8, 64};
  const TestChunk big = make_chunk(1, large);
  const auto added = store.add(large, big.ids(), {}, big.blocks);
  EXPECT_EQ(code_of(added), "out_of_memory");
  EXPECT_THAT(added.error().message, HasSubstr("--store-size"));
  EXPECT_EQ(store.stats()->chunks, 0u);
}

TEST(ChunkStore, FolderMustBeThere) {
  const TemporaryFolder folder;
  EXPECT_EQ(code_of(ChunkStore::open(folder.file("none"), false)), "file_not_found");
  EXPECT_EQ(code_of(ChunkStore::open(folder.file("a/b"), true)), "file_unwritable");
  write_all(folder.file("file"), "x");
  EXPECT_EQ(code_of(ChunkStore::open(folder.file("file"), true)), "file_unwritable");
  EXPECT_EQ(code_of(ChunkStore::open(folder.file("file"), false)), "file_not_found");
}

TEST(ChunkStore, AnIndexThatCannotBeOpenedIsNamed) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.file("index.db"));
  const auto store = ChunkStore::open(folder.file(""), true);
  ASSERT_FALSE(store);
  EXPECT_THAT(store.error().message, testing::HasSubstr("index.db': unable to open"));
  EXPECT_THAT(store.error().message, testing::HasSubstr("(Is a directory)"));
}

// Looking for a store makes none.
TEST(ChunkStore, AFolderOfOtherThingsIsNone) {
  const TemporaryFolder folder;
  for (const char* name : {"", "none"}) {
    EXPECT_EQ(code_of(ChunkStore::open(folder.file(name), false)), "file_not_found");
    EXPECT_EQ(code_of(ChunkStore::rebuild(folder.file(name))), "file_not_found");
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.file("")));
  { open_store(folder.file("")); }
  EXPECT_TRUE(ChunkStore::rebuild(folder.file("")));  // nothing is in it yet
  EXPECT_TRUE(ChunkStore::open(folder.file(""), false));
}

// The limit holds for the files, and the chunks used last stay.
TEST(ChunkStore, EvictsWhatWasUsedLeastRecently) {
  const TemporaryFolder folder;
  const uint64_t record = 8192, limit = 64 * record;
  for (uint32_t n = 0; n < 300; ++n) {
    ChunkStore store = open_store(folder.file("store"), {.bytes = limit});
    ASSERT_TRUE(add_chunk(store, n));
    EXPECT_EQ(look_up(store, n), Found::kRight);
    EXPECT_LE(store.stats()->disk_bytes, limit);
  }
  ChunkStore store = open_store(folder.file("store"), {.bytes = limit});
  const uint64_t chunks = store.stats()->chunks;
  EXPECT_GT(chunks, 50u);
  for (uint32_t n = 0; n < 300; ++n) {
    EXPECT_EQ(look_up(store, n), n < 300 - chunks ? Found::kMissing : Found::kRight) << n;
  }
}

// What it replaces may be dropped for want of room, and the new record may come to lie there.
TEST(ChunkStore, AnExactChunkReplacesARoundedOneInASmallStore) {
  const TemporaryFolder folder;
  const std::string path = folder.file("store");
  constexpr uint32_t kChunk = 39;
  TestChunk chunk = make_chunk(kChunk);
  for (uint32_t n = 0; n < 2000; ++n) chunk.tokens.push_back(7);
  chunk.blocks.resize(2 * kTestIdentity.row_bytes() * chunk.tokens.size() * kTestIdentity.n_layer);
  const auto add = [&](ChunkStore& store, BlockCodec codec) {
    return store.add(kTestIdentity, chunk.ids(), chunk.source, chunk.blocks, codec);
  };
  uint64_t rounded = 0;
  {
    ChunkStore store = open_store(path);
    ASSERT_TRUE(add(store, {.q8_0 = true}));
    rounded = store.stats()->disk_bytes;
  }
  ChunkStore store = open_store(path, {.bytes = chunk.blocks.size() + 20'000 + rounded / 2});
  ASSERT_TRUE(*add(store, {}));
  const auto found = *store.find(kTestIdentity, chunk.ids());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->record().codec, BlockCodec());
  EXPECT_TRUE(found->check());
  EXPECT_EQ(store.damaged(), 0u);
}

TEST(ChunkStore, CollectsWhatIsNoLongerReferred) {
  const TemporaryFolder folder;
  ChunkStore store = open_store(folder.file("store"), {.segment_bytes = 100'000});
  for (uint32_t n = 0; n < 100; ++n) ASSERT_TRUE(add_chunk(store, n));
  auto rows = *store.list();
  std::erase_if(rows, [](const ChunkRow& row) { return row.part % 3 == 0; });
  const auto open_chunk = *store.find(rows[0]);
  ASSERT_TRUE(store.remove(rows));
  const uint64_t before = store.stats()->disk_bytes;
  const auto freed = store.collect(1.0);
  ASSERT_TRUE(freed);
  EXPECT_GT(*freed, 0u);
  const StoreStats after = *store.stats();
  EXPECT_EQ(after.disk_bytes, before - *freed);
  EXPECT_EQ(after.disk_bytes, after.live_bytes);
  for (uint32_t n = 0; n < 100; ++n) {
    EXPECT_EQ(look_up(store, n), n % 3 == 0 ? Found::kRight : Found::kMissing);
  }
  EXPECT_TRUE(open_chunk->check());  // was open before its segment went
}

// Other processes' evictions go by what this one uses, however long it lives.
TEST(ChunkStore, UsesAreToldMeanwhile) {
  const TemporaryFolder folder;
  ChunkStore store = open_store(folder.file("store"));
  for (uint32_t n = 0; n < 2; ++n) ASSERT_TRUE(add_chunk(store, n));
  auto database = SqlDatabase::open(folder.file("store/index.db"));
  ASSERT_TRUE(database && database->run("UPDATE chunks SET used = 100"));
  for (int i = 0; i < 300; ++i) ASSERT_EQ(look_up(store, 1), Found::kRight);
  const auto rows = open_store(folder.file("store")).list();
  ASSERT_TRUE(rows);
  EXPECT_EQ((*rows)[0].used, 100);
  EXPECT_GT((*rows)[1].used, 100);
}

// What was listed before is dropped, and not what has its row by now.
TEST(ChunkStore, ALateRemovalDropsNoOtherChunk) {
  const TemporaryFolder folder;
  ChunkStore store = open_store(folder.file("store")), other = open_store(folder.file("store"));
  for (uint32_t n = 0; n < 2; ++n) ASSERT_TRUE(add_chunk(store, n));
  const auto seen = *other.list();
  ASSERT_TRUE(store.remove(std::span(seen).last(1)));
  ASSERT_TRUE(add_chunk(store, 2));
  ASSERT_EQ(store.list()->back().id, seen.back().id);  // SQLite gives it again
  ASSERT_TRUE(other.remove(std::span(seen).last(1)));
  EXPECT_EQ(look_up(store, 2), Found::kRight);
}

TEST(ChunkStore, DropsADamagedChunkAndNotTheOneInItsPlace) {
  const TemporaryFolder folder;
  ChunkStore store = open_store(folder.file("store")), other = open_store(folder.file("store"));
  ASSERT_TRUE(add_chunk(store, 1));
  const auto damaged = *store.find(kTestIdentity, make_chunk(1).ids());
  ASSERT_TRUE(damaged);
  ASSERT_TRUE(other.drop(*damaged));
  EXPECT_EQ(other.damaged(), 1u);
  EXPECT_EQ(look_up(store, 1), Found::kMissing);
  ASSERT_TRUE(add_chunk(store, 1).value());
  ASSERT_TRUE(other.drop(*damaged));
  EXPECT_EQ(look_up(store, 1), Found::kRight);
}

TEST(ChunkStore, IsItsOwnersAlone) {
  const TemporaryFolder folder;
  ChunkStore store = open_store(folder.file("store"));
  ASSERT_TRUE(add_chunk(store, 1));
  for (const char* name : {"index.db", "index.db-wal", "seg-00000001.kv", "lock"}) {
    const auto mode = std::filesystem::status(folder.file("store/") + name).permissions();
    const auto others = std::filesystem::perms::group_all | std::filesystem::perms::others_all;
    EXPECT_EQ(mode & others, std::filesystem::perms::none) << name;
  }
}

void add_texts(ChunkStore& store, std::span<const char* const> texts) {
  uint32_t number = 0;
  for (const char* text : texts) {
    TestChunk chunk = make_chunk(number++);
    chunk.source.text = text;
    ASSERT_TRUE(store.add(kTestIdentity, chunk.ids(), chunk.source, chunk.blocks));
  }
}

// Parts of the chunks that were found, best first.
std::vector<uint32_t> parts_of(ChunkStore& store, std::string_view query) {
  const auto found = store.search(kTestIdentity, query, 9);
  EXPECT_TRUE(found) << found.error().message;
  std::vector<uint32_t> parts;
  for (const ChunkRow& row : *found) parts.push_back(row.part);
  return parts;
}

constexpr const char* kBattery = "电池的寿命是十年。";
constexpr const char* kWrittenTexts[] = {"The captain of a zeppelin.", kBattery,
                                         "猫はミルクが好きです。", "Café au lait"};

// Whatever stands between them, and in scripts that write without spaces.
TEST(ChunkStore, SearchesWordsAsTheyAreWritten) {
  const TemporaryFolder folder;
  ChunkStore store = open_store(folder.file("store"));
  add_texts(store, kWrittenTexts);
  using Parts = std::vector<uint32_t>;
  EXPECT_EQ(parts_of(store, "bees—zeppelin"), Parts{0});
  EXPECT_EQ(parts_of(store, "the\u00a0Zeppelins’"), Parts{0});
  EXPECT_EQ(parts_of(store, "电池能用多久？"), Parts{1});
  EXPECT_EQ(parts_of(store, "猫"), Parts{2});
  EXPECT_EQ(parts_of(store, "ミルク"), Parts{2});
  EXPECT_EQ(parts_of(store, "cafe\u0301"), Parts{3});
  EXPECT_EQ(parts_of(store, "—"), Parts{});
  EXPECT_EQ(parts_of(store, "\xe7\x94"), Parts{});  // cut off
  std::string many;
  for (int i = 0; i < 5000; ++i) many += "word" + std::to_string(i) + " ";
  EXPECT_EQ(parts_of(store, many + "zeppelin"), Parts{0});
}

// Version 1 held texts as they are.
TEST(ChunkStore, AnOlderIndexIsBroughtUpToDate) {
  const TemporaryFolder folder;
  {
    ChunkStore store = open_store(folder.file("store"));
    add_texts(store, kWrittenTexts);
    auto old = SqlDatabase::open(folder.file("store/index.db"));
    const std::string as_it_is =
        "UPDATE texts SET text = '" + std::string(kBattery) + "' WHERE rowid = 2;";
    ASSERT_TRUE(old && old->run((as_it_is + "PRAGMA user_version = 1").c_str()));
    EXPECT_TRUE(parts_of(store, "寿命").empty());
  }
  ChunkStore store = open_store(folder.file("store"));
  EXPECT_EQ(parts_of(store, "寿命"), std::vector<uint32_t>{1});
  EXPECT_EQ(parts_of(store, "zeppelin"), std::vector<uint32_t>{0});
}

TEST(ChunkStore, SearchesTextOfOneIdentity) {
  const TemporaryFolder folder;
  ChunkStore store = open_store(folder.file("store"));
  const char* texts[] = {"The lighthouse keeper kept bees.", "A recipe for bread and butter.",
                         "Bees visit the garden; the keeper watches bees."};
  add_texts(store, texts);
  const auto found = store.search(kTestIdentity, "Who keeps BEES? (\"OR\" NOT near*)", 5);
  ASSERT_TRUE(found) << found.error().message;
  ASSERT_EQ(found->size(), 2u);
  EXPECT_NE((*found)[0].part, 1u);
  EXPECT_NE((*found)[1].part, 1u);
  EXPECT_GE((*found)[0].score, (*found)[1].score);
  EXPECT_EQ(store.search(kTestIdentity, "bees", 1)->size(), 1u);
  EXPECT_TRUE(store.search(kTestIdentity, "?!", 5)->empty());
  ChunkIdentity other = kTestIdentity;
  ++other.kv.model;
  EXPECT_TRUE(store.search(other, "bees", 5)->empty());
}

TEST(ChunkStore, CommonWordsDecideWhereThereAreNoOthers) {
  const TemporaryFolder folder;
  ChunkStore store = open_store(folder.file("store"));
  const char* texts[] = {"Rent is 500 euro. Deposit: 900 euro, kept by Anna.",
                         "The weather of the north: the wind, the rain and the snow."};
  add_texts(store, texts);
  EXPECT_EQ(parts_of(store, "What is the amount of the deposit?"), std::vector<uint32_t>{0});
  EXPECT_EQ(parts_of(store, "WHAT OF THE?"), std::vector<uint32_t>{1});
}

TEST(ChunkStore, WordsOfMostTextsCount) {
  const TemporaryFolder folder;
  ChunkStore store = open_store(folder.file("store"));
  const char* texts[] = {"Wind.", "A deposit of 2 euro, and a deposit of 3.", "One deposit, 1 euro",
                         "No deposit but 4 euro to be paid on arrival, in coins."};
  add_texts(store, texts);
  const auto found = store.search(kTestIdentity, "deposit", 9);
  ASSERT_TRUE(found) << found.error().message;
  ASSERT_EQ(found->size(), 3u);
  EXPECT_EQ((*found)[0].part, 1u);  // has it twice
  EXPECT_EQ((*found)[1].part, 2u);  // the shorter one
  // ln(1 + 1.5 / 3.5), once in 12 words of a mean of (1 + 10 + 4 + 12) / 4
  EXPECT_NEAR((*found)[2].score, 0.35667 * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 12 / 6.75)), 1e-4);
}

}  // namespace
}  // namespace reprise
