// AttentionPredictor in the whole engine on a device.
#include <gmock/gmock.h>

#include <fstream>
#include <string>

#include "cuda/session_testing.h"
#include "methods/attention_predictor/net_file.h"
#include "methods/random_net.h"
#include "model/tensor_source.h"

namespace reprise::test {
namespace {

using AttentionPredictorEngine = CudaEngine;

const std::string kSmall = "attention_predictor:period=0,budget=128";

const std::string kCalibrated = "attention_predictor:budget=128";

const std::string kNetwork = kCalibrated + ",file=NET";

const std::string kPaper = "attention_predictor:mode=paper,budget=192,file=CNN";

// The policy with a network for the model in place of NET, or of CNN as published.
std::string with_net(std::string policy) {
  const bool published = policy.find("CNN") != std::string::npos;
  const size_t at = policy.find(published ? "CNN" : "NET");
  if (at == std::string::npos) return policy;
  const std::string path = scratch_folder() + (published ? "/cnn" : "/net") + ".safetensors";
  const auto source = TensorSource::open(tiny_model({64}));
  ForecastNet net = random_net(published ? 64 : 16, published, kFaint);
  if (published) net.pool = BlockPool::kMax;
  std::ofstream(path, std::ios::binary) << forecast_net_file(net, *source->config(), {});
  return policy.replace(at, 3, path);
}

// Where averages are nearly equal rounding decides: neither choice is nearer to full attention.
void expect_as_good(const Logits& got, const Logits& want, const Logits& full) {
  const double own = median_distance(got, full), other = median_distance(want, full);
  std::printf("  %.4f from full attention, the CPU %.4f, apart %.4f\n", own, other,
              median_distance(got, want));
  EXPECT_LT(own, 1.25 * other);
  EXPECT_LT(other, 1.25 * own);
  EXPECT_LT(median_distance(got, want), other);
}

TEST_F(AttentionPredictorEngine, WithRoomForEveryKeyIsFullAttention) {
  EngineOptions options = cuda_options();
  options.prefix_cache = false;  // equal passes, so equal bits
  const auto engine = tiny_engine(options);
  const Request request = forced_request(tiny_prompt(300), 30, 9);
  EXPECT_EQ(logits_of(*engine, request, "attention_predictor:period=0,budget=512"),
            logits_of(*engine, request));
  EXPECT_EQ(logits_of(*engine, request, "attention_predictor:budget=512"),
            logits_of(*engine, request));
}

TEST_F(AttentionPredictorEngine, ReadsWhatItReadsOnTheCpu) {
  EngineOptions cpu = cuda_options();
  cpu.device = "cpu";
  const auto here = tiny_engine(cuda_options()), there = tiny_engine(cpu);
  for (const std::string& spec :
       {kSmall, kSmall + ",factor=0", kSmall + ",factor=0.9,history=100", kSmall + ",sink=0",
        kSmall + ",sink=32,window=30", "dense:first=1+" + kSmall, kCalibrated,
        kCalibrated + ",period=1", kCalibrated + ",period=5,factor=0.9,sink=32",
        kCalibrated + ",calibrate=dense", kCalibrated + ",pool=max,layers=1:256", kNetwork,
        kNetwork + ",period=0", kPaper, "dense:first=1+" + kPaper}) {
    SCOPED_TRACE(spec);
    const std::string policy = with_net(spec);
    const Request request = forced_request(tiny_prompt(700), 60, 9);
    const Logits want = logits_of(*there, request, policy), full = logits_of(*there, request);
    const Answer answer = answer_of(*here, request, policy);
    EXPECT_EQ(answer.counters.keys_read, answer_of(*there, request, policy).counters.keys_read);
    expect_as_good(logits_of(*here, request, policy), want, full);
  }
}

// Histories of a network are so many times as large as averages.
TEST_F(AttentionPredictorEngine, WhatItKnowsOfASequenceIsReported) {
  const auto engine = tiny_engine(cuda_options());
  const auto bytes = [&](const std::string& policy) {
    const Request request = forced_request(tiny_prompt(300), 9, 9);
    return answer_of(*engine, request, with_net(policy)).memory.index_bytes;
  };
  const uint64_t average = bytes(kCalibrated);
  EXPECT_GT(average, 0u);
  EXPECT_EQ(bytes(kNetwork), (2 + 2 * 16) * average);
  EXPECT_EQ(bytes(kPaper), (2 + 2 * 64) * average);
}

class AttentionPredictorPeriods : public AttentionPredictorEngine,
                                  public testing::WithParamInterface<std::string> {};
INSTANTIATE_TEST_SUITE_P(Policies, AttentionPredictorPeriods,
                         testing::Values(kSmall, kCalibrated,
                                         kCalibrated + ",calibrate=dense,pool=max,layers=1:256",
                                         kNetwork));

TEST_P(AttentionPredictorPeriods, AnswersOfABatchAreThoseOfEach) {
  const auto engine = tiny_engine(cuda_options());
  const std::vector<std::string> policies(5, with_net(GetParam()));
  std::vector<Request> requests;
  for (uint32_t i = 0; i < policies.size(); ++i) {
    requests.push_back(forced_request(tiny_prompt(300 + 31 * i, i), 40 + 9 * i, 20 + i));
  }
  const std::vector<Logits> together = logits_together(*engine, requests, policies);
  for (uint32_t i = 0; i < together.size(); ++i) {
    const Logits alone = logits_of(*engine, requests[i], policies[i]);
    EXPECT_LT(median_distance(together[i], alone), 3 * bf16_tolerance(2)) << i;
  }
}

TEST_P(AttentionPredictorPeriods, ConversationsGoOnAndGrow) {
  EngineOptions cpu = cuda_options();
  cpu.device = "cpu";
  const auto here = tiny_engine(cuda_options()), there = tiny_engine(cpu);
  std::vector<std::unique_ptr<Session>> sessions;
  sessions.push_back(*here->open(with_net(GetParam())));
  sessions.push_back(*there->open(with_net(GetParam())));
  sessions.push_back(*there->open("full"));
  std::vector<int32_t> prompt = tiny_prompt(400);
  for (uint32_t turn = 0; turn < 4; ++turn) {  // tables grow meanwhile
    SCOPED_TRACE(turn);
    std::vector<Logits> rows(sessions.size());
    for (size_t i = 0; i < sessions.size(); ++i) {
      Request request = forced_request(prompt, 30, 40 + turn);
      request.on_logits = [&own = rows[i]](std::span<const float> logits) {
        own.emplace_back(logits.begin(), logits.end());
      };
      answer_of(*sessions[i], request);
    }
    expect_as_good(rows[0], rows[1], rows[2]);
    const auto forced = tiny_prompt(30, 40 + turn);
    prompt.insert(prompt.end(), forced.begin(), forced.end());
    const auto more = tiny_prompt(turn % 2 == 0 ? 350 : 7, 70 + turn);
    prompt.insert(prompt.end(), more.begin(), more.end());
  }
}

// Averages begin anew with the prompt's last rows, whoever had their place before.
TEST_P(AttentionPredictorPeriods, ForksAndRestoredSessionsGoOnAlike) {
  EngineOptions options = cuda_options();
  options.prefix_cache = false;  // equal passes, so equal bits
  const std::string path = scratch_folder() + "/attention.kv";
  const auto engine = tiny_engine(options), other = tiny_engine(options);
  auto original = *engine->open(with_net(GetParam())),
       restored = *other->open(with_net(GetParam()));
  logits_in(*original, forced_request(tiny_prompt(500), 40, 3));
  ASSERT_TRUE(original->save(path, ""));
  ASSERT_TRUE(restored->restore(path));
  auto fork = original->fork();
  logits_in(*fork, forced_request(then(fork->tokens(), tiny_prompt(90, 6)), 30, 7));
  auto later = original->fork();
  const Request more = forced_request(then(original->tokens(), tiny_prompt(9, 4)), 60, 5);
  const Logits want = logits_in(*original, more);
  EXPECT_EQ(logits_in(*later, more), want);
  EXPECT_EQ(logits_in(*restored, more), want);
}

}  // namespace
}  // namespace reprise::test
