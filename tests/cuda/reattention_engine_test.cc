// ReAttention on a CUDA device, held against full attention and against itself on the CPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cuda/engine_testing.h"

namespace reprise::test {
namespace {

EngineOptions roomy_options() {
  EngineOptions options = cuda_options();
  options.chunk = 256;
  return options;
}

// Two spans that are wider than the middle.
TEST_F(CudaEngine, ReAttentionOfEverythingIsFullAttention) {
  for (const std::string kv_type : {"bf16", "f16", "fp8"}) {
    EngineOptions options = roomy_options();
    options.kv_type = kv_type;
    const auto engine = tiny_engine(options);
    for (const std::string policy :
         {"reattention",
          "reattention:stride=1,sink=3,local=64,span=700,spans=2,activate=1,chunk=40",
          "reattention:sink=3,local=64,span=700,spans=2,picks=1,stride=7,activate=100"}) {
      SCOPED_TRACE(policy + ", " + kv_type);
      Request request = request_of(tiny_prompt(300), 40);
      const Logits want = logits_of(*engine, request, "full:keys=position-free");
      request.forced = best_tokens(want);
      expect_near(logits_of(*engine, request, policy), want, bf16_tolerance(2));
    }
  }
}

const std::string kGated =
    "reattention:sink=8,local=64,span=8,spans=6,activate=80,stride=0,lead=1.1,gate=0.3";

const std::string kAgreeing =
    "reattention:sink=8,local=64,span=8,spans=6,activate=80,stride=0,lead=1.1,agree=0.5,"
    "decode-picks=1";

// Half of the rows: where rounding decides which of two keys wins, one row differs, and with it
// what deeper layers see of it. Where nothing is said of it, devices scan for every token.
void expect_the_cpus(EngineOptions options, const std::vector<std::string>& policies,
                     double bound) {
  const auto here = tiny_engine(options);
  options.device = "cpu";
  const auto there = tiny_engine(options);
  for (const std::string& policy : policies) {
    SCOPED_TRACE(policy);
    const bool shares = policy.find(",interval=") != std::string::npos;
    // All that share a scan would read a key that rounding chose: a prompt of clear winners.
    Request request = request_of(tiny_prompt(700, shares ? 3 : 1), 60);
    const Logits want = logits_of(*there, request, policy + (shares ? "" : ",interval=1"));
    request.forced = best_tokens(want);
    const double distance = median_distance(logits_of(*here, request, policy), want);
    std::printf("  %.5f from the CPU, %.5f allowed\n", distance, bound);
    EXPECT_LT(distance, bound);
  }
}

TEST_F(CudaEngine, ReAttentionReadsWhatItReadsOnTheCpu) {
  EngineOptions options = roomy_options();
  options.model = tiny_model({64, 1});
  expect_the_cpus(
      options,
      {"reattention:stride=1,sink=8,local=64,span=8,spans=6,activate=80",
       "reattention:sink=0,local=48,span=5,spans=20,picks=2,stride=3,chunk=48,activate=1",
       "reattention:stride=1,sink=5,local=64,span=32,spans=4,activate=300,score=mean",
       "reattention:stride=200,sink=8,local=48,span=8,spans=6,activate=80",
       "reattention:stride=1,sink=8,local=64,activate=80",
       "reattention:stride=1,sink=8,local=64,span=8,spans=6,activate=300,early=90",
       "reattention:sink=8,local=64,span=8,spans=6,activate=300,early=120,stride=0",
       "reattention:sink=8,local=64,span=8,spans=6,activate=80,stride=0,least=0.02",
       "reattention:sink=8,local=64,span=8,spans=6,activate=80,stride=0,lead=0.5",
       "reattention:sink=8,local=64,span=8,spans=200,activate=80,stride=0,lead=0.5",
       kGated,
       kGated + ",wide=64",
       kGated + ",wide=300",
       kAgreeing,
       kAgreeing + ",wide=64",
       kAgreeing + ",own=always",
       kAgreeing + ",own=never",
       kAgreeing + ",alone=1,interval=5",
       kAgreeing + ",alone=1,interval=400",
       kAgreeing + ",heads=0:0/0:2",
       kAgreeing.substr(0, kAgreeing.rfind(',')) + ",decode-picks=3",
       kAgreeing + ",soft=true",
       "reattention:sink=8,local=64,span=8,spans=6,activate=80,stride=0,interval=7",
       "reattention:sink=8,local=64,span=8,spans=6,activate=80,stride=0,decode-picks=5,soft=true",
       "reattention:stride=1,sink=8,local=64,span=8,spans=12,picks=9,activate=80,soft=true",
       "reattention:stride=1,sink=8,local=64,span=8,spans=12,decode-picks=9,activate=80,fill=true",
       "reattention:sink=8,local=64,span=8,spans=6,activate=80,stride=0,decode-picks=20,fill=true,"
       "interval=4",
       "reattention:stride=1,sink=8,local=64,span=8,spans=6,activate=80,heads=0:0/0:2"},
      bf16_tolerance(1));
}

// How often rows look far is known on the device.
TEST_F(CudaEngine, ReAttentionLooksFarAsOftenAsOnTheCpu) {
  EngineOptions options = roomy_options();
  const auto open_share = [&](const std::string& device, const std::string& policy) {
    options.device = device;
    const auto engine = tiny_engine(options);
    Request request = request_of(tiny_prompt(700), 60);
    request.forced = tiny_prompt(60, 9);
    return answer_of(*engine, request, policy + ",interval=1").counters.policy.back();
  };
  const std::string leading = kGated.substr(0, kGated.rfind(','));
  for (const std::string watch :
       {",gate=0.3", ",gate=0.35", ",agree=0.5,decode-picks=1", ",agree=0.44,decode-picks=1",
        ",agree=0.5,decode-picks=1,own=always"}) {
    const auto [name, want] = open_share("cpu", leading + watch);
    const auto [same_name, got] = open_share(cuda_options().device, leading + watch);
    std::printf("  %s: open in %.3f, on the CPU %.3f\n", watch.c_str(), got, want);
    EXPECT_EQ(name, "reattention_open");
    EXPECT_EQ(same_name, name);
    EXPECT_NEAR(got, want, 0.15);
    EXPECT_GT(want, 0.1);  // else the gate would not matter
    EXPECT_LT(want, 0.9);
  }
}

// Rows that choose alone, and otherwise than on the CPU, stand in the window of all that follow:
// they choose together here, or behind a layer that reads everything.
TEST_F(CudaEngine, ReAttentionStaysNearTheCpusInDeeperLayers) {
  const std::string options = "reattention:stride=1,sink=8,local=64,span=8,spans=6,activate=80";
  expect_the_cpus(roomy_options(), {options + ",alone=0,score=raw", "dense:first=1+" + options},
                  2 * bf16_tolerance(2));
}

// Lists, votes and rows of a batch are those of each sequence, wherever it stands in the pass.
TEST_F(CudaEngine, ReAttentionInABatchIsThatOfSingleSequences) {
  EngineOptions options = roomy_options();
  options.batch = 8;
  const auto engine = tiny_engine(options);
  const std::string sparse = "reattention:stride=1,sink=8,local=64,span=8,spans=6,activate=80";
  std::vector<Request> requests;
  std::vector<std::string> policies;
  for (uint32_t i = 0; i < 8; ++i) {
    policies.push_back(std::vector<std::string>{sparse, "full", kGated, kAgreeing}[i % 4]);
    requests.push_back(request_of(tiny_prompt(40 + 90 * i, i), 20 + i));
    requests[i].forced = best_tokens(logits_of(*engine, requests[i], policies[i]));
  }
  const std::vector<Logits> together = logits_together(*engine, requests, policies);
  for (uint32_t i = 0; i < together.size(); ++i) {
    const Logits alone = logits_of(*engine, requests[i], policies[i]);
    EXPECT_LT(median_distance(together[i], alone), bf16_tolerance(2)) << i;
  }
}

TEST_F(CudaEngine, ReAttentionGoesOnInForksBeyondTheContextAndFromAFile) {
  EngineOptions options = roomy_options();
  options.ctx = 100;
  const std::string path = scratch_folder() + "/reattention-cuda";
  const auto engine = tiny_engine(options);
  for (const std::string& policy :
       {std::string("reattention:stride=1,sink=8,local=64,span=8,spans=6,activate=80"), kGated,
        kAgreeing}) {
    SCOPED_TRACE(policy);
    auto parent = *engine->open(policy);
    Request stopped = request_of(tiny_prompt(500), 20);
    stopped.on_token = [tokens = 0](const TokenEvent&) mutable { return ++tokens < 8; };
    const Answer first = *parent->generate(stopped);  // and a row that was computed ahead
    ASSERT_EQ(first.finish, FinishReason::kCancelled);
    ASSERT_TRUE(parent->save(path, ""));
    auto fork = parent->fork(), restored = *engine->open(policy);
    ASSERT_TRUE(restored->restore(path));
    auto prompt = tiny_prompt(500);
    prompt.insert(prompt.end(), first.tokens.begin(), first.tokens.end());
    const auto more = tiny_prompt(70, 5);
    prompt.insert(prompt.end(), more.begin(), more.end());
    std::vector<std::vector<int32_t>> answers;
    for (Session* session : {parent.get(), fork.get(), restored.get()}) {
      const auto answer = session->generate(request_of(prompt, 30));
      ASSERT_TRUE(answer) << answer.error().message;
      EXPECT_GE(answer->counters.reused_tokens, 500u);
      answers.push_back(answer->tokens);
    }
    EXPECT_EQ(answers[1], answers[0]);
    EXPECT_EQ(answers[2], answers[0]);
  }
}

TEST_F(CudaEngine, WhatReAttentionLacksOnADeviceIsRefused) {
  const auto engine = tiny_engine(cuda_options());
  for (const auto& [policy, what] :
       {std::pair{"reattention:local=64,fill=true,spans=130", "130 spans of 32"},
        {"reattention:local=64,span=1,spans=1500", "1500 spans"},
        {"reattention:local=64,decode-picks=500", "500 decode-picks"},
        {"reattention:local=256", "raise --prefill-chunk from 64"}}) {
    const auto session = engine->open(policy);
    ASSERT_FALSE(session) << policy;
    EXPECT_THAT(session.error().message, testing::HasSubstr(what));
  }
}

}  // namespace
}  // namespace reprise::test
