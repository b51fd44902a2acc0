// Chunks in page-locked memory, and in pages of which parts are at hand elsewhere.
#include "fusion/cuda/resident_chunks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "cuda/fusion_testing.h"

namespace reprise::test {
namespace {

TEST(BlockArena, RangesAreDisjointAndComeTogetherAgain) {
  constexpr uint64_t kBytes = 10000;
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    BlockArena arena(kBytes);
    struct Range {
      uint64_t offset, bytes;
    };
    std::vector<Range> taken;
    std::vector<bool> used(kBytes);
    for (int step = 0; step < 300; ++step) {
      if (random() % 3 == 0 && !taken.empty()) {
        const size_t index = random() % taken.size();
        const Range range = taken[index];
        std::fill_n(used.begin() + static_cast<std::ptrdiff_t>(range.offset), range.bytes, false);
        arena.give_back(range.offset, range.bytes);
        taken.erase(taken.begin() + static_cast<std::ptrdiff_t>(index));
        continue;
      }
      const uint64_t bytes = 1 + random() % 900, offset = arena.take(bytes);
      if (offset == BlockArena::kNone) {  // no run of free bytes is as long
        uint64_t longest = 0, run = 0;
        for (const bool in_use : used) longest = std::max(longest, run = in_use ? 0 : run + 1);
        EXPECT_LT(longest, bytes);
        continue;
      }
      ASSERT_LE(offset + bytes, kBytes);
      for (uint64_t at = offset; at < offset + bytes; ++at) {
        ASSERT_FALSE(used[at]);
        used[at] = true;
      }
      taken.push_back({offset, bytes});
    }
    for (const Range& range : taken) arena.give_back(range.offset, range.bytes);
    EXPECT_EQ(arena.take(kBytes), 0u);
    EXPECT_EQ(arena.take(1), BlockArena::kNone);
  }
}

TEST(BlockArena, NothingHasNoRoom) { EXPECT_EQ(BlockArena(0).take(1), BlockArena::kNone); }

// Files change after chunks were read into memory that has room for all of them, for some or for
// one at a time: what is in memory serves on.
void check_memory(const std::string& codec) {
  LibraryOptions how;
  how.store_codec = codec;
  Books files(stored_options(), how);
  PartedPrompt prompt = three_chunks();
  files.add(prompt);
  prompt.chunks.push_back(prompt.chunks[1]);  // twice in a prompt
  const auto want = files.fused(prompt, "pie");
  const uint64_t row = files.report.loaded_bytes / files.report.loaded_rows;
  for (const uint64_t rows : {400u, 200u, 151u, 20u}) {
    how.store_memory = rows * row + (12 << 10);  // chunks begin at multiples of 4 KiB
    Books books(stored_options(), how);
    books.add(prompt);
    for (int round = 0; round < 2; ++round) {
      EXPECT_EQ(books.fused(prompt, "pie"), want) << rows;
      for (const auto& chunk : prompt.chunks) {  // takes the others' room
        const PartedPrompt one = {prompt.head, {chunk}, prompt.question};
        EXPECT_EQ(books.fused(one, "pie"), files.fused(one, "pie")) << rows;
      }
    }
    damage_last_block(books);
    const auto again = books.fused(prompt, "pie");
    EXPECT_EQ(books.report.damaged_chunks, rows == 400 ? 0u : 1u) << rows;
    if (rows == 400) {
      EXPECT_EQ(again, want);
    }
  }
}

TEST_F(CudaEngine, FusionKeepsChunksInMemory) { check_memory("none"); }
TEST_F(CudaEngine, FusionKeepsCodesInMemory) { check_memory("q8_0"); }

// What hot pages hold of pages that are written by a fused prompt is forgotten.
TEST_F(CudaEngine, FusionServesHotPages) {
  EngineOptions options = stored_options();
  Books ample(options);
  const uint64_t token = ample.engine->info().kv_bytes_per_token;
  options.kv_memory = 250 * token;
  options.kv_host = 2500 * token;
  options.kv_hot = 300 * token;
  for (const char* prefetch : {"layer", "layer-once", "token"}) {
    options.kv_prefetch = prefetch;
    Books hot(options);
    for (uint32_t round = 0; round < 3; ++round) {
      PartedPrompt prompt = {tiny_prompt(9, 1), {}, tiny_prompt(25, 5)};
      for (uint32_t i = 0; i < 6; ++i) {
        prompt.chunks.push_back(tiny_prompt(150, 10 + 10 * round + i));
      }
      ample.add(prompt);
      hot.add(prompt);
      EXPECT_EQ(hot.fused(prompt, "a3:ratio=0.3", "quest:budget=128"),
                ample.fused(prompt, "a3:ratio=0.3", "quest:budget=128"))
          << prefetch << " " << round;
    }
  }
}

}  // namespace
}  // namespace reprise::test
