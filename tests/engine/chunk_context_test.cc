#include "engine/chunk_context.h"

#include <cstring>

#include "engine/library_testing.h"

namespace reprise {
namespace {

using test::Books;

std::vector<int32_t> tokens(const Books& books, std::string_view lead) {
  return books.context(lead).tokens();
}

TEST(ChunkContext, IsAPassageBehindWhatConversationsBeginWith) {
  const Books books("bf16");
  const std::string text = books.engine->detokenize(tokens(books, "passage"), true);
  EXPECT_TRUE(text.starts_with("<|im_start|>")) << text;
  EXPECT_TRUE(text.ends_with(", which is ten minutes away.\n\n")) << text;
  EXPECT_EQ(tokens(books, "passage").size(), 128u);  // of bytes
  EXPECT_EQ(tokens(books, "none").size(), 1u);
  EXPECT_NE(books.context("passage").version(), books.context("none").version());
}

// Text is no beginning that attention falls back to.
TEST(ChunkContext, BeginsWithASpecialTokenWhateverTheTemplate) {
  for (const char* name : {"llama2", "vicuna", "llama3"}) {
    EngineOptions options = test::tiny_options();
    options.model = test::tiny_model({32, 5, ""});
    options.chat_template = name;
    const Books books(options);
    const int32_t first = tokens(books, "passage").front();
    EXPECT_TRUE(books.engine->impl().tokenizer->is_special(first)) << name << " " << first;
  }
}

TEST(ChunkContext, LeavesRoomForTheChunk) {
  Books books("bf16");
  const size_t room = books.engine->info().context - tokens(books, "passage").size();
  EXPECT_TRUE(books.library->add("fits", 0, test::tiny_prompt(room)));
  const auto longer = books.library->add("long", 0, test::tiny_prompt(room + 1));
  ASSERT_FALSE(longer);
  EXPECT_EQ(longer.error().code, ErrorCode::kContextExceeded);
  EXPECT_THAT(longer.error().message, testing::HasSubstr("raise --ctx"));
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

// What every chunk is read after is computed once: whole pages of it are a prefix.
TEST(ChunkContext, IsReadFromThePrefixCache) {
  EngineOptions options = test::tiny_options();
  options.model = test::tiny_model({32, 5, ""});
  const PartedPrompt prompt = test::three_chunks();
  for (const std::string type : {"f32", "bf16", "q8_0"}) {
    options.kv_type = type;
    Books without(options);
    without.add(prompt);
    auto read = *without.engine->open();
    ASSERT_TRUE(without.library->fuse(*read, prompt, "pie"));
    const auto want = without.logits(*read, prompt);
    const auto before = tokens(without, "passage");
    for (const bool spoil : {false, true}) {
      const auto engine = test::tiny_engine(options);  // with a prefix cache
      const std::string folder = test::scratch_folder() + (spoil ? "/spoiled_" : "/kept_") + type;
      auto library = *Library::open(*engine, {.store = folder}, true);
      ASSERT_TRUE(library.add("book", 0, prompt.chunks[0]));
      auto session = *engine->open();
      Sequence& sequence = session->impl().sequence;
      engine->impl().scheduler.take_prefix(sequence, before);
      ASSERT_EQ(sequence.tokens.size(), before.size() - 16) << type << " " << spoil;
      if (spoil) std::memset(sequence.kv.page(0, 3), 0, engine->impl().kv.page_bytes());
      ASSERT_TRUE(library.add("book", 1, prompt.chunks[1]));
      ASSERT_TRUE(library.add("book", 2, prompt.chunks[2]));
      auto reused = *engine->open();
      ASSERT_TRUE(library.fuse(*reused, prompt, "pie"));
      EXPECT_EQ(without.logits(*reused, prompt) == want, !spoil) << type << " " << spoil;
    }
  }
}

}  // namespace
}  // namespace reprise
