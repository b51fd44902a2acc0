// What the store gives back shows in answers as it should: forms of chunks, damage.
#include <filesystem>
#include <fstream>

#include "engine/library_testing.h"
#include "store/redis_testing.h"

namespace reprise {
namespace {

using test::Books;
using test::relative_distance;
using test::three_chunks;
using test::tiny_prompt;

// They hold the same numbers.
TEST(LibraryStore, Bf16AndBf12ShareChunks) {
  const PartedPrompt prompt = three_chunks();
  for (const auto& [type, other] : {std::pair{"bf16", "bf12"}, {"bf12", "bf16"}}) {
    Books books(type);
    books.add(prompt);
    EngineOptions options = test::tiny_options();
    options.model = test::tiny_model({32, 5, ""});
    options.kv_type = other;
    const auto engine = test::tiny_engine(options);
    auto library = Library::open(*engine, {.store = books.folder}, true);
    ASSERT_TRUE(library) << library.error().message;
    for (const auto& chunk : prompt.chunks) {
      EXPECT_FALSE(*library->add("book", 0, chunk)) << "made by " << type;
    }
  }
}

// Damage that shows when a deep layer is read makes the chunk one that is computed.
TEST(LibraryStore, DamagedChunkIsComputed) {
  for (const char* codec : {"none", "zstd", "q8_0", "q8_0+zstd"}) {
    Books books("bf16", "", {.store_codec = codec});
    PartedPrompt prompt = three_chunks();
    books.add(prompt);
    const std::string segment = books.folder + "/seg-00000001.kv";
    {
      std::fstream file(segment, std::ios::binary | std::ios::in | std::ios::out);
      file.seekp(-5000, std::ios::end).put('\x55').put('\x55').put('\x55');  // third chunk
    }
    const auto damaged = books.fused(prompt, "legolink:first=5");
    EXPECT_EQ(books.report.damaged_chunks, 1u) << codec;
    EXPECT_EQ(books.report.loaded_rows, 137u);
    EXPECT_EQ(books.report.loaded_chunks, 2u);
    EXPECT_THAT(books.library->take_warning(), testing::HasSubstr("of 'book'"));
    Books others("bf16", "", {.store_codec = codec});
    ASSERT_TRUE(others.library->add("book", 0, prompt.chunks[0]));
    ASSERT_TRUE(others.library->add("book", 0, prompt.chunks[1]));
    EXPECT_EQ(others.fused(prompt, "legolink:first=5"), damaged) << codec;
    EXPECT_EQ(others.report.missing_chunks, 1u);
    books.fused(prompt, "pie");
    EXPECT_EQ(books.report.missing_chunks, 1u) << codec;  // it was dropped
    EXPECT_TRUE(*books.library->add("book", 0, prompt.chunks[2])) << codec;
    EXPECT_EQ(books.library->take_warning(), "") << codec;
    books.fused(prompt, "pie");
    EXPECT_EQ(books.report.loaded_rows, 287u) << codec;
  }
}

// What cannot be read is not found any more, and who asks learns which document to add again.
TEST(LibraryStore, SearchGoesOnBehindDamage) {
  Books books("bf16");
  const auto add = [&](const char* document, const char* text) {
    return *books.library->add(document, 0, books.library->cut(text).front());
  };
  ASSERT_TRUE(add("worse", "A long text of many things, one of which is a lighthouse."));
  const auto worse = std::filesystem::file_size(books.folder + "/seg-00000001.kv");
  ASSERT_TRUE(add("better", "The lighthouse."));
  EXPECT_EQ(books.library->search("lighthouse", 1)->front().document, "better");
  std::fstream(books.folder + "/seg-00000001.kv", std::ios::binary | std::ios::in | std::ios::out)
      .seekp(static_cast<std::streamoff>(worse) + 110)
      .put('\x55')
      .put('\x55');
  const auto found = books.library->search("lighthouse", 1);
  ASSERT_TRUE(found);
  ASSERT_EQ(found->size(), 1u);
  EXPECT_EQ(found->front().document, "worse");
  EXPECT_THAT(books.library->take_warning(), testing::HasSubstr("1 chunk of 'better'"));
  EXPECT_EQ(books.library->take_warning(), "");
  EXPECT_TRUE(add("better", "The lighthouse."));
  EXPECT_EQ(books.library->take_warning(), "");
}

// Rows that q8_0 rounded are computed again even where the chunk stands at its own place.
TEST(LibraryStore, RoundedPrefixIsNoExactOne) {
  Books books("f32", "", {.store_codec = "q8_0"});
  const PartedPrompt prompt = books.at_its_own_place();
  books.add(prompt);
  EXPECT_EQ(books.fused(prompt, "a3:ratio=1"), books.full(prompt));
  EXPECT_EQ(books.report.recomputed_rows, 90u);
  EXPECT_EQ(books.report.rounded_chunks, 1u);
}

// A session file says that its KV is that of full prefill.
TEST(LibraryStore, LoadedKvIsNotSaved) {
  Books books("bf16");
  const PartedPrompt prompt = three_chunks();
  const std::string path = test::scratch_folder() + "/fused";
  auto session = *books.engine->open();
  const auto fuse = [&](const char* method) {
    const auto done = books.library->fuse(*session, prompt, method);
    EXPECT_TRUE(done) << done.error().message;
  };
  fuse("pie");  // nothing is stored yet: every row is computed
  EXPECT_TRUE(session->save(path, ""));
  books.add(prompt);
  fuse("none");
  EXPECT_TRUE(session->save(path, ""));
  fuse("pie");
  const auto code = [&](const Session& which) {
    const Status status = which.save(path, "");
    return status ? "saved" : std::string(error_name(status.error().code));
  };
  EXPECT_EQ(code(*session), "unsupported");
  EXPECT_EQ(code(*session->fork()), "unsupported");
  books.logits(*session, prompt);
  EXPECT_EQ(code(*session), "unsupported");
  ASSERT_TRUE(session->truncate(prompt.head.size() + 1));
  EXPECT_EQ(code(*session), "unsupported");
  ASSERT_TRUE(session->truncate(prompt.head.size()));
  EXPECT_EQ(code(*session), "saved");
  fuse("pie");
  ASSERT_TRUE(session->restore(path));
  EXPECT_EQ(code(*session), "saved");
}

// Compression changes nothing; rounding changes little, and is counted.
TEST(LibraryStore, StoredFormsGiveTheSameOrNearlySo) {
  for (const char* type : {"bf16", "f32"}) {
    Books exact(type), packed(type, "", {.store_codec = "zstd"}),
        rounded(type, "", {.store_codec = "q8_0+zstd"});
    const PartedPrompt prompt = three_chunks();
    for (Books* books : {&exact, &packed, &rounded}) books->add(prompt);
    const auto full = exact.full(prompt), loaded = exact.fused(prompt, "pie");
    EXPECT_EQ(packed.fused(prompt, "pie"), loaded) << type;
    EXPECT_EQ(packed.report.rounded_chunks, 0u);
    EXPECT_LT(packed.report.loaded_bytes, exact.report.loaded_bytes);
    const auto near = rounded.fused(prompt, "pie");
    EXPECT_EQ(rounded.report.rounded_chunks, 3u);
    EXPECT_NE(near, loaded);
    // Less than not having seen what stands before.
    EXPECT_LT(relative_distance(near, loaded), relative_distance(loaded, full) / 2) << type;
    EXPECT_EQ(rounded.fused(prompt, "a3:ratio=1"), full);
    EXPECT_FALSE(*packed.library->add("book", 0, prompt.chunks[0]));
  }
}

// Chunks that another machine computed answer as one's own; without the server they are computed.
TEST(LibraryStore, SharesThroughAServer) {
  const TemporaryFolder folder;
  RedisServer server(folder.file(""));
  if (!server.installed()) {
    GTEST_SKIP() << "redis-server is not installed; tools/setup.sh --dev installs it";
  }
  const LibraryOptions shared = {.store_remote = server.url(), .store_timeout = 120'000};
  Books one("bf16", "", shared), other("bf16", "", shared), late("bf16", "", shared);
  const PartedPrompt prompt = three_chunks();
  one.add(prompt);
  const auto own = one.fused(prompt, "a3");
  EXPECT_EQ(one.report.fetched_chunks, 0u);
  EXPECT_EQ(other.fused(prompt, "a3"), own);
  EXPECT_EQ(other.report.fetched_chunks, 3u);
  EXPECT_EQ(other.report.loaded_rows, 287u);
  EXPECT_FALSE(*late.library->add("book", 0, prompt.chunks[0]));  // fetched, not computed
  EXPECT_EQ(other.library->take_warning(), "");
  server.stop();
  EXPECT_EQ(other.fused(prompt, "a3"), own);  // from its own disk
  EXPECT_EQ(other.library->take_warning(), "");
  EXPECT_EQ(late.fused(prompt, "a3:ratio=1"), one.full(prompt));
  EXPECT_EQ(late.report.missing_chunks, 2u);
  EXPECT_THAT(late.library->take_warning(), testing::HasSubstr("the local store alone"));
}

}  // namespace
}  // namespace reprise
