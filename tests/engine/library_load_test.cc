// Whether chunks are loaded or computed, by what either takes, and how they are read.
#include <chrono>
#include <thread>

#include "engine/library_testing.h"
#include "kv/read_faults.h"

namespace reprise::test {
namespace {

const LibraryOptions kAuto = {.store_load = "auto"};

TEST(LibraryLoad, WhatIsSlowToReadIsComputed) {
  Books books("f32", "", kAuto);
  const PartedPrompt prompt = three_chunks();
  books.add(prompt);  // and it is known what computing takes
  const auto full = books.full(prompt);
  for (const char* fusion : {"pie", "a3", "cacheblend", "legolink"}) {
    const ReadFault slow(ReadFault::kSlow);
    EXPECT_EQ(books.fused(prompt, fusion), full) << fusion;
    EXPECT_EQ(books.report.slow_chunks, 3u) << fusion;
    EXPECT_EQ(books.report.loaded_rows, 0u) << fusion;
    EXPECT_EQ(books.report.computed_rows, 333u) << fusion;
    EXPECT_GT(books.report.reading_ms, books.report.computing_ms) << fusion;
  }
  EXPECT_EQ(books.report.missing_chunks + books.report.damaged_chunks, 0u);
}

TEST(LibraryLoad, WhatIsSlowToComputeIsLoaded) {
  Books books("f32", "", kAuto), always("f32");
  const PartedPrompt prompt = three_chunks();
  for (Books* each : {&books, &always}) each->add(prompt);
  // The largest pass so far tells what a row takes.
  const PartedPrompt other = {{}, {tiny_prompt(400, 9)}, tiny_prompt(20, 5)};
  auto session = *books.engine->open();
  const auto slow = books.library->fuse(*session, other, "a3", [](const Progress&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return true;
  });
  ASSERT_TRUE(slow) << slow.error().message;
  EXPECT_EQ(books.fused(prompt, "a3"), always.fused(prompt, "a3"));
  EXPECT_EQ(books.report.loaded_rows, 287u);
  EXPECT_EQ(books.report.slow_chunks, 0u);
}

TEST(LibraryLoad, EverythingIsLoadedUnlessSpeedMayDecide) {
  Books books("f32");
  const PartedPrompt prompt = three_chunks();
  books.add(prompt);
  const auto want = books.fused(prompt, "pie");
  const ReadFault slow(ReadFault::kSlow);
  EXPECT_EQ(books.fused(prompt, "pie"), want);
  EXPECT_EQ(books.report.loaded_rows, 287u);
  EXPECT_EQ(books.report.slow_chunks, 0u);
  EXPECT_GT(slow.count(), 0);
}

// It computes a chunk to know.
TEST(LibraryLoad, ALibraryThatHasComputedNothingMeasures) {
  Books books("f32", "", kAuto);
  const PartedPrompt prompt = three_chunks();
  books.add(prompt);
  const auto full = books.full(prompt);
  LibraryOptions again = kAuto;
  again.store = books.folder;
  books.library.emplace(*Library::open(*books.engine, again, false));
  const ReadFault slow(ReadFault::kSlow);
  EXPECT_EQ(books.fused(prompt, "pie"), full);
  EXPECT_EQ(books.report.slow_chunks, 3u);
}

// Of any length that a prompt has room for: a passage before it would have none.
TEST(LibraryLoad, WhatIsMeasuredNeedsNoPassage) {
  EngineOptions options = tiny_options();
  options.model = tiny_model({32, 5, ""});
  options.kv_type = "f32";
  const ModelInfo info = tiny_engine(options)->info();
  const size_t room = info.context;
  options.kv_memory = room * info.kv_bytes_per_token;
  Books books(options, kAuto);
  const auto known = tiny_prompt(50, 2);
  const PartedPrompt prompt = {{}, {known, tiny_prompt(room - 100, 3)}, tiny_prompt(20, 5)};
  ASSERT_TRUE(books.library->add("book", 0, known));
  LibraryOptions again = kAuto;
  again.store = books.folder;
  books.library.emplace(*Library::open(*books.engine, again, false));
  const auto full = books.full(prompt);
  const ReadFault slow(ReadFault::kSlow);
  EXPECT_EQ(books.fused(prompt, "pie"), full);
  EXPECT_EQ(books.report.slow_chunks, 1u);
}

// Short chunks share pages; threads place chunks at once, or parts of them where they are few.
TEST(LibraryLoad, AnyNumberOfThreadsBringsTheSameKeysAndValues) {
  PartedPrompt prompt = {tiny_prompt(7, 1), {}, tiny_prompt(20, 5)};
  for (const uint32_t tokens : {5, 37, 3, 1, 100, 16, 9, 64}) {
    prompt.chunks.push_back(tiny_prompt(tokens, 50 + tokens));
  }
  const auto end = static_cast<int32_t>(prompt.tokens().size());
  std::vector<float> want;
  for (const uint32_t threads : {1, 2, 4, 5, 8}) {
    EngineOptions options = tiny_options();
    options.threads = threads;
    Books books(options);
    books.add(prompt);
    for (int i = 0; i < 30; ++i) {
      auto session = *books.engine->open();
      ASSERT_TRUE(books.library->fuse(*session, prompt, "pie"));
      auto all = stored(*session, 1, 0, end, true);
      const auto values = stored(*session, 1, 0, end, false);
      all.insert(all.end(), values.begin(), values.end());
      if (want.empty()) want = all;
      ASSERT_EQ(all, want) << threads << " threads";
    }
  }
}

}  // namespace
}  // namespace reprise::test
