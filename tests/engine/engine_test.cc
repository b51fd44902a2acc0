#include "reprise/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/answers.h"
#include "engine/engine_impl.h"
#include "engine/tiny_model.h"
#include "kernels/isa.h"

namespace reprise {
namespace {

using test::answer_of;
using test::request_of;
using test::tiny_engine;
using test::tiny_options;
using test::tiny_prompt;
using ::testing::HasSubstr;

ErrorCode code_of(Engine& engine, const Request& request) {
  const auto answer = (*engine.open())->generate(request);
  EXPECT_FALSE(answer);
  return answer ? ErrorCode::kUnsupported : answer.error().code;
}

TEST(Engine, DescribesItsModel) {
  EngineOptions options = tiny_options();
  options.kv_type = "bf16";
  const auto engine = tiny_engine(options);
  EXPECT_EQ(engine->info().architecture, "llama");
  EXPECT_EQ(engine->info().n_layer, 2u);
  EXPECT_EQ(engine->info().context, 2048u);
  EXPECT_EQ(engine->info().kv_bytes_per_token, 2u * 2 * 2 * 32 * 2);
}

TEST(Engine, GreedyAnswersDoNotDependOnChunkOrThreads) {
  const auto want = answer_of(*tiny_engine(), request_of(tiny_prompt(300))).tokens;
  ASSERT_EQ(want.size(), 24u);
  for (const uint32_t chunk : {16, 50, 512}) {
    for (const uint32_t threads : {1, 3}) {
      EngineOptions options = tiny_options();
      options.chunk = chunk;
      options.threads = threads;
      EXPECT_EQ(answer_of(*tiny_engine(options), request_of(tiny_prompt(300))).tokens, want)
          << "chunk " << chunk << " threads " << threads;
    }
  }
}

// Of the logits after a prompt that is read, and after one whose tokens are decoded one by one.
double distance_of_phases(const EngineOptions& options) {
  const auto engine = tiny_engine(options);
  const std::vector<int32_t> prompt = tiny_prompt(200);
  std::vector<float> read, decoded;
  Request request = request_of(prompt, 1);
  request.on_logits = [&](std::span<const float> x) { read.assign(x.begin(), x.end()); };
  answer_of(*engine, request);
  request = request_of({prompt[0]}, 200);
  request.forced.assign(prompt.begin() + 1, prompt.end());
  request.on_logits = [&](std::span<const float> x) { decoded.assign(x.begin(), x.end()); };
  answer_of(*engine, request);
  double difference = 0, norm = 0;
  for (size_t i = 0; i < read.size(); ++i) {
    difference += std::pow(double{read[i]} - decoded[i], 2);
    norm += std::pow(double{read[i]}, 2);
  }
  return std::sqrt(difference / norm);
}

TEST(Engine, InFloatPromptsAndAnswersAreComputedAlike) {
  EngineOptions options = tiny_options();
  const double rounded = distance_of_phases(options);
  options.precision = "f32";
  const double exact = distance_of_phases(options);
  EXPECT_LT(exact, 0x1p-18);    // some roundings of 2^-24 in each of a dozen operations
  EXPECT_GT(rounded, 0x1p-12);  // of bf16
  EXPECT_EQ(tiny_engine(options)->info().kv_type, "f32");
}

TEST(Engine, InFloatKeysAndValuesAreFloat) {
  EngineOptions options = tiny_options();
  options.precision = "f32";
  options.kv_type = "q8_0";
  const auto engine = Engine::load(options);
  ASSERT_FALSE(engine);
  EXPECT_EQ(engine.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(engine.error().message, HasSubstr("leave out --kv-type q8_0"));
}

TEST(Engine, HeadsThatBlocksDoNotFitAreRefused) {
  EngineOptions options = tiny_options();
  options.model = test::tiny_model({80});
  for (const std::string type : {"q8_0", "bf12"}) {
    options.kv_type = type;
    const auto engine = Engine::load(options);
    ASSERT_FALSE(engine);
    EXPECT_EQ(engine.error().code, ErrorCode::kUnsupported);
    EXPECT_THAT(engine.error().message, HasSubstr(type + " needs heads"));
    EXPECT_THAT(engine.error().message, HasSubstr("not 80; choose bf16"));
  }
}

TEST(Engine, TheKvTypeIsTheFastestUnlessOneIsNamed) {
  EngineOptions options = tiny_options(), wide = options;
  wide.model = test::tiny_model({80});
  for (const kernels::Isa isa : kernels::machine_isas()) {
    const kernels::IsaScope scope(isa);
    const bool packs = isa == kernels::Isa::kAvx512;
    EXPECT_EQ(tiny_engine(options)->info().kv_type, packs ? "bf12" : "bf16");
    EXPECT_EQ(tiny_engine(wide)->info().kv_type, "bf16");
  }
  options.kv_disk = test::scratch_folder();
  EXPECT_EQ(tiny_engine(options)->info().kv_type, "bf16") << "whole blocks of the disk";
}

// Long enough for KV heads to be read together by one thread, and apart by many.
TEST(Engine, LongAnswersDoNotDependOnThreads) {
  const auto logits = [](uint32_t threads) {
    EngineOptions options = tiny_options();
    options.threads = threads;
    std::vector<float> all;
    Request request = request_of(tiny_prompt(1200), 8);
    request.on_logits = [&](std::span<const float> x) {
      all.insert(all.end(), x.begin(), x.end());
    };
    answer_of(*tiny_engine(options), request);
    return all;
  };
  const std::vector<float> together = logits(1);
  ASSERT_FALSE(together.empty());
  EXPECT_EQ(logits(4), together);
}

TEST(Engine, AnswersDoNotDependOnWhatElseIsInTheBatch) {
  const auto engine = tiny_engine();
  std::vector<std::vector<int32_t>> alone, together(6);
  for (uint32_t i = 0; i < 6; ++i) {
    const auto policy = i % 2 == 0 ? "full" : "streaming:sink=4,window=40";
    alone.push_back(
        answer_of(*tiny_engine(), request_of(tiny_prompt(20 + 60 * i, i)), policy).tokens);
  }
  std::vector<std::unique_ptr<Session>> sessions;
  for (uint32_t i = 0; i < 6; ++i) {
    const auto policy = i % 2 == 0 ? "full" : "streaming:sink=4,window=40";
    sessions.push_back(*engine->open(policy));
    ASSERT_TRUE(engine->submit(*sessions[i], request_of(tiny_prompt(20 + 60 * i, i)),
                               [&, i](Result<Answer> answer) { together[i] = answer->tokens; }));
  }
  while (engine->step()) continue;
  EXPECT_EQ(together, alone);
}

TEST(Engine, SampledAnswersRepeatWithTheirSeed) {
  const auto engine = tiny_engine();
  Request request = request_of(tiny_prompt(40));
  request.sampling.temp = 1.0f;
  request.sampling.seed = 9;
  const auto first = answer_of(*engine, request).tokens;
  EXPECT_EQ(answer_of(*engine, request).tokens, first);
  request.sampling.seed = 10;
  EXPECT_NE(answer_of(*engine, request).tokens, first);
}

TEST(Engine, ThePrefixCacheSavesReadingAndChangesNothing) {
  const auto engine = tiny_engine();
  const auto prompt = tiny_prompt(200);
  const Answer first = answer_of(*engine, request_of(prompt));
  EXPECT_EQ(first.counters.reused_tokens, 0u);
  const Answer again = answer_of(*engine, request_of(prompt));
  EXPECT_EQ(again.counters.reused_tokens, 192u);  // whole pages of what comes before the last token
  EXPECT_EQ(again.tokens, first.tokens);
  auto edited = prompt;
  edited[100] ^= 1;
  const Answer changed = answer_of(*engine, request_of(edited));
  EXPECT_EQ(changed.counters.reused_tokens, 96u);
  EngineOptions options = tiny_options();
  options.prefix_cache = false;
  EXPECT_EQ(answer_of(*tiny_engine(options), request_of(edited)).tokens, changed.tokens);
}

TEST(Engine, APromptMayGetACopyOfTheKvOfAnother) {
  const auto engine = tiny_engine();
  const auto prompt = tiny_prompt(200);
  const Answer first = answer_of(*engine, request_of(prompt));
  auto other = prompt;
  other[0] ^= 1;
  const uint64_t held = engine->kv().memory.bytes;
  Scheduler& scheduler = engine->impl().scheduler;
  const auto session = *engine->open();
  const Policy& policy = *session->impl().sequence.policy;
  for (int times = 0; times < 2; ++times) {  // what is there is not copied again
    ASSERT_TRUE(scheduler.copy_prefix(policy, prompt, other));
    EXPECT_EQ(engine->kv().memory.bytes, 2 * held);
  }
  const Answer copied = *session->generate(request_of(other));
  EXPECT_EQ(copied.counters.reused_tokens, 192u);
  EXPECT_EQ(copied.tokens, first.tokens) << "keys and values are those of the first prompt";
  EXPECT_EQ(answer_of(*engine, request_of(prompt)).tokens, first.tokens);
}

TEST(Engine, ASessionGoesOnWithoutReadingAgain) {
  const auto engine = tiny_engine();
  auto session = *engine->open();
  auto prompt = tiny_prompt(100);
  const Answer first = *session->generate(request_of(prompt, 8));
  EXPECT_EQ(session->tokens().size(), 107u);  // the last token was never computed
  prompt.insert(prompt.end(), first.tokens.begin(), first.tokens.end());
  const Answer second = *session->generate(request_of(prompt, 8));
  EXPECT_EQ(second.counters.reused_tokens, 107u);
  const Answer whole = answer_of(*engine, request_of(tiny_prompt(100), 16));
  EXPECT_EQ(second.tokens.size(), 8u);
  EXPECT_EQ(std::vector(whole.tokens.begin(), whole.tokens.begin() + 8), first.tokens);
}

TEST(Engine, ASessionGoesOnFromItsOwnWhateverOthersRead) {
  for (const char* policy : {"full", "snapkv:budget=64", "quest:budget=64"}) {
    std::vector<Answer> answers;
    std::vector<std::vector<float>> logits(2);
    for (const bool read_by_another : {false, true}) {
      const auto engine = tiny_engine();
      const auto session = *engine->open(policy);
      auto prompt = tiny_prompt(300);
      const Answer first = *session->generate(request_of(prompt, 40));
      prompt.insert(prompt.end(), first.tokens.begin(), first.tokens.end());
      const auto more = tiny_prompt(120, 99);
      prompt.insert(prompt.end(), more.begin(), more.end());
      if (read_by_another) answer_of(*engine, request_of(prompt, 1));
      Request next = request_of(prompt);
      next.on_logits = [&](std::span<const float> row) {
        logits[read_by_another].insert(logits[read_by_another].end(), row.begin(), row.end());
      };
      answers.push_back(answer_of(*session, next));
    }
    EXPECT_EQ(answers[0].counters.reused_tokens, answers[1].counters.reused_tokens) << policy;
    EXPECT_EQ(logits[0], logits[1]) << policy;
  }
}

TEST(Engine, ForkedSessionsDoNotDisturbEachOther) {
  const auto engine = tiny_engine();
  auto session = *engine->open();
  const auto prompt = tiny_prompt(50);
  ASSERT_TRUE(session->generate(request_of(prompt, 0)));
  auto left = session->fork(), right = session->fork();
  auto more = prompt;
  more.push_back(7);
  auto other = prompt;
  other.push_back(8);
  const auto a = left->generate(request_of(more))->tokens;
  const auto b = right->generate(request_of(other))->tokens;
  EXPECT_EQ(session->tokens().size(), 50u);
  EXPECT_EQ(session->fork()->generate(request_of(more))->tokens, a);
  EXPECT_EQ(session->fork()->generate(request_of(other))->tokens, b);
}

TEST(Engine, TruncatedSessionsAnswerAsIfTheyHadStoppedThere) {
  const auto engine = tiny_engine();
  auto session = *engine->open();
  const auto prompt = tiny_prompt(120);
  const auto first = session->generate(request_of(prompt))->tokens;
  ASSERT_TRUE(session->truncate(60));
  EXPECT_EQ(session->tokens().size(), 60u);
  EXPECT_EQ(session->generate(request_of(prompt))->tokens, first);
  EXPECT_EQ(session->truncate(1000).error().code, ErrorCode::kInvalidArgument);
}

TEST(Engine, CancellingPrefillKeepsWhatWasRead) {
  const auto engine = tiny_engine();
  auto session = *engine->open();
  Request request = request_of(tiny_prompt(400));
  int chunks = 0;
  request.on_progress = [&](const Progress& progress) {
    EXPECT_EQ(progress.total, 400u);
    return ++chunks < 2;
  };
  const auto cancelled = session->generate(request);
  ASSERT_FALSE(cancelled);
  EXPECT_EQ(cancelled.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(session->tokens().size(), 128u);
  request.on_progress = {};
  const Answer answer = *session->generate(request);
  EXPECT_EQ(answer.counters.reused_tokens, 128u);
  EXPECT_EQ(answer.tokens, answer_of(*engine, request_of(tiny_prompt(400))).tokens);
}

TEST(Engine, CancellingAnIndexKeepsTheKvAndNoPartOfIt) {
  EngineOptions alone = tiny_options();
  alone.prefix_cache = false;
  for (const std::string mode : {"codes", "table", "lists,centroids=8"}) {
    SCOPED_TRACE(mode);
    const std::string spec = "csattention:budget=64,observe=32,mode=" + mode;
    const auto engine = tiny_engine(alone);
    auto session = *engine->open(spec), other = *engine->open(spec);
    Request request = request_of(tiny_prompt(400));
    std::vector<uint64_t> layers;
    bool asked_to_stop = false;
    request.on_progress = [&](const Progress& progress) {
      EXPECT_FALSE(asked_to_stop);
      if (progress.stage != "index") return true;
      EXPECT_EQ(progress.total, 2u);
      layers.push_back(progress.done);
      asked_to_stop = progress.done == 1;
      return !asked_to_stop;
    };
    std::optional<Result<Answer>> cancelled, undisturbed;
    const auto keep = [](auto& where) {
      return [&](Result<Answer> answer) { where.emplace(std::move(answer)); };
    };
    ASSERT_TRUE(engine->submit(*session, request, keep(cancelled)));
    ASSERT_TRUE(engine->submit(*other, request_of(tiny_prompt(400)), keep(undisturbed)));
    while (engine->step()) continue;
    ASSERT_FALSE(*cancelled);
    EXPECT_EQ(cancelled->error().code, ErrorCode::kCancelled);
    EXPECT_EQ(layers, (std::vector<uint64_t>{0, 1}));
    EXPECT_EQ(session->tokens().size(), 400u);
    const Answer want = answer_of(*tiny_engine(alone), request_of(tiny_prompt(400)), spec);
    EXPECT_EQ((*undisturbed)->tokens, want.tokens);
    request.on_progress = {};
    const Answer answer = answer_of(*session, request);
    EXPECT_EQ(answer.counters.reused_tokens, 400u - 32);
    EXPECT_EQ(answer.tokens, want.tokens);
    EXPECT_EQ(answer.counters.keys_read, want.counters.keys_read);
  }
}

TEST(Engine, TokensStreamAndCanBeStopped) {
  const auto engine = tiny_engine();
  Request request = request_of(tiny_prompt(30));
  std::string streamed;
  int tokens = 0;
  request.on_token = [&](const TokenEvent& event) {
    streamed += event.text;
    return ++tokens < 5;
  };
  const Answer answer = answer_of(*engine, request);
  EXPECT_EQ(answer.finish, FinishReason::kCancelled);
  EXPECT_EQ(answer.tokens.size(), 5u);
  EXPECT_TRUE(std::string_view(answer.text).starts_with(streamed));
}

TEST(Engine, StopStringsEndTheAnswer) {
  const auto engine = tiny_engine();
  Request request = request_of(tiny_prompt(30), 40);
  const std::string text = answer_of(*engine, request).text;
  ASSERT_GT(text.size(), 12u);
  request.stop = {text.substr(8, 3)};
  const Answer answer = answer_of(*engine, request);
  EXPECT_EQ(answer.finish, FinishReason::kStop);
  EXPECT_EQ(answer.text, text.substr(0, text.find(request.stop[0])));
}

// Also where text was held back, as a stop string might have begun.
TEST(Engine, EachTokenIsReportedOnce) {
  const auto engine = tiny_engine();
  Request request = request_of(tiny_prompt(30), 8);
  const std::string whole = answer_of(*engine, request).text;
  request.stop = {whole.substr(whole.size() - 2) + "and more"};
  std::vector<int32_t> tokens;
  std::string streamed;
  request.on_token = [&](const TokenEvent& event) {
    tokens.push_back(event.token);
    streamed += event.text;
    return true;
  };
  const Answer answer = answer_of(*engine, request);
  EXPECT_EQ(answer.text, whole);
  EXPECT_EQ(streamed, whole);
  EXPECT_EQ(tokens, answer.tokens);
}

// What a stop string may have begun with comes before what a character has.
TEST(Engine, HeldBackTextKeepsItsOrder) {
  const auto engine = tiny_engine();
  Request request = request_of(tiny_prompt(30), 3);
  request.forced = {'a', 'b', 0xf0};
  request.stop = {"abX"};
  EXPECT_EQ(answer_of(*engine, request).text, "ab\uFFFD");
}

TEST(Engine, APromptLongerThanTheContextNamesBothNumbers) {
  EngineOptions options = tiny_options();
  options.ctx = 100;
  const auto engine = tiny_engine(options);
  const auto answer = (*engine->open())->generate(request_of(tiny_prompt(101)));
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, ErrorCode::kContextExceeded);
  for (const auto* part : {"101", "100", "--ctx", "--policy"}) {
    EXPECT_THAT(answer.error().message, HasSubstr(part));
  }
  EXPECT_EQ(answer_of(*engine, request_of(tiny_prompt(98), 50)).finish, FinishReason::kContext);
  EXPECT_EQ(answer_of(*engine, request_of(tiny_prompt(98), 50)).tokens.size(), 3u);
}

TEST(Engine, StreamingGoesOnBeyondTheContext) {
  EngineOptions options = tiny_options();
  options.ctx = 100;
  const auto engine = tiny_engine(options);
  const Answer answer =
      answer_of(*engine, request_of(tiny_prompt(150), 100), "streaming:sink=4,window=48");
  EXPECT_EQ(answer.tokens.size(), 100u);
  EXPECT_LT(answer.memory.kv_bytes, 100u * engine->info().kv_bytes_per_token);
}

TEST(Engine, BadRequestsAreRefusedAndChangeNothing) {
  const auto engine = tiny_engine();
  EXPECT_EQ(code_of(*engine, request_of({})), ErrorCode::kEmptyPrompt);
  EXPECT_EQ(code_of(*engine, request_of({1, 999})), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(*engine, request_of({-1})), ErrorCode::kInvalidArgument);
  Request request = request_of({1, 2});
  request.sampling.temp = -1.0f;
  EXPECT_EQ(code_of(*engine, request), ErrorCode::kInvalidArgument);
  request = request_of({1, 2});
  request.stop = {"\xa9"};
  EXPECT_EQ(code_of(*engine, request), ErrorCode::kInvalidArgument);
  EXPECT_EQ(engine->open("fulll").error().code, ErrorCode::kUnknownPolicy);
}

TEST(Engine, OutOfKvMemoryFailsOneRequestAndNamesTheFlag) {
  EngineOptions options = tiny_options();
  options.kv_memory = 200 * 512;  // 200 tokens
  options.chunk = 300;
  const auto engine = tiny_engine(options);
  const auto answer = (*engine->open())->generate(request_of(tiny_prompt(300)));
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, ErrorCode::kOutOfMemory);
  EXPECT_THAT(answer.error().message, HasSubstr("; raise --kv-memory"));
  const auto chunk = (*engine->open("streaming:window=32"))->generate(request_of(tiny_prompt(300)));
  ASSERT_FALSE(chunk);
  EXPECT_THAT(chunk.error().message, HasSubstr("; lower --prefill-chunk, raise --kv-memory"));
  EXPECT_EQ(answer_of(*engine, request_of(tiny_prompt(100))).tokens.size(), 24u);
}

TEST(Engine, ThePrefixCacheGivesWayToLiveSequences) {
  EngineOptions options = tiny_options();
  options.kv_memory = 400 * 512;
  const auto engine = tiny_engine(options);
  for (uint32_t seed = 0; seed < 8; ++seed) {
    EXPECT_EQ(answer_of(*engine, request_of(tiny_prompt(250, seed))).tokens.size(), 24u) << seed;
  }
}

TEST(Engine, AShortPromptIsNotHeldUpByALongOne) {
  const auto engine = tiny_engine();
  auto slow = *engine->open(), quick = *engine->open();
  std::vector<int> order;
  ASSERT_TRUE(engine->submit(*slow, request_of(tiny_prompt(1500, 1), 1),
                             [&](Result<Answer>) { order.push_back(1); }));
  ASSERT_TRUE(engine->submit(*quick, request_of(tiny_prompt(60, 2), 1),
                             [&](Result<Answer>) { order.push_back(2); }));
  int steps = 0;
  while (order.empty() && engine->step()) ++steps;
  EXPECT_EQ(order, std::vector<int>{2});
  EXPECT_LE(steps, 2);  // half of each chunk of 64 is its own
  while (engine->step()) continue;
  EXPECT_EQ(order, (std::vector<int>{2, 1}));
}

TEST(Engine, ASessionAnswersOneRequestAtATime) {
  const auto engine = tiny_engine();
  auto session = *engine->open();
  ASSERT_TRUE(engine->submit(*session, request_of(tiny_prompt(10)), [](Result<Answer>) {}));
  EXPECT_EQ(engine->submit(*session, request_of(tiny_prompt(10)), {}).error().code,
            ErrorCode::kInvalidArgument);
  session.reset();  // takes its request with it
  EXPECT_FALSE(engine->step());
}

TEST(Engine, SessionsOfAnotherEngineAreRefused) {
  const auto engine = tiny_engine(), other = tiny_engine();
  auto session = *other->open();
  EXPECT_EQ(engine->submit(*session, request_of(tiny_prompt(10)), {}).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_FALSE(engine->step());
  EXPECT_EQ(answer_of(*session, request_of(tiny_prompt(10), 3)).tokens.size(), 3u);
}

TEST(Engine, CountersSayWhatDecodingRead) {
  const auto engine = tiny_engine();
  const Answer full = answer_of(*engine, request_of(tiny_prompt(100), 2));
  EXPECT_EQ(full.counters.keys_visible, 2u * 2 * 101);  // one decode row, two layers, two KV heads
  EXPECT_EQ(full.counters.keys_read, full.counters.keys_visible);
  const Answer some =
      answer_of(*engine, request_of(tiny_prompt(100), 2), "streaming:sink=4,window=16");
  EXPECT_EQ(some.counters.keys_visible, full.counters.keys_visible);
  EXPECT_EQ(some.counters.keys_read, 2u * 2 * 20);
}

}  // namespace
}  // namespace reprise
