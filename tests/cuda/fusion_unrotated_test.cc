// Stored chunks on a CUDA device under policies that keep keys without position.
#include <map>

#include "cuda/fusion_testing.h"
#include "store/chunk_store.h"

namespace reprise::test {
namespace {

constexpr const char* kFree = "full:keys=position-free";
// Reads the prompt of three_chunks() whole, and chooses keys behind it.
constexpr const char* kChooses = "reattention:stride=1,sink=8,local=64,span=8,spans=6,activate=333";

/// What the store has of chunks in a layer, by their tokens.
std::map<size_t, std::vector<float>> blocks_of(const Books& books, uint32_t layer) {
  std::map<size_t, std::vector<float>> blocks;
  auto store = ChunkStore::open(books.folder, false);
  const auto rows = store->list();
  for (const ChunkRow& row : *rows) {
    const auto chunk = store->find(row);
    std::vector<Bf16> values((*chunk)->block_bytes() / sizeof(Bf16));
    EXPECT_TRUE((*chunk)->read_layer(layer, std::as_writable_bytes(std::span(values))));
    std::vector<float>& wide = blocks[(*chunk)->record().tokens.size()];
    for (const Bf16 value : values) wide.push_back(to_float(value));
  }
  return blocks;
}

/// Of a block, its keys or its values.
std::vector<float> half_of(const std::vector<float>& block, bool keys) {
  const auto middle = block.begin() + static_cast<std::ptrdiff_t>(block.size() / 2);
  return keys ? std::vector(block.begin(), middle) : std::vector(middle, block.end());
}

double tolerance() { return bf16_tolerance(kStoredLayers); }

// With blocks of 64 rows a layer's copies are made in parts.
TEST_F(CudaEngine, UnrotatedFusionOfEveryRowIsFullPrefill) {
  for (const std::string kv_type : {"bf16", "f16", "fp8"}) {
    for (const uint32_t chunk : {64u, 512u}) {
      EngineOptions options = stored_options(kv_type);
      options.chunk = chunk;
      Books books(options);
      const PartedPrompt prompt = three_chunks();
      books.add(prompt);
      const auto full = books.logits(**books.engine->open(kFree), prompt);
      for (const char* fusion : {"none", "a3:ratio=1", "a3:ratio=1,keys=exact,layer=3",
                                 "cacheblend:ratio=1", "legolink:first=1000"}) {
        const double off = relative_distance(books.fused(prompt, fusion, kFree), full);
        std::printf("  %s, blocks of %u, %s: %.5f from full prefill, %.5f allowed\n",
                    kv_type.c_str(), chunk, fusion, off, tolerance());
        EXPECT_LT(off, tolerance()) << fusion << ", " << kv_type;
      }
      EXPECT_EQ(books.report.recomputed_rows, 287u);
      EXPECT_GT(relative_distance(books.fused(prompt, "pie", kFree), full), 3 * tolerance());
      EXPECT_EQ(books.report.loaded_rows, 287u);
    }
  }
}

TEST_F(CudaEngine, UnrotatedFusionOfAChunkAtItsOwnPlaceIsExact) {
  Books books(stored_options());
  const PartedPrompt prompt = books.at_its_own_place();
  books.add(prompt);
  const auto full = books.logits(**books.engine->open(kFree), prompt);
  EXPECT_LT(relative_distance(books.fused(prompt, "a3:ratio=0.5", kFree), full), tolerance());
  EXPECT_EQ(books.report.loaded_rows, 90u);
  EXPECT_EQ(books.report.recomputed_rows, 0u);
}

// Keys are those of the store, wherever their chunk stands and in whatever form it is kept.
void check_stored(uint32_t head_dim, const std::vector<std::string>& codecs, uint64_t memory) {
  LibraryOptions how;
  how.store_memory = memory;
  Books books(stored_options("bf16", "", head_dim), how);
  PartedPrompt prompt = three_chunks();
  add_in_forms(books, prompt, codecs);
  auto one = *books.engine->open(kFree), other = *books.engine->open(kFree);
  ASSERT_TRUE(books.library->fuse(*one, prompt, "pie"));
  std::swap(prompt.chunks[0], prompt.chunks[2]);
  ASSERT_TRUE(books.library->fuse(*other, prompt, "pie"));
  for (const uint32_t layer : {1u, kStoredLayers - 1}) {
    const auto kept = blocks_of(books, layer);
    for (const bool keys : {true, false}) {
      SCOPED_TRACE((keys ? "keys of " : "values of ") + std::to_string(layer));
      const auto first = half_of(kept.at(100), keys), last = half_of(kept.at(150), keys);
      EXPECT_EQ(read_back(*one, layer, 21, 121, keys), first);
      EXPECT_EQ(read_back(*one, layer, 121, 158, keys), half_of(kept.at(37), keys));
      EXPECT_EQ(read_back(*one, layer, 158, 308, keys), last);
      EXPECT_EQ(read_back(*other, layer, 21, 171, keys), last);
      EXPECT_EQ(read_back(*other, layer, 208, 308, keys), first);
    }
  }
}

// With heads of 96 a block of codes ends where no other can begin.
TEST_F(CudaEngine, UnrotatedFusionStoresWhatWasStored) {
  for (const uint32_t head_dim : {64u, 96u}) {
    for (const auto& codecs : kForms) {
      for (const uint64_t memory : {uint64_t{0}, uint64_t{64} << 20}) {
        SCOPED_TRACE(std::to_string(head_dim) + ", " + codecs[0] + ", " + codecs[1] +
                     (memory > 0 ? ", in memory" : ""));
        check_stored(head_dim, codecs, memory);
      }
    }
  }
}

// Few rows are chosen, by rotated keys: those that are chosen where pages hold rotated ones.
void check_choice(const std::string& scaling, uint32_t chunk) {
  EngineOptions options = stored_options("bf16", scaling);
  options.chunk = chunk;
  Books books(options);
  const PartedPrompt prompt = three_chunks();
  books.add(prompt);
  const double unrepaired = relative_distance(books.fused(prompt, "pie"), books.full(prompt));
  for (const char* fusion : {"a3:ratio=0.3", "a3:ratio=0.3,layer=3,first=9", "a3-paper:ratio=0.3",
                             "a3:ratio=0.3,scores=joint,layer=3", "cacheblend:ratio=0.3"}) {
    const auto rotated = books.fused(prompt, fusion);
    const FusionReport want = books.report;
    const double off = relative_distance(books.fused(prompt, fusion, kFree), rotated);
    std::printf("  %s: %.5f from rotated pages, pie %.5f from full prefill\n", fusion, off,
                unrepaired);
    EXPECT_LT(off, unrepaired / 3) << fusion << scaling;
    EXPECT_EQ(books.report.recomputed_rows, want.recomputed_rows);
    EXPECT_NEAR(books.report.mean_position, want.mean_position, 0.02);
  }
}

// With blocks of 16 rows a question asks in parts.
TEST_F(CudaEngine, UnrotatedFusionChoosesTheSameRows) {
  for (const char* scaling : {"", "yarn"}) {
    for (const uint32_t chunk : {16u, 512u}) {
      SCOPED_TRACE(scaling + std::to_string(chunk));
      check_choice(scaling, chunk);
    }
  }
}

TEST_F(CudaEngine, FusionServesReAttention) {
  EngineOptions options = stored_options();
  options.chunk = 256;
  Books books(options);
  const PartedPrompt prompt = three_chunks();
  books.add(prompt);
  const auto full = books.logits(**books.engine->open(kChooses), prompt);
  const auto everything = books.logits(**books.engine->open(kFree), prompt);
  const double off = relative_distance(books.fused(prompt, "a3:ratio=1", kChooses), full);
  const double chooses = relative_distance(full, everything);
  std::printf("  %.5f from full prefill, choosing keys changes %.5f\n", off, chooses);
  // Rounding may decide which of two keys wins.
  EXPECT_LT(off, 10 * tolerance());
  EXPECT_GT(chooses, off);
  // Passes of other sequences read on, and captured ones still do after a longer prompt was fused.
  auto session = *books.engine->open(kChooses), again = *books.engine->open(kChooses);
  const auto before = books.logits(*session, prompt);
  PartedPrompt longer = prompt;
  for (int i = 0; i < 3; ++i) longer.chunks.push_back(prompt.chunks[2]);
  ASSERT_TRUE(books.library->fuse(*again, longer, "a3"));
  auto same = *books.engine->open(kChooses);
  EXPECT_EQ(books.logits(*same, prompt), before);
}

}  // namespace
}  // namespace reprise::test
