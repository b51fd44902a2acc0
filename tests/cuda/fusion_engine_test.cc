// Stored chunks in prompts on a CUDA device: what is computed is what full attention computes, what
// is loaded is what was stored, and the same rows are chosen as on the CPU.
#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>
#include <set>

#include "base/no_threads.h"
#include "cuda/fusion_testing.h"
#include "kv/read_faults.h"
#include "methods/baselines/evicting.h"

namespace reprise::test {
namespace {

constexpr uint32_t kLayers = kStoredLayers;

// Stored keys and values are in bf16 whatever pages hold.
TEST_F(CudaEngine, FusionOfEveryRowIsFullPrefill) {
  for (const std::string kv_type : {"bf16", "f16", "fp8"}) {
    Books books(stored_options(kv_type));
    const PartedPrompt prompt = three_chunks();
    const auto full = books.full(prompt);
    const double bound = bf16_tolerance(kLayers);
    EXPECT_LT(relative_distance(books.fused(prompt, "a3"), full), bound);  // nothing is stored yet
    EXPECT_EQ(books.report.missing_chunks, 3u);
    books.add(prompt);
    for (const char* fusion : {"none", "a3:ratio=1", "a3:ratio=1,keys=exact", "cacheblend:ratio=1",
                               "legolink:first=1000"}) {
      const double off = relative_distance(books.fused(prompt, fusion), full);
      std::printf("  %s, %s: %.5f from full prefill, %.5f allowed\n", kv_type.c_str(), fusion, off,
                  bound);
      EXPECT_LT(off, bound) << fusion << ", " << kv_type;
    }
    EXPECT_EQ(books.report.recomputed_rows, 287u);
    EXPECT_GT(relative_distance(books.fused(prompt, "pie"), full), 3 * bound);
    EXPECT_EQ(books.report.loaded_rows, 287u);
    EXPECT_EQ(books.report.recomputed_rows, 0u);
    EXPECT_EQ(books.report.computed_rows, 46u);
  }
}

// The prefix case: a chunk right behind what it was read after.
TEST_F(CudaEngine, FusionOfAChunkAtItsOwnPlaceIsExact) {
  Books books(stored_options());
  const PartedPrompt prompt = books.at_its_own_place();
  books.add(prompt);
  const auto full = books.full(prompt), fused = books.fused(prompt, "a3:ratio=0.5");
  EXPECT_EQ(books.report.loaded_rows, 90u);
  EXPECT_EQ(books.report.recomputed_rows, 0u);  // nothing to repair
  EXPECT_LT(relative_distance(fused, full), bf16_tolerance(kLayers));
}

/// Rows of the chunks that are not what was loaded, in the last layer.
std::vector<bool> computed_again(Books& books, const PartedPrompt& prompt, const char* fusion) {
  const bool on_device = books.engine->impl().options.device == "cuda";
  const auto values = [&](const char* how) {
    auto session = *books.engine->open();
    EXPECT_TRUE(books.library->fuse(*session, prompt, how));
    const uint32_t layer = kLayers - 1;
    return on_device ? read_back(*session, layer, 21, 308, false)
                     : stored(*session, layer, 21, 308, false);
  };
  const auto loaded = values("pie"), fused = values(fusion);
  const size_t width = loaded.size() / 287;
  std::vector<bool> changed;
  for (size_t row = 0; row < 287; ++row) {
    changed.push_back(
        !std::equal(&loaded[row * width], &loaded[row * width] + width, &fused[row * width]));
  }
  return changed;
}

// Where rounding decides between two rows, another one may be chosen.
TEST_F(CudaEngine, FusionChoosesTheCpusRows) {
  EngineOptions options = stored_options();
  Books here(options);
  options.device = "cpu";
  Books there(options);
  const PartedPrompt prompt = three_chunks();
  for (Books* books : {&here, &there}) books->add(prompt);
  const double unrepaired = relative_distance(there.fused(prompt, "pie"), there.full(prompt));
  for (const char* fusion :
       {"legolink:first=9", "a3:ratio=0.3", "a3:ratio=0.3,window=7,pool=1",
        "a3:ratio=0.3,keys=exact", "a3:ratio=0.3,layer=3,first=9", "a3:ratio=0.3,reads=0.4,near=16",
        "a3:ratio=0.3,scores=joint,layer=3", "a3-paper:ratio=0.3", "cacheblend:ratio=0.3"}) {
    const auto got = computed_again(here, prompt, fusion);
    const auto want = computed_again(there, prompt, fusion);
    int both = 0, either = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      both += got[i] && want[i] ? 1 : 0;
      either += got[i] || want[i] ? 1 : 0;
    }
    std::printf("  %s: %d rows chosen by both, %d by either\n", fusion, both, either);
    EXPECT_EQ(std::count(got.begin(), got.end(), true), std::count(want.begin(), want.end(), true));
    EXPECT_GE(both, either * 9 / 10) << fusion;
    EXPECT_GE(both, 27);
    const auto logits = here.fused(prompt, fusion), expected = there.fused(prompt, fusion);
    EXPECT_LT(relative_distance(logits, expected), unrepaired / 2) << fusion;
    EXPECT_EQ(here.report.recomputed_rows, there.report.recomputed_rows);
    EXPECT_EQ(here.report.computed_rows, there.report.computed_rows);
    // A device computes layer 0.
    EXPECT_EQ(here.report.loaded_bytes * kLayers, there.report.loaded_bytes * (kLayers - 1));
  }
}

TEST_F(CudaEngine, FusedRowsReadTheKeysThatTheyDoOnTheCpu) {
  for (const uint32_t chunk : {512u, 32u}) {
    EngineOptions options = stored_options();
    options.chunk = chunk;
    Books here(options);
    options.device = "cpu";
    Books there(options);
    const PartedPrompt prompt = three_chunks();
    for (Books* books : {&here, &there}) books->add(prompt);
    const auto all = there.fused(prompt, "legolink:first=30");
    for (const uint32_t near : {0u, 40u}) {
      const auto fusion = fmt::format("a3:ratio=0.3,reads=0.3,first=30,near={}", near);
      const auto want = there.fused(prompt, fusion.c_str());
      const double off = relative_distance(here.fused(prompt, fusion.c_str()), want);
      std::printf("  chunk %u, %s: %.5f from the CPU, which is %.5f from reading all\n", chunk,
                  fusion.c_str(), off, relative_distance(want, all));
      EXPECT_LT(off, bf16_tolerance(kLayers));
    }
  }
}

TEST_F(CudaEngine, FusedRowsThatReadTheirNeighboursReadAll) {
  for (const std::string kv_type : {"bf16", "f16", "fp8"}) {
    Books books(stored_options(kv_type));
    const PartedPrompt prompt = three_chunks();
    books.add(prompt);
    const auto all = books.fused(prompt, "a3:ratio=0.3,reads=1");
    EXPECT_LT(relative_distance(books.fused(prompt, "a3:ratio=0.3,reads=0.4,near=300"), all),
              bf16_tolerance(kLayers));
    const auto few = books.fused(prompt, "a3:ratio=0.3,reads=0.4,near=0");
    EXPECT_GT(relative_distance(few, all), 0.0);
    EXPECT_LT(relative_distance(few, all), relative_distance(books.fused(prompt, "pie"), all));
  }
}

// A row that is computed again sees what stands before it, and nothing behind it.
TEST_F(CudaEngine, FusedRowsSeeOnlyWhatIsBeforeThem) {
  Books books(stored_options());
  PartedPrompt prompt = three_chunks();
  books.add(prompt);
  auto one = *books.engine->open(), other = *books.engine->open();
  ASSERT_TRUE(books.library->fuse(*one, prompt, "legolink:first=20"));
  prompt.chunks[2] = tiny_prompt(80, 7);
  prompt.question = tiny_prompt(30, 8);
  books.add(prompt);
  ASSERT_TRUE(books.library->fuse(*other, prompt, "legolink:first=20"));
  for (const bool keys : {true, false}) {
    EXPECT_LT(
        relative_distance(read_back(*one, 4, 0, 158, keys), read_back(*other, 4, 0, 158, keys)),
        bf16_tolerance(kLayers));
  }
}

// Policies know of the pages that were loaded as if they had been computed.
TEST_F(CudaEngine, FusionServesPolicies) {
  EngineOptions options = stored_options();
  options.chunk = 256;
  Books books(options);
  const PartedPrompt prompt = three_chunks();
  books.add(prompt);
  for (const char* policy :
       {"full", "quest:budget=64", "dense:first=1+quest:budget=48", "snapkv:budget=48,window=16",
        "h2o:budget=48,observe=16", "csattention:budget=64,window=16,observe=16,activate=48",
        "mac:min_context=0,window=16,band=16,sink=4,align=4,tau=0.1,max_error=0"}) {
    auto session = *books.engine->open(policy);
    const auto want = books.logits(*session, prompt);
    const double off = relative_distance(books.fused(prompt, "a3:ratio=1", policy), want);
    std::printf("  %s: %.5f from full prefill\n", policy, off);
    // Policies that choose by scores may choose another key where rounding decides.
    EXPECT_LT(off, policy == std::string_view("full") ? bf16_tolerance(kLayers)
                                                      : 10 * bf16_tolerance(kLayers))
        << policy;
  }
  // It reads less of prompts, too; fusion computes rows that see everything.
  EXPECT_EQ(books.fused(prompt, "a3", "streaming:sink=4,window=32").size(), 8u * 259u);
}

/// Where the tokens stood that side pages hold, for each KV head. full: keys of the whole prompt,
/// side: of the side pages; both [tokens, n_kv_head, head_dim].
std::vector<std::set<size_t>> places_of(const std::vector<float>& full,
                                        const std::vector<float>& side, uint32_t n_kv_head,
                                        uint32_t head_dim) {
  const size_t width = size_t{n_kv_head} * head_dim;
  std::vector<std::set<size_t>> places(n_kv_head);
  for (size_t at = 0; at < side.size(); at += head_dim) {
    const auto off = [&](size_t token) {
      const float* key = &full[token * width + at % width];
      return std::transform_reduce(key, key + head_dim, &side[at], 0.0, std::plus<>(),
                                   [](float a, float b) { return (a - b) * (a - b); });
    };
    size_t best = 0;
    for (size_t token = 1; token < full.size() / width; ++token) {
      if (off(token) < off(best)) best = token;
    }
    places[at % width / head_dim].insert(best);
  }
  return places;
}

/// What is kept of a prompt of three chunks when the question has voted, in a layer.
std::vector<std::set<size_t>> kept_tokens(Books& books, const char* policy, uint32_t layer,
                                          size_t budget) {
  const bool on_device = books.engine->impl().options.device == "cuda";
  const PartedPrompt prompt = three_chunks();
  const auto keys = [&](const SequenceKv& kv, size_t tokens) {
    const auto end = static_cast<int32_t>(tokens);
    return on_device ? read_back(kv, layer, 0, end, true) : stored(kv, layer, 0, end, true);
  };
  auto whole = *books.engine->open(), session = *books.engine->open(policy);
  for (Session* each : {whole.get(), session.get()}) {
    EXPECT_TRUE(books.library->fuse(*each, prompt, "pie"));
  }
  EXPECT_TRUE(session->generate(request_of(prompt.tokens(), 4)));
  auto& chosen = static_cast<EvictingPolicy&>(session->impl().sequence.policy->undecorated());
  const auto& config = books.engine->impl().model->config();
  return places_of(keys(whole->impl().sequence.kv, prompt.tokens().size()),
                   keys(*chosen.side().pages(), budget), config.n_kv_head, config.head_dim);
}

// All rows of the question vote; what stands before the documents stays.
TEST_F(CudaEngine, TheQuestionChoosesWhatItChoosesOnTheCpu) {
  EngineOptions options = stored_options();
  Books here(options);
  options.device = "cpu";
  Books there(options);
  const PartedPrompt prompt = three_chunks();
  for (Books* books : {&here, &there}) books->add(prompt);
  const char* policy = "snapkv:budget=80,voters=question,kernel=5,pool=avg";
  for (const uint32_t layer : {0u, kLayers - 1}) {
    const auto got = kept_tokens(here, policy, layer, 80);
    const auto want = kept_tokens(there, policy, layer, 80);
    for (size_t head = 0; head < want.size(); ++head) {
      std::vector<size_t> both;
      std::ranges::set_intersection(got[head], want[head], std::back_inserter(both));
      std::printf("  layer %u, head %zu: %zu of 80 tokens as on the CPU\n", layer, head,
                  both.size());
      EXPECT_GE(both.size(), 75u);
      for (size_t token = 0; token < 21; ++token) EXPECT_TRUE(got[head].contains(token)) << token;
    }
  }
  const auto counters = [&](Books& books) {
    auto session = *books.engine->open(policy);
    EXPECT_TRUE(books.library->fuse(*session, prompt, "a3"));
    return session->generate(request_of(prompt.tokens(), 9))->counters;
  };
  const Counters got = counters(here), want = counters(there);
  EXPECT_EQ(got.keys_read, want.keys_read);
  EXPECT_EQ(got.reused_tokens, want.reused_tokens);
  EXPECT_EQ(want.reused_tokens, 308u);  // all but the question
  // With room for everything nothing is lost.
  EXPECT_LT(relative_distance(here.fused(prompt, "a3", "snapkv:budget=400,voters=question"),
                              here.fused(prompt, "a3")),
            bf16_tolerance(kLayers));
}

TEST_F(CudaEngine, FusionStandsOnThePrefixCache) {
  EngineOptions options = stored_options();
  const auto engine = tiny_engine(options);
  auto library = *Library::open(*engine, {.store = scratch_folder() + "/prefixed"}, true);
  const PartedPrompt prompt = three_chunks();
  for (const auto& chunk : prompt.chunks) ASSERT_TRUE(library.add("book", 0, chunk));
  Request request = request_of(prompt.tokens(), 1);
  request.prompt.resize(150);
  answer_of(*engine, request);
  auto session = *engine->open();
  const auto report = library.fuse(*session, prompt, "a3:ratio=1");
  ASSERT_TRUE(report);
  EXPECT_EQ(report->reused_rows, 144u);
  EXPECT_EQ(report->recomputed_rows, 308u - 144u);
}

// Of what every chunk is read after, whole pages are in the prefix cache when the second one is
// read.
TEST_F(CudaEngine, FusionReadsChunksBehindAKeptPassage) {
  for (const char* type : {"bf16", "fp8"}) {
    const EngineOptions options = stored_options(type);
    Books without(options);
    const PartedPrompt prompt = three_chunks();
    without.add(prompt);
    auto read = *without.engine->open();
    ASSERT_TRUE(without.library->fuse(*read, prompt, "pie"));
    const auto engine = tiny_engine(options);
    const std::string folder = scratch_folder() + "/behind_" + type;
    auto library = *Library::open(*engine, {.store = folder}, true);
    for (const auto& chunk : prompt.chunks) ASSERT_TRUE(library.add("book", 0, chunk));
    auto reused = *engine->open();
    ASSERT_TRUE(library.fuse(*reused, prompt, "pie"));
    EXPECT_LT(relative_distance(without.logits(*reused, prompt), without.logits(*read, prompt)),
              bf16_tolerance(kLayers));
  }
}

TEST_F(CudaEngine, FusionComputesDamagedChunks) {
  Books books(stored_options());
  const PartedPrompt prompt = three_chunks();
  books.add(prompt);
  const auto full = books.full(prompt);
  damage_last_block(books);
  const auto fused = books.fused(prompt, "a3:ratio=1");
  EXPECT_EQ(books.report.damaged_chunks, 1u);
  EXPECT_EQ(books.report.loaded_rows, 137u);
  EXPECT_LT(relative_distance(fused, full), bf16_tolerance(kLayers));
}

// Rows are chosen before any of the chunks' rows is computed.
TEST_F(CudaEngine, FusionIsCancelledWhileRowsAreChosen) {
  Books books(stored_options());
  const PartedPrompt prompt = three_chunks();
  books.add(prompt);
  for (const char* fusion : {"a3:ratio=0.3", "cacheblend:ratio=0.3"}) {
    const auto want = books.fused(prompt, fusion);
    auto session = *books.engine->open();
    uint64_t calls = 0, other = 0;
    const auto cancelled = books.library->fuse(*session, prompt, fusion, [&](const Progress& at) {
      if (at.stage == "prefill") ++other;
      return at.stage != "choose" || ++calls < 2;
    });
    ASSERT_FALSE(cancelled);
    EXPECT_EQ(cancelled.error().code, ErrorCode::kCancelled);
    EXPECT_EQ(calls, 2u) << fusion;
    EXPECT_EQ(other, 0u);
    EXPECT_EQ(session->tokens().size(), 0u);
    EXPECT_EQ(books.fused(prompt, fusion), want);
  }
}

// Chunks that stay in page-locked memory are read once, however long that takes.
TEST_F(CudaEngine, FusionComputesWhatIsSlowToRead) {
  const PartedPrompt prompt = three_chunks();
  for (const bool stays : {false, true}) {
    LibraryOptions how = {.store_load = "auto"};
    if (stays) how.store_memory = 8 << 20;
    Books books(stored_options(), how);
    books.add(prompt);
    const auto full = books.full(prompt);
    const ReadFault slow(ReadFault::kSlow);
    const auto fused = books.fused(prompt, "a3");
    EXPECT_EQ(books.report.slow_chunks, stays ? 0u : 3u);
    EXPECT_EQ(books.report.loaded_rows, stays ? 287u : 0u);
    if (stays) continue;
    EXPECT_LT(relative_distance(fused, full), bf16_tolerance(kLayers));
    EXPECT_GT(books.report.reading_ms, books.report.computing_ms);
  }
}

TEST_F(CudaEngine, FusionReadsChunksWhereTheSystemStartsNoThread) {
  const PartedPrompt prompt = three_chunks();
  Books books(stored_options()), measures(stored_options(), {.store_load = "auto"});
  for (Books* each : {&books, &measures}) each->add(prompt);
  const auto want = books.fused(prompt, "a3"), full = measures.full(prompt);
  const NoThreads none;
  EXPECT_EQ(books.fused(prompt, "a3"), want);
  EXPECT_EQ(books.report.loaded_rows, 287u);
  const ReadFault slow(ReadFault::kSlow);
  EXPECT_LT(relative_distance(measures.fused(prompt, "a3"), full), bf16_tolerance(kLayers));
  EXPECT_EQ(measures.report.slow_chunks, 3u);
}

// The last row is computed with the others, and its logits wait for the request.
TEST_F(CudaEngine, FusionGivesTheFirstToken) {
  Books books(stored_options());
  const PartedPrompt prompt = three_chunks();
  books.add(prompt);
  const size_t length = prompt.tokens().size();
  auto held = *books.engine->open(), cut = *books.engine->open(), on = *books.engine->open();
  for (auto* session : {&held, &cut, &on}) {
    ASSERT_TRUE(books.library->fuse(**session, prompt, "a3:ratio=0.3"));
    EXPECT_EQ((*session)->tokens().size(), length);
  }
  ASSERT_TRUE(cut->truncate(length - 1));
  const auto want = books.logits(*cut, prompt);
  EXPECT_LT(relative_distance(books.logits(*held, prompt), want), bf16_tolerance(kLayers));
  // They are of this prompt alone, and used once.
  EXPECT_LT(relative_distance(books.logits(*held, prompt), want), bf16_tolerance(kLayers));
  PartedPrompt longer = prompt;
  longer.question.push_back(7);
  ASSERT_TRUE(cut->truncate(length));
  const auto after = books.logits(*cut, longer);
  EXPECT_GT(relative_distance(after, want), 0.1);
  EXPECT_LT(relative_distance(books.logits(*on, longer), after), bf16_tolerance(kLayers));
  Request request = request_of(prompt.tokens(), 3);
  ASSERT_TRUE(books.library->fuse(*held, prompt, "a3:ratio=0.3"));
  const auto answer = held->generate(request);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->counters.reused_tokens, length);
  EXPECT_EQ(answer->tokens.size(), 3u);
  // Nothing but the beginning of the answer is asked for, or what the policy reads is less.
  ASSERT_TRUE(books.library->fuse(*held, prompt, "a3:ratio=0.3"));
  request.max_tokens = 0;
  EXPECT_TRUE(held->generate(request));
  auto narrow = *books.engine->open("streaming:sink=4,window=32");
  ASSERT_TRUE(books.library->fuse(*narrow, prompt, "a3:ratio=0.3"));
  request.max_tokens = 3;
  const auto computed = narrow->generate(request);
  ASSERT_TRUE(computed);
  EXPECT_LT(computed->counters.reused_tokens, length);
}

// Enough for several parts of the loader's memory would take a model of another size; chunks of
// all sizes and one that stands twice go through its slots in turns.
TEST_F(CudaEngine, FusionLoadsManyChunks) {
  EngineOptions options = stored_options();
  options.kv_memory = 256 << 20;
  Books books(options);
  PartedPrompt prompt = {tiny_prompt(7, 1), {}, tiny_prompt(25, 5)};
  for (uint32_t i = 0; i < 30; ++i) prompt.chunks.push_back(tiny_prompt(1 + i * 4 % 97, 10 + i));
  prompt.chunks.push_back(prompt.chunks[3]);
  books.add(prompt);
  const auto full = books.full(prompt);
  EXPECT_LT(relative_distance(books.fused(prompt, "a3:ratio=1"), full), bf16_tolerance(kLayers));
  EXPECT_EQ(books.report.loaded_rows, prompt.tokens().size() - 32);
}

}  // namespace
}  // namespace reprise::test
