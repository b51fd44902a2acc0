// What policies hold goes with the KV where that was lost, not read to its end, or is not exact.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <random>

#include "engine/answers.h"
#include "engine/tiny_model.h"
#include "kv/hidden_file.h"
#include "reprise/library.h"

namespace reprise::test {
namespace {

constexpr uint32_t kLayers = 3;
/// Reads prompts in cells.
const std::string kCells =
    "reattention:local=32,sink=16,span=8,spans=4,chunk=32,alone=8,activate=128,early=64,agree=0,"
    "stride=4";

uint64_t page_bytes(uint64_t element) { return 2 * 32 * 2 * element * 16; }

EngineOptions disk_options(const std::string& kv_type, uint64_t memory_pages) {
  EngineOptions options = tiny_options();
  options.model = tiny_model({.layers = kLayers});
  options.kv_type = kv_type;
  options.kv_memory = memory_pages * page_bytes(kv_type == "f32" ? 4 : 2);
  options.kv_disk = scratch_folder();
  options.kv_disk_size = 64 << 20;
  return options;
}

/// Some of a hundred pages of the file, other ones for every seed.
void damage_pages(uint32_t seed, uint32_t of_a_hundred, uint64_t bytes) {
  const int file = hidden_file(scratch_folder());
  ASSERT_GE(file, 0);
  std::mt19937 random(seed);
  const std::string junk(bytes, 'x');
  const off_t end = ::lseek(file, 0, SEEK_END);
  for (off_t at = 0; at < end; at += static_cast<off_t>(bytes)) {
    if (random() % 100 < of_a_hundred) {
      ASSERT_EQ(::pwrite(file, junk.data(), bytes, at), static_cast<ssize_t>(bytes));
    }
  }
}

double recovery_of(const Answer& answer) {
  const auto& figures = answer.counters.policy;
  return std::map<std::string, double>(figures.begin(), figures.end()).at("recovery");
}

TEST(Recovery, APolicyThatEvictsReadsAllAgain) {
  const std::vector<int32_t> own = tiny_prompt(200, 6), more = tiny_prompt(300, 9);
  for (uint32_t seed = 0; seed < 6; ++seed) {
    EngineOptions options = disk_options("bf16", 110);
    options.prefix_cache = false;
    options.chunk = 32;
    options.kv_prefetch = "none";
    const auto engine = tiny_engine(options);
    const auto paged = *engine->open("full"), evicting = *engine->open("h2o:budget=64");
    Request second = request_of(own, 8);
    answer_of(*evicting, second);
    Request first = request_of(tiny_prompt(600, 5), 200);
    int tokens = 0;
    first.on_token = [&](const TokenEvent&) { return ++tokens > 0; };
    ASSERT_TRUE(engine->submit(*paged, first, [](const auto&) {}));  // may lose what it had
    while (tokens < 5 && engine->step()) {
    }
    const auto& held = evicting->tokens();
    second.prompt.assign(held.begin(), held.end());
    second.prompt.insert(second.prompt.end(), more.begin(), more.end());
    bool answered = false;
    ASSERT_TRUE(
        engine->submit(*evicting, second, [&](const auto& answer) { answered = bool(answer); }));
    for (int i = 0; i < 3; ++i) engine->step();
    damage_pages(seed, 2, page_bytes(2));
    while (engine->step()) {
    }
    EXPECT_TRUE(answered) << seed;
  }
}

TEST(Recovery, ALostCellOfAPromptIsReadInOne) {
  Request request = request_of(tiny_prompt(400, 5)), longer = request;
  const std::vector<int32_t> more = tiny_prompt(60, 9);
  longer.prompt.insert(longer.prompt.end(), more.begin(), more.end());
  request.max_tokens = 0;
  EngineOptions ample = disk_options("f32", 4000);
  ample.kv_disk.clear();
  const auto want = answer_of(*tiny_engine(ample), longer, kCells).tokens;
  for (uint32_t seed = 0; seed < 6; ++seed) {
    const auto engine = tiny_engine(disk_options("f32", 120));
    const auto session = *engine->open(kCells);
    answer_of(*session, request);
    answer_of(*engine, request_of(tiny_prompt(600, 6), 0));
    damage_pages(seed, 4, page_bytes(4));
    const Answer answer = answer_of(*session, longer);
    EXPECT_LT(answer.counters.reused_tokens, 400u);
    EXPECT_EQ(answer.tokens, want) << seed << ", from " << answer.counters.reused_tokens;
  }
}

TEST(Recovery, ACellThatAFileWasCutInIsReadInOne) {
  EngineOptions options = tiny_options();
  options.kv_type = "f32";
  const auto engine = tiny_engine(options);
  const std::string file = scratch_folder() + "/cut.kv";
  for (const size_t cut : {210u, 224u, 252u}) {
    const auto live = *engine->open(kCells), restored = *engine->open(kCells);
    Request request = request_of(tiny_prompt(300, 5), 4);
    answer_of(*live, request);
    ASSERT_TRUE(live->save(file, ""));
    ASSERT_TRUE(restored->restore(file));
    request = request_of(tiny_prompt(300, 5));
    request.prompt.resize(cut);
    const std::vector<int32_t> more = tiny_prompt(60, 99);
    request.prompt.insert(request.prompt.end(), more.begin(), more.end());
    const Answer want = answer_of(*live, request), got = answer_of(*restored, request);
    EXPECT_EQ(got.tokens, want.tokens) << cut;
    EXPECT_EQ(got.counters.reused_tokens, want.counters.reused_tokens);
  }
}

TEST(Recovery, AnIndexOfAPromptThatWasCancelledEndsWithItsKv) {
  const std::string spec = "probe+csattention:budget=64";
  EngineOptions options = tiny_options();
  options.kv_type = "f32";
  options.chunk = 16;
  options.kv_memory = 2 << 20;
  const auto engine = tiny_engine(options);
  Request request = request_of(tiny_prompt(800, 5), 4);
  answer_of(*engine, request, spec);
  answer_of(*engine, request_of(tiny_prompt(1990, 77), 2));  // takes the prefix's memory
  const auto session = *engine->open(spec);
  request.on_progress = [](const Progress& now) {
    return now.stage != "prefill" || now.done < 400;
  };
  EXPECT_EQ(session->generate(request).error().code, ErrorCode::kCancelled);
  ASSERT_EQ(session->tokens().size(), 400u);
  const std::string file = scratch_folder() + "/cancelled.kv";
  ASSERT_TRUE(session->save(file, ""));
  const auto restored = (*engine->open(spec))->restore(file);
  EXPECT_TRUE(restored) << restored.error().message;
  Request other = request_of(tiny_prompt(400, 5));
  const std::vector<int32_t> more = tiny_prompt(380, 99);
  other.prompt.insert(other.prompt.end(), more.begin(), more.end());
  const Answer got = answer_of(*session, other),
               want = answer_of(*tiny_engine(options), other, spec);
  EXPECT_EQ(got.tokens, want.tokens);
  EXPECT_EQ(recovery_of(got), recovery_of(want));
}

TEST(Recovery, AnIndexOfExactKvIsNotThatOfFusedKv) {
  const std::string spec = "probe+csattention:budget=128";
  EngineOptions options = tiny_options();
  options.model = tiny_model({.layers = 4});
  options.kv_type = "bf16";
  options.kv_memory = 2'150'000;
  PartedPrompt prompt{tiny_prompt(20, 3), {}, tiny_prompt(20, 77)};
  for (int i = 0; i < 6; ++i) prompt.chunks.push_back(tiny_prompt(110, 40 + i));
  std::vector<uint64_t> reused;
  for (const bool read_before : {false, true}) {
    const auto engine = tiny_engine(options);
    LibraryOptions store;
    store.store = scratch_folder() + (read_before ? "/fused1" : "/fused0");
    auto library = *Library::open(*engine, store, true);
    for (uint32_t i = 0; i < 6; ++i) ASSERT_TRUE(library.add("book", i, prompt.chunks[i]));
    const Request request = request_of(prompt.tokens());
    if (read_before) answer_of(*engine, request, spec);
    answer_of(*engine, request_of(tiny_prompt(2000, 5), 1));  // takes the prefix's memory
    const auto session = *engine->open(spec);
    ASSERT_TRUE(library.fuse(*session, prompt, "pie"));
    reused.push_back(answer_of(*session, request).counters.reused_tokens);
  }
  EXPECT_EQ(reused[0], reused[1]);  // the rows that an index is made of are read
}

}  // namespace
}  // namespace reprise::test
