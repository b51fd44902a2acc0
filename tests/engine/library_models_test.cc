// Stored chunks in prompts of models that rotate keys in other ways, or whose layers have windows.
#include <gmock/gmock.h>

#include "engine/library_testing.h"

namespace reprise {
namespace {

using test::Books;
using test::relative_distance;
using test::stored;
using test::three_chunks;
using test::tiny_model;
using test::tiny_options;
using test::tiny_prompt;
using test::TinyShape;

struct ModelCase {
  const char* name;
  TinyShape shape;
  uint32_t ctx = 0;
};

constexpr uint32_t kWindow = 40;
const TinyShape kGemma = {32, 7, "linear", "gemma3", kWindow};  // layer 5 alone sees everything
const TinyShape kWindows = {32, 5, "", "llama", kWindow};

EngineOptions options_of(const TinyShape& shape, uint32_t ctx = 0) {
  EngineOptions options = tiny_options();
  options.model = tiny_model(shape);
  options.kv_type = "f32";
  options.ctx = ctx;
  return options;
}

class FusionModels : public testing::TestWithParam<ModelCase> {
 protected:
  EngineOptions options() const { return options_of(GetParam().shape, GetParam().ctx); }
  uint32_t layers() const { return GetParam().shape.layers; }
  /// Whether there is a layer in which the question sees the whole prompt.
  bool sees_all() const { return GetParam().shape.window == 0 || layers() > 5; }
};

// In layer 0 keys and values depend on the token alone, so loaded ones are those of full prefill.
TEST_P(FusionModels, ComputingEveryRowEqualsFullPrefill) {
  Books books(options());
  const PartedPrompt prompt = three_chunks();
  books.add(prompt);
  const auto full = books.full(prompt);
  for (const char* fusion :
       {"legolink:first=1000", "cacheblend:ratio=1", "a3:ratio=1", "a3:ratio=1,keys=exact"}) {
    if (fusion[0] == 'a' && !sees_all()) continue;
    EXPECT_EQ(books.fused(prompt, fusion), full) << fusion;
    EXPECT_EQ(books.report.recomputed_rows, 287u);
  }
  auto exact = *books.engine->open(), moved = *books.engine->open();
  books.logits(*exact, prompt);
  ASSERT_TRUE(books.library->fuse(*moved, prompt, "pie"));
  for (const bool keys : {true, false}) {
    EXPECT_EQ(stored(*moved, 0, 0, 332, keys), stored(*exact, 0, 0, 332, keys));
    EXPECT_NE(stored(*moved, 1, 0, 332, keys), stored(*exact, 1, 0, 332, keys));
  }
  ASSERT_TRUE(books.library->fuse(*moved, prompt, "full-reuse"));
  EXPECT_NE(stored(*moved, 0, 21, 121, true), stored(*exact, 0, 21, 121, true));
}

// Every layer's keys are rotated by its own table.
TEST_P(FusionModels, ChunkAtItsOwnPlaceIsExact) {
  Books books(options());
  const PartedPrompt prompt = books.at_its_own_place();
  books.add(prompt);
  EXPECT_EQ(books.fused(prompt, "cacheblend:ratio=0.5"), books.full(prompt));
  EXPECT_EQ(books.report.loaded_rows, 90u);
  EXPECT_EQ(books.report.recomputed_rows, 0u);
}

TEST_P(FusionModels, OrderChangesPositionsOnly) {
  Books books(options());
  PartedPrompt prompt = three_chunks();
  books.add(prompt);
  const char* policy = "full:keys=position-free";  // pages hold what was stored
  auto one = *books.engine->open(policy), other = *books.engine->open(policy);
  auto rotated = *books.engine->open();
  ASSERT_TRUE(books.library->fuse(*one, prompt, "pie"));
  ASSERT_TRUE(books.library->fuse(*rotated, prompt, "pie"));
  const auto in_order = books.logits(*one, prompt);
  // Keys that are rotated where they are read are those that were rotated as they were loaded.
  EXPECT_LT(relative_distance(in_order, books.logits(*rotated, prompt)), 1e-5);
  std::swap(prompt.chunks[0], prompt.chunks[2]);
  ASSERT_TRUE(books.library->fuse(*other, prompt, "pie"));
  for (uint32_t layer = 0; layer < layers(); ++layer) {
    for (const bool keys : {true, false}) {
      EXPECT_EQ(stored(*one, layer, 21, 121, keys), stored(*other, layer, 208, 308, keys));
      EXPECT_EQ(stored(*one, layer, 158, 308, keys), stored(*other, layer, 21, 171, keys));
    }
  }
  EXPECT_GT(relative_distance(books.logits(*other, prompt), in_order), 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Models, FusionModels,
                         testing::Values(ModelCase{"linear", {32, 5, "linear"}},
                                         ModelCase{"yarn", {32, 5, "yarn"}},
                                         ModelCase{"llama3", {32, 5, "llama3"}},
                                         ModelCase{"longrope_long", {32, 5, "longrope"}},
                                         ModelCase{"longrope_short", {32, 5, "longrope"}, 512},
                                         ModelCase{"partial", {32, 5, "partial"}},
                                         ModelCase{"two_tables", kGemma},
                                         ModelCase{"windows", kWindows}),
                         [](const auto& model) { return model.param.name; });

// longrope has other keys where the context is longer: they are not those of the short one.
TEST(FusionContext, ChunksOfAnotherRotationAreNotFound) {
  const TinyShape shape = {32, 5, "longrope"};
  Books books(options_of(shape, 512));
  const std::vector<int32_t> chunk = tiny_prompt(50, 2);
  ASSERT_TRUE(*books.library->add("book", 0, chunk));
  for (const uint32_t ctx : {0u, 400u}) {  // 0: 2048, beyond the 512 that it was trained for
    const auto engine = test::tiny_engine(options_of(shape, ctx));
    auto library = *Library::open(*engine, {.store = books.folder}, false);
    EXPECT_EQ(*library.add("book", 0, chunk), ctx == 0) << ctx;
  }
}

// Rows that are computed again, far apart, read what their own windows hold and nothing else.
TEST(FusionWindows, HideWhatIsBehindThem) {
  Books books(options_of(kWindows));
  PartedPrompt prompt = three_chunks();
  books.add(prompt);
  const char* fusion = "legolink:first=20";
  const auto near = books.fused(prompt, fusion);
  // Five layers reach 5 * 39 tokens back from the first row whose logits are looked at, 332.
  prompt.chunks[0] = tiny_prompt(100, 9);
  EXPECT_EQ(books.fused(prompt, fusion), near);
  EXPECT_EQ(books.report.missing_chunks, 1u);
  prompt.chunks[2] = tiny_prompt(150, 10);
  EXPECT_NE(books.fused(prompt, fusion), near);
}

/// Values of the last layer after a fusion.
std::vector<float> last_values(Books& books, const std::string& fusion) {
  auto session = *books.engine->open();
  EXPECT_TRUE(books.library->fuse(*session, three_chunks(), fusion));
  return stored(*session, books.engine->info().n_layer - 1, 0, 332, false);
}

// The question's attention is read where nothing is hidden from it.
TEST(FusionWindows, RowsAreChosenInALayerWithoutOne) {
  Books books(options_of(kGemma));
  books.add(three_chunks());
  const auto full_layer = last_values(books, "a3:layer=5");
  EXPECT_EQ(last_values(books, "a3"), full_layer);  // a quarter of seven is a layer with a window
  EXPECT_EQ(last_values(books, "a3:layer=6"), full_layer);
  Books open(options_of({32, 7, "linear", "gemma3", 1024}));  // which hides nothing of the prompt
  open.add(three_chunks());
  EXPECT_NE(last_values(open, "a3"), last_values(open, "a3:layer=5"));
}

TEST(FusionWindows, WithoutSuchALayerAttentionCannotChoose) {
  Books books(options_of(kWindows));
  books.add(three_chunks());
  auto session = *books.engine->open();
  for (const char* fusion : {"a3", "a3-paper", "a3:layer=4,keys=exact"}) {
    const auto done = books.library->fuse(*session, three_chunks(), fusion);
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, ErrorCode::kUnsupported);
    EXPECT_THAT(done.error().message, testing::HasSubstr("shorter than its 333 tokens"));
  }
  EXPECT_EQ(session->tokens().size(), 0u);
  EXPECT_EQ(books.fused(three_chunks(), "cacheblend").size(), 8u * 259u);
}

}  // namespace
}  // namespace reprise
