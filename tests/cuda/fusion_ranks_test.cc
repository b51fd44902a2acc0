// Stored chunks on devices that share a model, held against one device alone.
#include "cuda/fusion_testing.h"

namespace reprise::test {
namespace {

double tolerance() { return bf16_tolerance(kStoredLayers); }

class FusionRanks : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count < 2) {
      GTEST_SKIP() << count << " CUDA devices, not 2";
    }
  }
  static EngineOptions shared(const std::string& kv_type = "bf16",
                              const std::string& scaling = "") {
    EngineOptions options = stored_options(kv_type, scaling);
    options.tp = 2;
    return options;
  }
};

TEST_F(FusionRanks, EveryRowIsFullPrefill) {
  for (const std::string kv_type : {"bf16", "f16", "fp8"}) {
    for (const uint32_t chunk : {64u, 512u}) {
      EngineOptions options = shared(kv_type);
      options.chunk = chunk;
      Books books(options);
      const PartedPrompt prompt = three_chunks();
      books.add(prompt);
      for (const char* policy : {"full", "full:keys=position-free", "quest:budget=400"}) {
        const auto full = books.logits(**books.engine->open(policy), prompt);
        for (const char* fusion : {"a3:ratio=1", "a3:ratio=1,keys=exact", "cacheblend:ratio=1"}) {
          const double off = relative_distance(books.fused(prompt, fusion, policy), full);
          std::printf("  %s, %s, %s: %.5f from full prefill, %.5f allowed\n", kv_type.c_str(),
                      policy, fusion, off, tolerance());
          EXPECT_LT(off, tolerance()) << fusion << ", " << kv_type << ", " << policy;
        }
        EXPECT_GT(relative_distance(books.fused(prompt, "pie", policy), full), 3 * tolerance());
      }
    }
  }
}

// Every head's part of what is stored comes to the device that has the head.
TEST_F(FusionRanks, StoreAndLoadWhatOneDeviceDoes) {
  for (const auto& codecs : kForms) {
    Books alone(stored_options()), together(shared());
    const PartedPrompt prompt = three_chunks();
    add_in_forms(alone, prompt, codecs);
    add_in_forms(together, prompt, codecs);
    auto one = *alone.engine->open(), two = *together.engine->open();
    ASSERT_TRUE(alone.library->fuse(*one, prompt, "pie"));
    const auto report = together.library->fuse(*two, prompt, "pie");
    ASSERT_TRUE(report);
    EXPECT_EQ(report->loaded_rows, 287u);
    for (uint32_t layer = 0; layer < kStoredLayers; ++layer) {
      for (const bool keys : {true, false}) {
        const auto got = read_back(*two, layer, 21, 308, keys),
                   want = read_back(*one, layer, 21, 308, keys);
        EXPECT_LT(relative_distance(got, want), tolerance())
            << codecs[0] << ", " << codecs[1] << ", " << layer << (keys ? " k" : " v");
      }
    }
  }
}

TEST_F(FusionRanks, ChooseTheRowsOfOneDevice) {
  for (const std::string scaling : {"", "yarn"}) {
    Books alone(stored_options("bf16", scaling)), together(shared("bf16", scaling));
    const PartedPrompt prompt = three_chunks();
    alone.add(prompt);
    together.add(prompt);
    const double unrepaired = relative_distance(alone.fused(prompt, "pie"), alone.full(prompt));
    for (const char* fusion : {"legolink:first=9", "a3:ratio=0.3", "a3:ratio=0.3,window=7,pool=1",
                               "a3:ratio=0.3,reads=0.4,near=16", "a3:ratio=0.3,keys=exact,layer=3",
                               "a3-paper:ratio=0.3", "cacheblend:ratio=0.3"}) {
      const auto want = alone.fused(prompt, fusion), got = together.fused(prompt, fusion);
      const double off = relative_distance(got, want);
      std::printf("  %s: %.5f from one device, pie %.5f from full prefill\n", fusion, off,
                  unrepaired);
      EXPECT_LT(off, unrepaired / 3) << fusion;
      EXPECT_EQ(together.report.recomputed_rows, alone.report.recomputed_rows);
      EXPECT_NEAR(together.report.mean_position, alone.report.mean_position, 0.02);
      EXPECT_EQ(together.report.loaded_bytes, alone.report.loaded_bytes);
    }
  }
}

TEST_F(FusionRanks, GoOnAfterDamageAndCancel) {
  Books books(shared());
  const PartedPrompt prompt = three_chunks();
  books.add(prompt);
  const auto full = books.full(prompt);
  auto session = *books.engine->open();
  const auto cancelled =
      books.library->fuse(*session, prompt, "a3", [](const Progress&) { return false; });
  ASSERT_FALSE(cancelled);
  EXPECT_EQ(cancelled.error().code, ErrorCode::kCancelled);
  EXPECT_LT(relative_distance(books.fused(prompt, "a3:ratio=1"), full), tolerance());
  damage_last_block(books);
  const auto fused = books.fused(prompt, "a3:ratio=1");
  EXPECT_EQ(books.report.damaged_chunks, 1u);
  EXPECT_LT(relative_distance(fused, full), tolerance());
}

// What stays in page-locked memory is copied to both devices.
TEST_F(FusionRanks, ReadChunksOnceWithStoreMemory) {
  LibraryOptions how;
  how.store_memory = 64 << 20;
  Books books(shared(), how);
  const PartedPrompt prompt = three_chunks();
  books.add(prompt);
  const auto full = books.full(prompt);
  for (int i = 0; i < 2; ++i) {
    EXPECT_LT(relative_distance(books.fused(prompt, "a3:ratio=1"), full), tolerance());
    EXPECT_EQ(books.report.loaded_rows, 287u);
  }
}

}  // namespace
}  // namespace reprise::test
