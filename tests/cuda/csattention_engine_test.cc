// CSAttention in the whole engine on a device.
#include <gmock/gmock.h>

#include "cuda/csattention_testing.h"

namespace reprise::test {
namespace {

using CsAttentionEngine = CudaEngine;

// Rounding moves the seeds of k-means, so two devices have different codebooks, which are equally
// good: neither is nearer to full attention.
void expect_as_good(const Logits& got, const Logits& want, const Logits& full) {
  const double own = median_distance(got, full), other = median_distance(want, full);
  std::printf("  %.4f from full attention, the CPU %.4f, apart %.4f\n", own, other,
              median_distance(got, want));
  EXPECT_LT(own, 1.25 * other);
  EXPECT_LT(other, 1.25 * own);
  EXPECT_LT(median_distance(got, want), 1.25 * other);
}

TEST_F(CsAttentionEngine, WithRoomForEveryKeyIsFullAttention) {
  EngineOptions options = cuda_options();
  options.prefix_cache = false;  // equal passes, so equal bits
  const auto engine = tiny_engine(options);
  const Request request = forced_request(tiny_prompt(300), 30, 9);
  const Logits want = logits_of(*engine, request);
  for (const std::string policy :
       {"csattention:activate=1,budget=512", "csattention:activate=1,keep=1",
        "csattention:budget=64", "csattention:budget=64,activate=600"}) {
    SCOPED_TRACE(policy);
    EXPECT_EQ(logits_of(*engine, request, policy), want);
  }
  // Kernels list every page.
  expect_near(logits_of(*engine, request, "dense:first=1+csattention:budget=64"), want,
              bf16_tolerance(2));
}

TEST_F(CsAttentionEngine, ReadsWhatItReadsOnTheCpu) {
  EngineOptions cpu = cuda_options();
  cpu.device = "cpu";
  const auto here = tiny_engine(cuda_options()), there = tiny_engine(cpu);
  for (const std::string& policy :
       {kSmall, kSmall + ",skip=0", kSmall + ",keep=0.5,sink=40", kSmall + ",observe=0",
        kSmall + ",bits=3,iterations=8,seed=4", "dense:first=1+" + kSmall, kPeriodic,
        "dense:first=1+" + kPeriodic + ",keep=0.6",
        std::string("csattention:activate=1,budget=256,window=64")}) {
    SCOPED_TRACE(policy);
    const Request request = forced_request(tiny_prompt(400), 60, 9);
    const Logits want = logits_of(*there, request, policy), full = logits_of(*there, request);
    const Answer answer = answer_of(*here, request, policy);
    EXPECT_EQ(answer.counters.keys_read, answer_of(*there, request, policy).counters.keys_read);
    EXPECT_EQ(figure(answer, "fallback"), 0.0);
    EXPECT_GT(figure(answer, "index_mb"), 0.0);
    expect_as_good(logits_of(*here, request, policy), want, full);
  }
}

// How often queries turn is not counted, so counters are not compared.
TEST_F(CsAttentionEngine, SearchesAnewWhereQueriesTurn) {
  EngineOptions cpu = cuda_options();
  cpu.device = "cpu";
  const auto here = tiny_engine(cuda_options()), there = tiny_engine(cpu);
  const Request request = forced_request(tiny_prompt(400), 60, 9);
  for (const std::string cosine : {"0.3", "0.8"}) {
    SCOPED_TRACE(cosine);
    const std::string policy = kSmall + ",period=3,cosine=" + cosine;
    expect_as_good(logits_of(*here, request, policy), logits_of(*there, request, policy),
                   logits_of(*there, request));
  }
}

// Where queries are compared, no kernel is left out of a step; none turns so far.
TEST_F(CsAttentionEngine, StepsWithoutSearchesReadTheSame) {
  EngineOptions options = cuda_options();
  options.prefix_cache = false;  // equal passes, so equal bits
  const auto engine = tiny_engine(options);
  const Request request = forced_request(tiny_prompt(1500), 80, 9);
  for (const std::string policy : {"csattention:activate=1,budget=96,window=16,period=3",
                                   "csattention:activate=1,budget=1024,window=64,period=32"}) {
    SCOPED_TRACE(policy);
    EXPECT_EQ(logits_of(*engine, request, policy + ",cosine=-1"),
              logits_of(*engine, request, policy + ",cosine=-0.9999"));
  }
}

// All queries have turned.
TEST_F(CsAttentionEngine, APeriodThatAlwaysEndsEarlyIsNone) {
  EngineOptions options = cuda_options();
  options.prefix_cache = false;  // equal passes, so equal bits
  const auto engine = tiny_engine(options);
  const Request request = forced_request(tiny_prompt(400), 40, 9);
  // Two keys of a budget wait for the rows that a search serves.
  const std::string other = "csattention:activate=1,budget=98,window=16,period=3,cosine=1";
  EXPECT_EQ(logits_of(*engine, request, other), logits_of(*engine, request, kSmall));
}

// The prompt fits the budget, so its index comes from the answer.
TEST_F(CsAttentionEngine, AnswersThatOutgrowTheBudgetGetAnIndex) {
  EngineOptions cpu = cuda_options();
  cpu.device = "cpu";
  const auto here = tiny_engine(cuda_options()), there = tiny_engine(cpu);
  const Request request = forced_request(tiny_prompt(60), 200, 9);
  const Logits want = logits_of(*there, request, kSmall);
  const Answer answer = answer_of(*here, request, kSmall);
  EXPECT_EQ(answer.counters.keys_read, answer_of(*there, request, kSmall).counters.keys_read);
  EXPECT_GT(figure(answer, "index_mb"), 0.0);
  expect_as_good(logits_of(*here, request, kSmall), want, logits_of(*there, request));
}

// An index is made anew once the context has grown by 1024 tokens, of one layer after the other.
TEST_F(CsAttentionEngine, LongAnswersGetAnotherIndex) {
  EngineOptions cpu = cuda_options();
  cpu.device = "cpu";
  const auto here = tiny_engine(cuda_options()), there = tiny_engine(cpu);
  const Request request = forced_request(tiny_prompt(200), 1150, 9);
  const auto late = [](const Logits& rows) { return Logits(rows.end() - 80, rows.end()); };
  expect_as_good(late(logits_of(*here, request, kSmall)), late(logits_of(*there, request, kSmall)),
                 late(logits_of(*there, request)));
}

TEST_F(CsAttentionEngine, SequencesOfABatchDoNotDisturbEachOther) {
  EngineOptions options = cuda_options();
  options.batch = 6;
  const auto engine = tiny_engine(options), alone = tiny_engine(options);
  const std::vector<std::string> policies = {kSmall,    kSmall + ",keep=0.4",     "full",
                                             kPeriodic, "dense:last=1+" + kSmall, kPeriodic};
  std::vector<Request> requests;
  for (uint32_t i = 0; i < policies.size(); ++i) {
    requests.push_back(forced_request(tiny_prompt(60 + 90 * i, i), 80, 20 + i));
  }
  const std::vector<Logits> together = logits_together(*engine, requests, policies);
  for (uint32_t i = 0; i < policies.size(); ++i) {
    SCOPED_TRACE(policies[i]);
    const Logits want = logits_of(*alone, requests[i], policies[i]);
    ASSERT_EQ(together[i].size(), want.size());
    // Passes of another make-up round otherwise, which may move a seed.
    const double full = median_distance(logits_of(*alone, requests[i]), want);
    EXPECT_LT(median_distance(together[i], want), std::max(0.5 * full, bf16_tolerance(2)));
  }
}

TEST_F(CsAttentionEngine, ForksGoTheirOwnWays) {
  EngineOptions options = cuda_options();
  options.prefix_cache = false;  // equal passes, so equal bits
  const auto engine = tiny_engine(options);
  for (const std::string& policy : {kSmall, kPeriodic}) {
    SCOPED_TRACE(policy);
    const auto session_of = [&] {
      auto session = *engine->open(policy);
      logits_in(*session, request_of(tiny_prompt(300), 20));
      return session;
    };
    const auto go_on = [&](Session& session, uint32_t seed) {
      return logits_in(session,
                       forced_request(then(session.tokens(), tiny_prompt(40, seed)), 60, 9));
    };
    auto parent = session_of();
    auto child = parent->fork();
    const Logits first = go_on(*parent, 2), second = go_on(*child, 3);
    EXPECT_EQ(first, go_on(*session_of(), 2));
    EXPECT_EQ(second, go_on(*session_of(), 3));
  }
}

// The token that is added is the only row before the next one is decoded: searches go on serving.
TEST_F(CsAttentionEngine, ForksTakeTheirSearchesAlong) {
  EngineOptions options = cuda_options();
  options.prefix_cache = false;
  const auto engine = tiny_engine(options);
  const std::string policy = "csattention:activate=1,budget=512,window=16,period=16,cosine=-1";
  auto parent = *engine->open(policy);
  logits_in(*parent, request_of(tiny_prompt(800), 20));
  auto child = parent->fork(), twin = parent->fork();
  const auto go_on = [&](Session& session) {
    return logits_in(session, forced_request(then(session.tokens(), {5}), 40, 9));
  };
  const Logits want = go_on(*parent);
  EXPECT_EQ(go_on(*child), want);
  EXPECT_EQ(go_on(*twin), want);
}

// Codes of what was generated and taken back are made anew.
TEST_F(CsAttentionEngine, CutSequencesForget) {
  EngineOptions options = cuda_options();
  options.prefix_cache = false;
  const auto engine = tiny_engine(options);
  const auto prompt = tiny_prompt(300);
  const auto run = [&](bool detour) {
    auto session = *engine->open(kSmall);
    logits_in(*session, forced_request(prompt, 1, 4));
    if (detour) logits_in(*session, forced_request(then(prompt, tiny_prompt(50, 5)), 60, 6));
    return logits_in(*session, forced_request(then(prompt, tiny_prompt(50, 7)), 60, 8));
  };
  const Logits direct = run(false), after = run(true);
  EXPECT_LT(median_distance(after, direct), bf16_tolerance(2));
}

TEST_F(CsAttentionEngine, PromptsThatBeginAlikeShareAnIndex) {
  const auto engine = tiny_engine(cuda_options()), fresh = tiny_engine(cuda_options());
  const auto document = tiny_prompt(1400);
  const Request first = request_of(then(document, tiny_prompt(30, 2)), 1);
  const Request second = forced_request(then(document, tiny_prompt(25, 3)), 40, 4);
  answer_of(*engine, first, kSmall);
  const Answer answer = answer_of(*engine, second, kSmall);
  EXPECT_GE(answer.counters.reused_tokens, 1390);
  EXPECT_LT(median_distance(logits_of(*engine, second, kSmall), logits_of(*fresh, second, kSmall)),
            bf16_tolerance(2));
}

// The engine remembers indexes for later prompts that begin alike, as long as nobody else needs
// their room.
TEST_F(CsAttentionEngine, IndexesThatNobodyUsesMakeRoom) {
  EngineOptions options = cuda_options();
  options.kv_memory = 3 << 20;
  options.batch = 1;
  const auto engine = tiny_engine(options);
  for (uint32_t i = 0; i < 8; ++i) {
    const Answer answer =
        answer_of(*engine, forced_request(tiny_prompt(1200, 30 + i), 20, 4), kSmall);
    EXPECT_EQ(figure(answer, "fallback"), 0.0) << i;
    EXPECT_GT(figure(answer, "index_mb"), 0.0) << i;
  }
}

TEST_F(CsAttentionEngine, SaysWhatItCannotDo) {
  const auto engine = tiny_engine(cuda_options());
  for (const std::string policy :
       {"mac+csattention:mode=lists,index=64", "csattention:mode=table", "csattention:unit=key",
        "csattention:bits=8", "csattention:parts=16", "csattention:index=0.02"}) {
    SCOPED_TRACE(policy);
    const auto session = engine->open(policy);
    ASSERT_FALSE(session);
    EXPECT_EQ(session.error().code, ErrorCode::kUnsupported);
    EXPECT_THAT(session.error().message, testing::HasSubstr("mode=codes"));
  }
  const auto session = engine->open("auto+csattention");
  ASSERT_FALSE(session);
  EXPECT_EQ(session.error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace reprise::test
