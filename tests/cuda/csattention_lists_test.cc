// CSAttention's lists (mode=paper, mode=lists) in the whole engine on a device.
#include <gmock/gmock.h>

#include "cuda/csattention_testing.h"

namespace reprise::test {
namespace {

using CsAttentionLists = CudaEngine;

const std::string kPaper = "csattention:mode=paper,index=64,activate=1,budget=96,centroids=16";
const std::string kLists =
    "csattention:mode=lists,index=64,activate=1,budget=96,window=16,sink=0,centroids=32,weights="
    "norm,backoff=false";

// All keys are in every list, and all but a few are chosen.
TEST_F(CsAttentionLists, NearlyAllKeysAreNearlyFullAttention) {
  EngineOptions options = cuda_options();
  options.prefix_cache = false;
  const auto engine = tiny_engine(options);
  const Request request = forced_request(tiny_prompt(300), 30, 9);
  const Logits want = logits_of(*engine, request);
  EXPECT_EQ(logits_of(*engine, request, "csattention:mode=paper,index=64,budget=512,activate=1"),
            want);
  const Logits got = logits_of(*engine, request, kPaper + ",keep=0.995,list=1");
  const Logits few = logits_of(*engine, request, kPaper + ",list=1");
  std::printf("  %.5f from full attention, with few keys %.5f\n", median_distance(got, want),
              median_distance(few, want));
  EXPECT_LT(median_distance(got, want), 0.2 * median_distance(few, want));
}

// Rounding moves seeds of k-means: centroids are others, and equally good.
TEST_F(CsAttentionLists, ReadWhatTheyReadOnTheCpu) {
  EngineOptions cpu = cuda_options();
  cpu.device = "cpu";
  const auto here = tiny_engine(cuda_options()), there = tiny_engine(cpu);
  for (const std::string& policy :
       {kPaper, kPaper + ",backoff=false", kPaper + ",keep=0.5,list=0.5", kPaper + ",observe=0",
        kLists, "dense:first=1+" + kPaper}) {
    SCOPED_TRACE(policy);
    const Request request = forced_request(tiny_prompt(400), 60, 9);
    const Logits want = logits_of(*there, request, policy), full = logits_of(*there, request);
    const Answer answer = answer_of(*here, request, policy);
    EXPECT_EQ(figure(answer, "fallback"), 0.0);
    EXPECT_GT(figure(answer, "index_mb"), 0.0);
    EXPECT_LE(answer.counters.keys_read, answer_of(*here, request).counters.keys_read);
    const Logits got = logits_of(*here, request, policy);
    const double own = median_distance(got, full), other = median_distance(want, full);
    std::printf("  %.4f from full attention, the CPU %.4f, apart %.4f\n", own, other,
                median_distance(got, want));
    EXPECT_LT(own, 1.25 * other);
    EXPECT_LT(other, 1.25 * own);
    EXPECT_LT(median_distance(got, want), 1.25 * other);
  }
}

// Whose index the prompt alone makes.
TEST_F(CsAttentionLists, ShortPromptsReadEverything) {
  EngineOptions options = cuda_options();
  options.prefix_cache = false;
  const auto engine = tiny_engine(options);
  const Request request = forced_request(tiny_prompt(60), 100, 9);
  EXPECT_EQ(logits_of(*engine, request, kPaper), logits_of(*engine, request));
}

TEST_F(CsAttentionLists, SequencesOfABatchDoNotDisturbEachOther) {
  EngineOptions options = cuda_options();
  options.batch = 4;
  options.prefix_cache = false;
  const auto engine = tiny_engine(options), alone = tiny_engine(options);
  const std::vector<std::string> policies = {kPaper, kLists, "full", kPaper};
  std::vector<Request> requests;
  for (uint32_t i = 0; i < policies.size(); ++i) {
    requests.push_back(forced_request(tiny_prompt(150 + 90 * i, i), 80, 20 + i));
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

TEST_F(CsAttentionLists, ForksGoTheirOwnWays) {
  EngineOptions options = cuda_options();
  options.prefix_cache = false;  // equal passes, so equal bits
  const auto engine = tiny_engine(options);
  const auto session_of = [&] {
    auto session = *engine->open(kPaper);
    logits_in(*session, request_of(tiny_prompt(300), 20));
    return session;
  };
  const auto go_on = [&](Session& session, uint32_t seed) {
    return logits_in(session, forced_request(then(session.tokens(), tiny_prompt(40, seed)), 60, 9));
  };
  auto parent = session_of();
  auto child = parent->fork();
  const Logits first = go_on(*parent, 2), second = go_on(*child, 3);
  EXPECT_EQ(first, go_on(*session_of(), 2));
  EXPECT_EQ(second, go_on(*session_of(), 3));
}

// Lists cannot be cut back: the next prompt makes others.
TEST_F(CsAttentionLists, CutAndRestoredSessionsGoOn) {
  EngineOptions options = cuda_options();
  options.prefix_cache = false;
  const auto engine = tiny_engine(options);
  const std::string path = scratch_folder() + "/lists.kv";
  auto session = *engine->open(kPaper), restored = *engine->open(kPaper);
  logits_in(*session, request_of(tiny_prompt(500), 20));
  ASSERT_TRUE(session->save(path, ""));
  ASSERT_TRUE(restored->restore(path));
  ASSERT_TRUE(session->truncate(450));
  for (Session* each : {session.get(), restored.get()}) {
    Answer answer;
    const Request more = forced_request(then(each->tokens(), tiny_prompt(400, 3)), 40, 4);
    EXPECT_EQ(logits_in(*each, more, &answer).size(), 40u);
    EXPECT_GT(figure(answer, "index_mb"), 0.0);
  }
}

TEST_F(CsAttentionLists, SayWhatTheyCannotDo) {
  const auto engine = tiny_engine(cuda_options());
  for (const auto& [options, what] : std::vector<std::pair<std::string, std::string>>{
           {"mode=lists,absent=mean", "absent=mean"},
           {"mode=lists,centred=true", "centred"},
           {"mode=paper,period=4", "period"},
           {"mode=lists,sink=5", "sink"},
           {"mode=paper,parts=16", "parts"},
           {"mode=paper,centroids=300", "centroids"}}) {
    SCOPED_TRACE(options);
    const auto session = engine->open("csattention:index=64," + options);
    ASSERT_FALSE(session);
    EXPECT_EQ(session.error().code, ErrorCode::kUnsupported);
    EXPECT_THAT(session.error().message, testing::HasSubstr(what));
  }
  EXPECT_FALSE(engine->open("mac+csattention:mode=paper,index=64"));
  EXPECT_FALSE(engine->open("csattention:mode=paper"));  // larger than what it indexes
}

}  // namespace
}  // namespace reprise::test
