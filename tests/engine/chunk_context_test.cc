#include "engine/chunk_context.h"

#include "engine/library_testing.h"

namespace reprise {
namespace {

using test::Books;

ChunkContext context(const Books& books, std::string_view lead, size_t most = 2048) {
  const Engine::Impl& impl = books.engine->impl();
  return {*impl.tokenizer, impl.prompts, lead, most};
}

std::vector<int32_t> tokens(const ChunkContext& context, size_t chunk) {
  const auto before = context.of(chunk);
  return {before.begin(), before.end()};
}

TEST(ChunkContext, IsAPassageBehindWhatConversationsBeginWith) {
  const Books books("bf16");
  const auto before = tokens(context(books, "passage"), 512);
  const std::string text = books.engine->detokenize(before, true);
  EXPECT_TRUE(text.starts_with("<|im_start|>The town ")) << text;
  EXPECT_TRUE(text.ends_with(".\n\n")) << text;
  EXPECT_EQ(tokens(context(books, "none"), 512).size(), 1u);
  EXPECT_NE(context(books, "passage").version(), context(books, "none").version());
}

TEST(ChunkContext, IsATokenAloneWhereTheChunkNeedsTheRoom) {
  const Books books("bf16");
  const size_t passage = tokens(context(books, "passage"), 1).size();
  const ChunkContext tight = context(books, "passage", passage + 100);
  EXPECT_EQ(tight.of(100).size(), passage);
  EXPECT_EQ(tokens(tight, 101), tokens(context(books, "none"), 101));
}

// Neither fused nor found.
TEST(ChunkContext, ChunksAreThoseOfOne) {
  Books books("bf16");
  const PartedPrompt prompt = test::three_chunks();
  books.add(prompt);
  const auto words = books.engine->tokenize("What the keeper of the lighthouse wrote.");
  ASSERT_TRUE(*books.library->add("diary", 0, words));
  EXPECT_EQ(books.library->search("lighthouse", 5)->size(), 1u);
  auto other = *Library::open(*books.engine, {.store = books.folder, .store_lead = "none"}, false);
  EXPECT_EQ(other.search("lighthouse", 5)->size(), 0u);
  auto session = *books.engine->open();
  EXPECT_EQ(other.fuse(*session, prompt, "a3")->missing_chunks, 3u);
  EXPECT_TRUE(*other.add("diary", 0, words));
  EXPECT_EQ(books.library->search("lighthouse", 5)->size(), 1u);
}

}  // namespace
}  // namespace reprise
