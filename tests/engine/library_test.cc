// Stored chunks in prompts: what is computed is what full attention computes, and what is loaded is
// what was stored, at its new place.
#include "reprise/library.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <numeric>

#include "engine/answers.h"
#include "engine/library_testing.h"
#include "fusion/cpu_fusion.h"

namespace reprise {
namespace {

using test::Books;
using test::relative_distance;
using test::stored;
using test::three_chunks;
using test::tiny_engine;
using test::tiny_options;
using test::tiny_prompt;

// A prompt that is held with the logits behind it.
TEST(HeldLogits, GiveTheFirstTokenOfTheirPromptOnce) {
  EngineOptions options = tiny_options();
  options.prefix_cache = false;
  const auto engine = tiny_engine(options);
  const auto session = *engine->open();
  Sequence& sequence = session->impl().sequence;
  Request request = test::request_of(tiny_prompt(60, 3), 5);
  std::vector<float> logits;
  request.on_logits = [&](std::span<const float> row) {
    if (logits.empty()) logits.assign(row.begin(), row.end());
  };
  const Answer want = *session->generate(request);
  request.on_logits = {};
  const auto hold = [&](const std::vector<float>& what) {
    ASSERT_TRUE(session->truncate(60));
    sequence.logits = what;
  };
  hold(logits);
  const Answer got = *session->generate(request);
  EXPECT_EQ(got.tokens, want.tokens);
  EXPECT_EQ(got.counters.reused_tokens, 60u);
  EXPECT_TRUE(sequence.logits.empty());
  EXPECT_EQ(session->tokens().size(), 64u);

  const std::vector<float> wrong(logits.rbegin(), logits.rend());  // shows where they are used
  hold(wrong);
  EXPECT_NE(session->generate(request)->tokens.front(), want.tokens.front());
  hold(wrong);
  EXPECT_TRUE(session->fork()->impl().sequence.logits.empty());
  ASSERT_TRUE(session->truncate(59));
  EXPECT_EQ(session->generate(request)->tokens, want.tokens);
  hold(wrong);
  Request longer = request;
  longer.prompt.push_back(want.tokens.front());
  EXPECT_EQ(session->generate(longer)->tokens.front(), want.tokens[1]);
  EXPECT_EQ(session->generate(request)->tokens, want.tokens);
  hold(wrong);
  request.on_progress = [](const Progress&) { return false; };
  EXPECT_EQ(session->generate(request).error().code, ErrorCode::kCancelled);
}

class FusionTypes : public testing::TestWithParam<const char*> {};

TEST_P(FusionTypes, ComputingEveryRowEqualsFullPrefill) {
  Books books(GetParam());
  const PartedPrompt prompt = three_chunks();
  const auto full = books.full(prompt);
  EXPECT_EQ(books.fused(prompt, "a3"), full);  // nothing is stored yet
  EXPECT_EQ(books.report.missing_chunks, 3u);
  books.add(prompt);
  for (const char* fusion :
       {"none", "a3:ratio=1", "a3:ratio=1,keys=exact", "a3:ratio=1,layer=3",
        "a3:ratio=1,layer=3,keys=exact", "a3-paper:ratio=1", "a3:ratio=1,reads=0.1,near=0",
        "cacheblend:ratio=1", "legolink:first=1000"}) {
    EXPECT_EQ(books.fused(prompt, fusion), full) << fusion;
  }
  EXPECT_EQ(books.report.recomputed_rows, 287u);
  EXPECT_NE(books.fused(prompt, "pie"), full);
  EXPECT_EQ(books.report.loaded_rows, 287u);
  EXPECT_EQ(books.report.recomputed_rows, 0u);
  EXPECT_EQ(books.report.computed_rows, 46u);
}

// A request that computes the last row behind the others gets the same logits.
TEST_P(FusionTypes, LogitsOfTheLastRowComeWithTheOthers) {
  Books books(GetParam());
  const PartedPrompt prompt = three_chunks();
  books.add(prompt);
  for (const char* fusion :
       {"none", "pie", "a3", "a3:layer=4", "a3:keys=exact", "a3:layer=4,keys=exact",
        "a3:reads=0.3,near=16", "cacheblend", "legolink"}) {
    auto session = *books.engine->open();
    const auto report = books.library->fuse(*session, prompt, fusion);
    ASSERT_TRUE(report) << report.error().message;
    if (fusion == std::string("a3")) {
      EXPECT_GT(report->mean_position, 0.1);
      EXPECT_LT(report->mean_position, 0.9);
    }
    Sequence& sequence = session->impl().sequence;
    EXPECT_EQ(sequence.tokens, prompt.tokens());
    const std::vector<float> held = std::move(sequence.logits);
    sequence.logits.clear();
    Request request = test::request_of(prompt.tokens(), 1);
    std::vector<float> computed;
    request.on_logits = [&](std::span<const float> row) {
      computed.assign(row.begin(), row.end());
    };
    EXPECT_EQ(session->generate(request)->counters.reused_tokens, 332u);
    EXPECT_EQ(held, computed) << fusion;
  }
}

TEST_P(FusionTypes, RowsReadAllWhereFewKeysAreNotServed) {
  Books books(GetParam());
  const PartedPrompt prompt = three_chunks();
  books.add(prompt);
  EXPECT_EQ(books.fused(prompt, "a3:keys=exact,reads=0.2,near=0"),
            books.fused(prompt, "a3:keys=exact,reads=1"));
  const char* const free = "full:keys=position-free";
  EXPECT_EQ(books.fused(prompt, "a3:reads=0.2,near=0", free),
            books.fused(prompt, "a3:reads=1", free));
}

TEST_P(FusionTypes, RowsThatReadFewKeysDifferOnlyWhereTheyDo) {
  Books books(GetParam());
  const PartedPrompt prompt = three_chunks();
  books.add(prompt);
  const auto all = books.fused(prompt, "a3:ratio=0.3,reads=1");
  EXPECT_EQ(books.fused(prompt, "a3:ratio=0.3,reads=0.4,near=300"), all);
  const auto few = books.fused(prompt, "a3:ratio=0.3,reads=0.4,near=0");
  EXPECT_EQ(books.report.recomputed_rows, 86u);
  EXPECT_GT(relative_distance(few, all), 0.0);
  EXPECT_LT(relative_distance(few, all), relative_distance(books.fused(prompt, "pie"), all));
  // No fewer than are computed again.
  EXPECT_EQ(books.fused(prompt, "a3:ratio=0.3,reads=0.1,near=0"),
            books.fused(prompt, "a3:ratio=0.3,reads=0.3,near=0"));
}

INSTANTIATE_TEST_SUITE_P(Types, FusionTypes, testing::Values("bf16", "bf12", "f16", "f32", "q8_0"));

// Pages hold keys as they are stored; reattention reads the prompt whole and chooses keys after it.
TEST_P(FusionTypes, PositionFreePagesGetThoseOfFullPrefill) {
  Books books(GetParam());
  const PartedPrompt prompt = three_chunks();
  books.add(prompt);
  for (const char* policy : {"full:keys=position-free",
                             "reattention:stride=1,sink=8,local=64,span=8,spans=6,activate=333"}) {
    const auto full = books.logits(**books.engine->open(policy), prompt);
    for (const char* fusion : {"a3:ratio=1", "a3:ratio=1,keys=exact,layer=3", "cacheblend:ratio=1",
                               "legolink:first=1000"}) {
      EXPECT_EQ(books.fused(prompt, fusion, policy), full) << policy << ", " << fusion;
    }
    EXPECT_EQ(books.report.recomputed_rows, 287u);
    EXPECT_NE(books.fused(prompt, "pie", policy), full);
    auto session = *books.engine->open(policy);
    ASSERT_TRUE(books.library->fuse(*session, prompt, "a3"));
    const bool chooses = std::string_view(policy).starts_with("reattention");
    EXPECT_EQ(session->impl().sequence.logits.empty(), chooses);  // which may read less
  }
}

// The prefix case: a chunk right behind what it was read after.
TEST(Fusion, ChunkAtItsOwnPlaceIsExact) {
  for (const auto& [policy, lead] : std::vector<std::pair<std::string, std::string>>{
           {"full", "passage"}, {"full", "none"}, {"full:keys=position-free", "passage"}}) {
    std::vector<float> wide;
    for (const std::string type : {"f32", "f16", "bf16"}) {
      Books books(type, "", {.store_lead = lead});
      const PartedPrompt prompt = books.at_its_own_place();
      books.add(prompt);
      const auto full = books.logits(**books.engine->open(policy), prompt);
      const auto fused = books.fused(prompt, "a3:ratio=0.5", policy.c_str());
      EXPECT_EQ(books.report.loaded_rows, 90u);
      EXPECT_EQ(books.report.recomputed_rows, 0u);  // nothing to repair
      if (type == "f32") wide = full;
      if (type == "f32" || (type == "f16" && policy == "full")) {
        EXPECT_EQ(fused, full) << type << ", " << policy;
        continue;
      }
      // bf16: keys are rounded before rotation, too, once more than full prefill rounds them.
      // Without position: chunks were read with keys that were rounded behind rotation.
      EXPECT_LT(relative_distance(fused, full), relative_distance(full, wide) * 1.5) << policy;
    }
  }
}

// In layer 0 keys and values depend on the token alone, so loaded ones are those of full prefill.
TEST(Fusion, KeysAreRotatedToTheirNewPlace) {
  for (const char* scaling : {"", "linear", "yarn"}) {
    Books books("f32", scaling);
    const PartedPrompt prompt = three_chunks();
    books.add(prompt);
    const auto full = books.full(prompt);
    EXPECT_EQ(books.fused(prompt, "a3:ratio=1"), full) << scaling;
    auto exact = *books.engine->open(), moved = *books.engine->open();
    books.logits(*exact, prompt);
    ASSERT_TRUE(books.library->fuse(*moved, prompt, "pie"));
    for (const bool keys : {true, false}) {
      EXPECT_EQ(stored(*moved, 0, 0, 332, keys), stored(*exact, 0, 0, 332, keys)) << scaling;
      EXPECT_NE(stored(*moved, 1, 0, 332, keys), stored(*exact, 1, 0, 332, keys));
    }
    ASSERT_TRUE(books.library->fuse(*moved, prompt, "full-reuse"));
    EXPECT_NE(stored(*moved, 0, 21, 121, true), stored(*exact, 0, 21, 121, true));
    EXPECT_EQ(stored(*moved, 0, 21, 121, false), stored(*exact, 0, 21, 121, false));
  }
}

TEST(Fusion, OrderChangesPositionsOnly) {
  Books books("bf16");
  PartedPrompt prompt = three_chunks();
  books.add(prompt);
  const char* policy = "full:keys=position-free";  // pages hold what was stored
  auto one = *books.engine->open(policy), other = *books.engine->open(policy);
  ASSERT_TRUE(books.library->fuse(*one, prompt, "pie"));
  std::swap(prompt.chunks[0], prompt.chunks[2]);
  ASSERT_TRUE(books.library->fuse(*other, prompt, "pie"));
  for (uint32_t layer = 0; layer < 5; ++layer) {
    for (const bool keys : {true, false}) {
      EXPECT_EQ(stored(*one, layer, 21, 121, keys), stored(*other, layer, 208, 308, keys));
      EXPECT_EQ(stored(*one, layer, 158, 308, keys), stored(*other, layer, 21, 171, keys));
    }
  }
  EXPECT_EQ(books.fused(prompt, "a3:ratio=1", policy),
            books.logits(**books.engine->open(policy), prompt));
}

// A row that is computed again sees what stands before it, and nothing behind it.
TEST(Fusion, RowsSeeOnlyWhatIsBeforeThem) {
  Books books("bf16");
  PartedPrompt prompt = three_chunks();
  books.add(prompt);
  auto one = *books.engine->open(), other = *books.engine->open();
  ASSERT_TRUE(books.library->fuse(*one, prompt, "legolink:first=20"));
  prompt.chunks[2] = tiny_prompt(80, 7);
  prompt.question = tiny_prompt(30, 8);
  books.add(prompt);
  ASSERT_TRUE(books.library->fuse(*other, prompt, "legolink:first=20"));
  for (uint32_t layer = 0; layer < 5; ++layer) {
    EXPECT_EQ(stored(*one, layer, 0, 158, true), stored(*other, layer, 0, 158, true));
    EXPECT_EQ(stored(*one, layer, 0, 158, false), stored(*other, layer, 0, 158, false));
  }
}

TEST(Fusion, ComputesThePartThatIsAskedFor) {
  Books books("bf16");
  const PartedPrompt prompt = three_chunks();
  books.add(prompt);
  const auto full = books.full(prompt);
  for (const char* name :
       {"a3:keys=stored,ratio=", "a3:keys=exact,ratio=", "a3:layer=3,ratio=",
        "a3:layer=3,keys=exact,ratio=", "a3-paper:ratio=", "cacheblend:ratio="}) {
    double before = relative_distance(books.fused(prompt, "pie"), full);
    for (const float ratio : {0.1f, 0.5f, 0.9f}) {
      const std::string fusion = fmt::format("{}{}", name, ratio);
      const double now = relative_distance(books.fused(prompt, fusion.c_str()), full);
      EXPECT_EQ(books.report.recomputed_rows, static_cast<uint64_t>(ratio * 287.0)) << fusion;
      EXPECT_LT(now, before * 1.1) << fusion;  // random weights: more rows help, not strictly
      before = now;
    }
  }
}

/// Rows of the three chunks that are not what was loaded, in the last layer.
std::vector<size_t> computed_again(Books& books, const std::string& fusion) {
  const PartedPrompt prompt = three_chunks();
  auto loaded = *books.engine->open(), fused = *books.engine->open();
  EXPECT_TRUE(books.library->fuse(*loaded, prompt, "pie"));
  EXPECT_TRUE(books.library->fuse(*fused, prompt, fusion));
  std::vector<size_t> rows;
  for (int32_t at = 21; at < 308; ++at) {
    if (stored(*loaded, 4, at, at + 1, false) != stored(*fused, 4, at, at + 1, false)) {
      rows.push_back(static_cast<size_t>(at));
    }
  }
  return rows;
}

TEST(Fusion, ChoosesByTheLayerThatIsNamed) {
  Books books("f32");
  books.add(three_chunks());
  const auto last = computed_again(books, "a3:layer=4");
  EXPECT_EQ(last.size(), 43u);
  EXPECT_NE(last, computed_again(books, "a3:layer=2"));
  EXPECT_EQ(last, computed_again(books, "a3:layer=99"));  // there is none behind it
  // A quarter of five layers.
  EXPECT_EQ(computed_again(books, "a3"), computed_again(books, "a3:layer=2"));
  EXPECT_NE(last, computed_again(books, "a3:scores=joint,layer=4"));
  EXPECT_EQ(computed_again(books, "a3-paper"),
            computed_again(books, "a3:keys=exact,scores=joint,layer=1,first=0,pool=5"));
}

// Of the prompt's rows before the question, none of which is loaded.
std::vector<float> scores_up_to(Books& books, uint32_t layer) {
  Engine::Impl& engine = books.engine->impl();
  const std::vector<int32_t> tokens = tiny_prompt(120, 3);
  std::vector<int32_t> positions(120);
  std::iota(positions.begin(), positions.end(), 0);
  const FusedPrompt prompt = {tokens, {}, 100};
  SequenceKv kv(engine.kv);
  EXPECT_TRUE(kv.reserve(tokens.size()));
  const ProgressFn progress;
  const auto device = cpu_fusion(*engine.model, *engine.threads);
  auto pass = *device->begin({prompt, kv, false, progress}, {});
  const RowCheck check = {std::span(positions).first(100), RowScore::kHeads, layer, 100, 256};
  std::vector<float> scores;
  const ChooseFn choose = [&](std::span<const float> found) {
    scores.assign(found.begin(), found.end());
    return std::vector<int32_t>();
  };
  EXPECT_TRUE(pass->check(positions, check, choose));
  return scores;
}

TEST(Fusion, ScoresOfLayersAddUp) {
  Books books("f32");
  const auto first = scores_up_to(books, 1), both = scores_up_to(books, 2);
  const auto next = scores_up_to(books, 3);  // of layers 2 and 3
  ASSERT_EQ(both.size(), 100u);
  for (size_t i = 0; i < both.size(); ++i) {
    EXPECT_GT(both[i], first[i]) << i;
    EXPECT_GT(next[i], both[i] - first[i]) << i;
  }
}

TEST(Fusion, FirstRowsOfChunksAreAmongThose) {
  Books books("f32");
  books.add(three_chunks());
  EXPECT_THAT(computed_again(books, "a3:first=3"),
              testing::IsSupersetOf({21, 22, 23, 121, 122, 123, 158, 159, 160}));
  EXPECT_THAT(computed_again(books, "a3:first=0"),
              testing::Not(testing::IsSupersetOf({21, 22, 23, 121, 122, 123, 158, 159, 160})));
  // No more than the ratio allows.
  EXPECT_EQ(computed_again(books, "a3:first=100").size(), 43u);
}

TEST(Fusion, OneChunkTwiceAndTwoPrompts) {
  Books books("f32");
  PartedPrompt prompt = three_chunks();
  prompt.chunks = {prompt.chunks[0], prompt.chunks[1], prompt.chunks[0]};
  books.add(prompt);
  auto one = *books.engine->open(), again = *books.engine->open();
  ASSERT_TRUE(books.library->fuse(*one, prompt, "pie"));
  EXPECT_EQ(stored(*one, 3, 21, 121, false), stored(*one, 3, 158, 258, false));
  ASSERT_TRUE(books.library->fuse(*again, prompt, "pie"));
  ASSERT_TRUE(books.library->fuse(*again, prompt, "pie"));  // a session that held another prompt
  EXPECT_EQ(stored(*again, 3, 0, 280, true), stored(*one, 3, 0, 280, true));
  EXPECT_EQ(books.fused(prompt, "a3:ratio=1"), books.full(prompt));
}

TEST(Fusion, AnswersUnderAnyPolicy) {
  Books books("bf16");
  const PartedPrompt prompt = three_chunks();
  books.add(prompt);
  for (const char* policy :
       {"streaming:sink=4,window=32", "h2o:budget=48,observe=16", "snapkv:budget=48,window=16",
        "snapkv:budget=64,voters=question,kernel=5,pool=avg", "quest:budget=48",
        "sparq:budget=48,local=16", "infllm:local=32,init=16,block=16",
        "reattention:stride=1,sink=8,local=32,span=8,spans=6,activate=48",
        "csattention:budget=64,window=16,observe=16", "dense:first=1+quest:budget=48",
        "mac:min_context=0,window=16,band=16,sink=4,align=4,tau=0.1,max_error=0,guard=false",
        "full:keys=position-free"}) {
    EXPECT_EQ(books.fused(prompt, "a3", policy).size(), 8u * 259u) << policy;
  }
}

// SnapKV after fusion, as published: the question is computed once more, all of it votes.
TEST(Fusion, TheQuestionChoosesWhatDecodeReads) {
  Books books("bf16");
  const PartedPrompt prompt = three_chunks();
  books.add(prompt);
  const auto answer = [&](const char* policy) {
    auto session = *books.engine->open(policy);
    EXPECT_TRUE(books.library->fuse(*session, prompt, "a3"));
    return *session->generate(test::request_of(prompt.tokens(), 9));
  };
  const Answer bounded = answer("snapkv:budget=80,voters=question,kernel=5,pool=avg");
  EXPECT_EQ(bounded.counters.reused_tokens, 308u);  // all but the question
  // 80 of the prompt and the answer so far, in every layer.
  EXPECT_EQ(bounded.counters.keys_read, 5u * 2 * (8 * 80 + (1 + 8) * 8 / 2));
  EXPECT_EQ(answer("snapkv:budget=80,window=16").counters.reused_tokens, 317u);
  // With room for everything nothing is lost.
  EXPECT_EQ(books.fused(prompt, "a3", "snapkv:budget=400,voters=question"),
            books.fused(prompt, "a3"));
}

TEST(Fusion, PrefixCacheServesWhatItHolds) {
  EngineOptions options = tiny_options();
  options.model = test::tiny_model({32, 5, ""});
  const auto engine = tiny_engine(options);
  auto library = *Library::open(*engine, {.store = test::scratch_folder() + "/prefix"}, true);
  const PartedPrompt prompt = three_chunks();
  for (const auto& chunk : prompt.chunks) ASSERT_TRUE(library.add("book", 0, chunk));
  Request request;
  request.prompt = prompt.tokens();
  request.prompt.resize(150);
  ASSERT_TRUE((*engine->open())->generate(request));
  request.prompt = prompt.tokens();
  auto session = *engine->open();
  const auto report = library.fuse(*session, prompt, "a3:ratio=1");
  ASSERT_TRUE(report);
  EXPECT_EQ(report->reused_rows, 144u);
  const Answer fused = *session->generate(request);
  EXPECT_EQ(fused.tokens, (*engine->open())->generate(request)->tokens);
  EXPECT_EQ(report->loaded_chunks, 2u);  // the first one lies before
}

TEST(Fusion, NoneLooksNothingUp) {
  Books books("bf16", "", {.store_codec = "q8_0", .store_load = "auto"});
  const PartedPrompt prompt = three_chunks();
  books.add(prompt);
  EXPECT_EQ(books.fused(prompt, "none"), books.full(prompt));
  EXPECT_EQ(books.report.chunks, 3u);
  EXPECT_EQ(books.report.loaded_chunks + books.report.rounded_chunks, 0u);
  EXPECT_EQ(books.report.missing_chunks, 0u);
  EXPECT_EQ(books.report.computed_rows, 333u);
}

// Also where one pass has all rows: progress is told behind every layer.
TEST(Fusion, CancelsWithinAPass) {
  Books books("bf16");
  const PartedPrompt prompt = three_chunks();
  books.add(prompt);
  for (const char* fusion : {"none", "pie", "a3", "a3:keys=exact", "a3-paper", "cacheblend"}) {
    auto session = *books.engine->open();
    int calls = 0;
    const auto done = books.library->fuse(*session, prompt, fusion, [&](const Progress& progress) {
      EXPECT_THAT(progress.stage, testing::AnyOf("choose", "prefill"));
      return ++calls < 3;
    });
    ASSERT_FALSE(done) << fusion;
    EXPECT_EQ(done.error().code, ErrorCode::kCancelled) << fusion;
    EXPECT_EQ(calls, 3) << fusion;
    EXPECT_TRUE(session->impl().sequence.logits.empty()) << fusion;
    EXPECT_TRUE(session->tokens().empty()) << fusion;
  }
}

// Nothing is computed within what a step computes.
TEST(Library, IsRefusedInCallbacksOfRequests) {
  Books books("bf16");
  const PartedPrompt prompt = three_chunks();
  books.add(prompt);
  const auto session = *books.engine->open(), other = *books.engine->open();
  Request request = test::request_of(tiny_prompt(200), 3);
  int calls = 0;
  request.on_progress = [&](const Progress&) {
    ++calls;
    const auto fused = books.library->fuse(*other, prompt, "a3");
    const auto added = books.library->add("new", 0, tiny_prompt(40, 50));
    EXPECT_EQ(fused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(added.error().code, ErrorCode::kInvalidArgument);
    return true;
  };
  ASSERT_TRUE(session->generate(request));
  EXPECT_GT(calls, 0);
  EXPECT_TRUE(books.library->fuse(*other, prompt, "a3"));
}

/// Keys and values of the second layer after a fusion.
std::vector<float> stored_after(Books& books, const char* fusion) {
  auto session = *books.engine->open();
  const auto done = books.library->fuse(*session, three_chunks(), fusion);
  EXPECT_TRUE(done) << done.error().message;
  if (!done) return {};
  auto all = stored(*session, 1, 0, 333, true);
  const auto values = stored(*session, 1, 0, 333, false);
  all.insert(all.end(), values.begin(), values.end());
  return all;
}

TEST(Fusion, RowsReadAllWhereThereIsNoMemoryForFewKeys) {
  EngineOptions options = tiny_options();
  options.kv_type = "bf16";
  options.kv_memory = 336 * 512;  // of the prompt alone
  Books tight(options);
  options.kv_memory *= 2;
  Books ample(options);
  const PartedPrompt prompt = three_chunks();
  for (Books* books : {&tight, &ample}) books->add(prompt);
  const char* const few = "a3:ratio=0.3,reads=0.3,near=0";
  const auto all = stored_after(ample, "a3:ratio=0.3,reads=1");
  EXPECT_EQ(stored_after(tight, few), all);
  EXPECT_NE(stored_after(ample, few), all);
}

// What a pass on disk was to find in memory is nobody's when it is over.
TEST(Fusion, TakesMemoryThatAPassWasPromised) {
  EngineOptions options = tiny_options();
  options.kv_type = "bf16";
  options.kv_memory = (336 + 480) * 512;
  options.kv_disk = test::scratch_folder() + "/promised";
  std::filesystem::create_directories(options.kv_disk);
  Books books(options);
  books.add(three_chunks());
  const char* const few = "a3:ratio=0.3,reads=0.3,near=0";
  const auto want = stored_after(books, few);
  ASSERT_TRUE((*books.engine->open())->generate(test::request_of(tiny_prompt(1200, 9), 2)));
  EXPECT_EQ(stored_after(books, few), want);
}

// Whatever the policy: all rows have KV at once.
TEST(Fusion, NeedsMemoryForTheWholePrompt) {
  EngineOptions options = tiny_options();
  options.kv_memory = 300 * 512;  // 300 tokens of two layers
  options.kv_disk = test::scratch_folder();
  options.kv_disk_size = 16 << 20;
  Books books(options);
  for (const char* policy : {"full", "streaming:sink=4,window=64"}) {
    auto session = *books.engine->open(policy);
    const auto done = books.library->fuse(*session, three_chunks(), "pie");
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, ErrorCode::kOutOfMemory);
    EXPECT_THAT(done.error().message, testing::HasSubstr("raise --kv-memory"));
    EXPECT_THAT(done.error().message, testing::Not(testing::HasSubstr("streaming")));
    Request request;
    request.prompt = three_chunks().tokens();
    request.max_tokens = 1;
    EXPECT_TRUE(session->generate(request));
  }
  EXPECT_TRUE(books.library->add("fits", 0, tiny_prompt(150)));  // behind a passage of 128
  const auto added = books.library->add("long", 0, tiny_prompt(180));
  ASSERT_FALSE(added);
  EXPECT_THAT(added.error().message, testing::HasSubstr("raise --kv-memory"));
}

TEST(Fusion, SaysWhatIsWrong) {
  Books books("bf16");
  PartedPrompt prompt = three_chunks();
  auto session = *books.engine->open();
  const auto code = [&](const char* fusion) {
    const auto done = books.library->fuse(*session, prompt, fusion);
    return done ? "done" : std::string(error_name(done.error().code));
  };
  EXPECT_EQ(code("a4"), "invalid_argument");
  EXPECT_EQ(code("a3:ratio=2"), "invalid_argument");
  EXPECT_EQ(code("a3:rows=2"), "unknown_option");
  EXPECT_EQ(code("pie:ratio=1"), "unknown_option");
  EXPECT_EQ(code("a3:reads=2"), "invalid_argument");
  prompt.question.clear();
  EXPECT_EQ(code("a3"), "empty_prompt");
  prompt.question = tiny_prompt(3000);
  EXPECT_EQ(code("a3"), "context_exceeded");
  prompt.question = {1000};
  EXPECT_EQ(code("a3"), "invalid_argument");
  const Books others("bf16");
  session = *others.engine->open();
  prompt = three_chunks();
  EXPECT_EQ(code("a3"), "invalid_argument");
  session.reset();  // before its engine
}

TEST(Library, CutsAtLinesAndFindsByWords) {
  Books books("bf16");
  std::string text;
  for (int i = 0; i < 60; ++i) text += fmt::format("Line {} speaks of thing{}.\n", i, i);
  const auto chunks = books.library->cut(text);
  ASSERT_GT(chunks.size(), 2u);
  std::string joined;
  for (size_t i = 0; i < chunks.size(); ++i) {
    EXPECT_LE(chunks[i].size(), 512u);
    const std::string part = books.engine->detokenize(chunks[i]);
    EXPECT_TRUE(part.ends_with('\n'));
    joined += part;
    EXPECT_TRUE(*books.library->add("lines", static_cast<uint32_t>(i), chunks[i]));
    EXPECT_FALSE(*books.library->add("lines", static_cast<uint32_t>(i), chunks[i]));
  }
  EXPECT_EQ(joined, text + "\n");
  EXPECT_TRUE(books.library->cut(" \n ").empty());
  const auto found = books.library->search("what is thing42?", 3);
  ASSERT_TRUE(found);
  ASSERT_FALSE(found->empty());
  EXPECT_THAT(found->front().text, testing::HasSubstr("thing42."));
  EXPECT_EQ(found->front().document, "lines");
}

TEST(Library, RefusesWhatItCannotKeep) {
  Books books("bf16");
  const auto empty = books.library->add("empty", 0, {});
  ASSERT_FALSE(empty);
  EXPECT_EQ(empty.error().code, ErrorCode::kEmptyPrompt);
  const auto longer = books.library->add("long", 0, tiny_prompt(2048));  // than the context
  ASSERT_FALSE(longer);
  EXPECT_EQ(longer.error().code, ErrorCode::kContextExceeded);
  EXPECT_THAT(longer.error().message, testing::HasSubstr("--chunk-tokens"));
  const auto foreign = books.library->add("foreign", 0, std::vector{1, 2, 259});
  ASSERT_FALSE(foreign);
  EXPECT_EQ(foreign.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(foreign.error().message, "token 259 is outside the vocabulary of 259");
  LibraryOptions options;
  options.store = test::scratch_folder() + "/refused";
  options.chunk_tokens = 0;
  const auto refused = Library::open(*books.engine, options, true);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message, testing::HasSubstr("chunk-tokens"));
}

TEST(Library, ChatPromptIsTheTemplatesAroundTheChunks) {
  Books books("bf16");
  const Message messages[] = {{"system", "Be brief."}, {"user", "Who <|im_end|> was it?"}};
  const auto prompt = books.library->chat_prompt(messages, {tiny_prompt(5)});
  ASSERT_TRUE(prompt);
  auto whole = prompt->head;
  whole.insert(whole.end(), prompt->question.begin(), prompt->question.end());
  EXPECT_EQ(whole, *books.engine->chat_prompt(messages));
  EXPECT_EQ(books.engine->detokenize(prompt->head, true),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n");
}

}  // namespace
}  // namespace reprise
