// MAC-Attention in the whole engine on a device.
#include <gmock/gmock.h>

#include <numeric>
#include <random>
#include <string>

#include "cuda/session_testing.h"

namespace reprise::test {
namespace {

using MacEngine = CudaEngine;

const std::string kCodes = "csattention:activate=1,budget=96,window=16";
const std::string kBounded = "window=64,band=32,sink=16,min_context=64,guard=false",
                  kShort = kBounded + ",max_error=0";

TEST_F(MacEngine, ReuseTurnedOffIsFullAttention) {
  EngineOptions options = cuda_options();
  options.prefix_cache = false;  // equal passes, so equal bits
  const auto engine = tiny_engine(options);
  Request request = request_of(tiny_prompt(300), 30);
  const Logits want = logits_of(*engine, request);
  EXPECT_EQ(logits_of(*engine, request, "mac:tau=1"), want);
}

// Rings pay on a CPU from 644 tokens, on a device from far more: every step is decode attention,
// which leaves queries in rings.
TEST_F(MacEngine, RestingIsFullAttention) {
  const auto engine = tiny_engine(cuda_options());
  Request request = request_of(tiny_prompt(700), 30);
  const Logits want = logits_of(*engine, request);
  const std::string policy = "mac:window=64,band=32,sink=16,min_context=64,tau=0.1,max_error=0";
  expect_near(logits_of(*engine, request, policy), want, bf16_tolerance(2));
  const Answer answer = answer_of(*engine, request, policy);
  EXPECT_EQ(figure(answer, "mac_off"), 1.0);
  EXPECT_EQ(figure(answer, "mac_nonfinite"), 0.0);
}

// In the first layer equal tokens have equal queries: none comes twice.
TEST_F(MacEngine, WithoutAMatchOnlyRoundingDiffers) {
  const auto engine = tiny_engine(cuda_options());
  std::vector<int32_t> tokens(250);
  std::iota(tokens.begin(), tokens.end(), 0);
  std::shuffle(tokens.begin(), tokens.end(), std::mt19937(3));
  Request request = request_of({tokens.begin(), tokens.begin() + 170}, 80);
  request.forced.assign(tokens.begin() + 170, tokens.end());
  const Logits want = logits_of(*engine, request);
  for (const std::string rest : {"", ",align=1,sink=0", ",mode=paper", ",window=16,band=0"}) {
    const std::string policy = "mac:" + kShort + ",tau=0.9999" + rest;
    SCOPED_TRACE(policy);
    expect_near(logits_of(*engine, request, policy), want, bf16_tolerance(2));
    const Answer answer = answer_of(*engine, request, policy);
    EXPECT_EQ(figure(answer, "mac_head_hits"), 0.0);
    EXPECT_EQ(figure(answer, "mac_nonfinite"), 0.0);
  }
}

// Distances differ by rounding: few queries near the threshold are judged otherwise.
TEST_F(MacEngine, ReusesWhatItReusesOnTheCpu) {
  EngineOptions cpu = cuda_options();
  cpu.device = "cpu";
  const auto here = tiny_engine(cuda_options()), there = tiny_engine(cpu);
  for (const std::string rest :
       {"tau=0", "tau=0.2", "tau=0.8", "tau=0.3,mixed=split", "tau=0.3,mode=paper",
        "tau=0.3,chain=anchored", "tau=0.3+quest:budget=128", "tau=0.8+quest:budget=128",
        "tau=0.3,mixed=split+quest:budget=128", "tau=0.2,ring=q8_0",
        "tau=0.3,ring=q8_0,mixed=split", "tau=0.3,ring=q8_0,chain=anchored",
        "tau=0.3,ring=q8_0+quest:budget=128", "tau=0.2,max_error=0.3",
        "tau=0,max_error=0.5,chain=free"}) {
    const bool bounded = rest.find("max_error") != std::string::npos;
    const std::string policy = "mac:" + (bounded ? kBounded : kShort) + "," + rest;
    SCOPED_TRACE(policy);
    Request request = request_of(tiny_prompt(300), 100);
    request.forced = tiny_prompt(100, 9);
    const Logits want = logits_of(*there, request, policy);
    const Answer expected = answer_of(*there, request, policy);
    const Answer answer = answer_of(*here, request, policy);
    for (const std::string name : {"mac_head_hits", "mac_group_hits", "mac_skipped"}) {
      std::printf("  %s %s: %.3f, on the CPU %.3f\n", rest.c_str(), name.c_str(),
                  figure(answer, name), figure(expected, name));
      EXPECT_NEAR(figure(answer, name), figure(expected, name), 0.05) << name;
    }
    for (const std::string name : {"mac_lag", "mac_depth", "mac_distance", "mac_prefix_share"}) {
      EXPECT_NEAR(figure(answer, name), figure(expected, name), 0.1 * figure(expected, name) + 0.01)
          << name;
    }
    const Logits full = logits_of(*there, request);
    const double same = median_distance(logits_of(*here, request, policy), want);
    std::printf("  %s: %.4f from the CPU's, which are %.4f from full attention's\n", rest.c_str(),
                same, median_distance(full, want));
    EXPECT_LT(same, 1.5 * bf16_tolerance(2));
  }
}

// What does not match is read as without mac.
TEST_F(MacEngine, ReadsThroughThePolicyBehindIt) {
  const auto engine = tiny_engine(cuda_options());
  std::vector<int32_t> tokens(250);
  std::iota(tokens.begin(), tokens.end(), 0);
  std::shuffle(tokens.begin(), tokens.end(), std::mt19937(3));
  Request request = request_of({tokens.begin(), tokens.begin() + 190}, 60);
  request.forced.assign(tokens.begin() + 190, tokens.end());
  const Logits full = logits_of(*engine, request);
  // The window is all of the band, which mac reads in any case.
  const std::string codes = "csattention:activate=1,budget=128,window=48";
  for (const std::string& inner : {codes, codes + ",period=3,cosine=-1"}) {
    for (const std::string before : {"", "dense:first=1+"}) {
      SCOPED_TRACE(before + inner);
      const Logits want = logits_of(*engine, request, before + inner);
      const std::string policy = before + "mac:" + kShort + ",tau=0.9999+" + inner;
      const Answer answer = answer_of(*engine, request, policy);
      EXPECT_EQ(figure(answer, "mac_head_hits"), 0.0);
      const double apart = median_distance(logits_of(*engine, request, policy), want);
      std::printf("  %.4f apart, %.4f from full attention\n", apart, median_distance(full, want));
      EXPECT_LT(apart, bf16_tolerance(2));
      EXPECT_GT(median_distance(full, want), 2.0 * apart);
    }
  }
}

// Codebooks of two devices differ, so answers do; what is reused does not.
TEST_F(MacEngine, ReusesOverCodedKeysWhatItReusesOnTheCpu) {
  EngineOptions cpu = cuda_options();
  cpu.device = "cpu";
  const auto here = tiny_engine(cuda_options()), there = tiny_engine(cpu);
  for (const std::string inner : {"", ",period=3,cosine=-1"}) {
    const std::string policy = "mac:" + kShort + ",tau=0.3+" + kCodes + inner;
    SCOPED_TRACE(policy);
    Request request = request_of(tiny_prompt(300), 100);
    request.forced = tiny_prompt(100, 9);
    const Answer expected = answer_of(*there, request, policy);
    const Answer answer = answer_of(*here, request, policy);
    for (const std::string name : {"mac_head_hits", "mac_group_hits", "mac_skipped"}) {
      std::printf("  %s: %.3f, on the CPU %.3f\n", name.c_str(), figure(answer, name),
                  figure(expected, name));
      EXPECT_GT(figure(answer, name), 0.0) << name;
      EXPECT_NEAR(figure(answer, name), figure(expected, name), 0.05) << name;
    }
    EXPECT_GT(figure(answer, "index_mb"), 0.0);
    EXPECT_EQ(figure(answer, "fallback"), 0.0);
    const Logits full = logits_of(*there, request);
    EXPECT_LT(median_distance(logits_of(*here, request, policy), full),
              1.5 * median_distance(logits_of(*there, request, policy), full));
  }
}

TEST_F(MacEngine, SequencesOfABatchDoNotDisturbEachOther) {
  EngineOptions options = cuda_options();
  options.batch = 9;
  const auto engine = tiny_engine(options), alone = tiny_engine(options);
  std::vector<std::string> policies;
  for (const std::string tau : {"0", "0.3", "0.9999"}) {
    policies.push_back("mac:" + kShort + ",tau=" + tau);
  }
  policies.push_back("mac:" + kShort + ",tau=0.3,ring=q8_0");
  policies.push_back("full");
  policies.push_back("dense:first=1+mac:" + kShort + ",tau=0.3");
  policies.push_back("mac:" + kShort + ",tau=0.3");
  for (const std::string before : {"", "dense:first=1+"}) {
    policies.push_back(before + "mac:" + kShort + ",tau=0.3+" + kCodes);
  }
  std::vector<Request> requests;
  for (uint32_t i = 0; i < policies.size(); ++i) {
    Request request = request_of(tiny_prompt(100 + 40 * i, i), 40);
    request.forced = tiny_prompt(40, 20 + i);
    requests.push_back(request);
  }
  const std::vector<Logits> together = logits_together(*engine, requests, policies);
  for (uint32_t i = 0; i < policies.size(); ++i) {
    SCOPED_TRACE(policies[i]);
    const Logits want = logits_of(*alone, requests[i], policies[i]);
    ASSERT_EQ(together[i].size(), want.size());
    EXPECT_LT(median_distance(together[i], want), bf16_tolerance(2));
  }
}

TEST_F(MacEngine, ForksGoTheirOwnWays) {
  EngineOptions options = cuda_options();
  options.prefix_cache = false;  // equal passes, so equal bits
  const auto engine = tiny_engine(options);
  for (const std::string& rest : {std::string(), std::string(",ring=q8_0"), "+" + kCodes}) {
    SCOPED_TRACE(rest);
    const std::string policy = "mac:" + kShort + ",tau=0.3" + rest;
    const auto session_of = [&] {
      auto session = *engine->open(policy);
      logits_in(*session, request_of(tiny_prompt(200), 20));
      return session;
    };
    const auto go_on = [&](Session& session, uint32_t seed) {
      Request request = request_of(then(session.tokens(), tiny_prompt(5, seed)), 60);
      request.forced = tiny_prompt(60, 9);
      return logits_in(session, request);
    };
    auto parent = session_of();
    auto child = parent->fork();
    const Logits first = go_on(*parent, 2), second = go_on(*child, 3);
    EXPECT_EQ(first, go_on(*session_of(), 2));
    EXPECT_EQ(second, go_on(*session_of(), 3));
  }
}

// What was generated and taken back leaves no entry behind.
TEST_F(MacEngine, CutSequencesForget) {
  EngineOptions options = cuda_options();
  options.prefix_cache = false;
  const auto engine = tiny_engine(options);
  const std::string policy = "mac:" + kShort + ",tau=0.3";
  const auto prompt = tiny_prompt(200);
  const auto run = [&](bool detour) {
    auto session = *engine->open(policy);
    Request request = request_of(prompt, 1);
    request.forced = tiny_prompt(1, 4);
    logits_in(*session, request);
    if (detour) {
      Request away = request_of(then(prompt, tiny_prompt(3, 5)), 40);
      away.forced = tiny_prompt(40, 6);
      logits_in(*session, away);
    }
    Request last = request_of(then(prompt, tiny_prompt(3, 7)), 60);
    last.forced = tiny_prompt(60, 8);
    return logits_in(*session, last);
  };
  const Logits direct = run(false), after = run(true);
  ASSERT_EQ(after.size(), direct.size());
  EXPECT_LT(median_distance(after, direct), bf16_tolerance(2));
}

// Files hold tokens, KV and the ring: equal bytes are equal reuse from then on.
TEST_F(MacEngine, RestoredSessionsGoOnWithTheirRing) {
  EngineOptions options = cuda_options();
  options.prefix_cache = false;  // equal passes, so equal bits
  const std::string path = scratch_folder() + "/ring.kv", copy = scratch_folder() + "/again.kv";
  for (const std::string rest : {"tau=0.3", "tau=0.2,ring=q8_0", "tau=0.3+quest:budget=128"}) {
    const std::string policy = "mac:" + kShort + "," + rest;
    SCOPED_TRACE(policy);
    const auto engine = tiny_engine(options), other = tiny_engine(options);
    auto original = *engine->open(policy), restored = *other->open(policy);
    logits_in(*original, request_of(tiny_prompt(300), 40));
    ASSERT_TRUE(original->save(path, "a note"));
    ASSERT_TRUE(restored->restore(path));
    ASSERT_TRUE(restored->save(copy, "a note"));  // before a device has seen it
    EXPECT_EQ(contents(copy), contents(path));
    auto fork = restored->fork();
    Request more = request_of(then(original->tokens(), tiny_prompt(5, 3)), 60);
    more.forced = tiny_prompt(60, 4);
    Answer first, second;
    const Logits want = logits_in(*original, more, &first);
    EXPECT_EQ(logits_in(*restored, more, &second), want);
    EXPECT_EQ(logits_in(*fork, more), want);
    EXPECT_EQ(figure(second, "mac_head_hits"), figure(first, "mac_head_hits"));
    EXPECT_GT(figure(second, "mac_head_hits"), 0.0);
    // None of the 64 rows that fill a ring was needed again.
    EXPECT_GE(first.counters.reused_tokens, 338u);
    EXPECT_EQ(second.counters.reused_tokens, first.counters.reused_tokens);
    // Cut back into the prompt, rows that filled the ring are missing: they are computed again.
    ASSERT_TRUE(original->truncate(301));
    ASSERT_TRUE(restored->truncate(301));
    Request after = request_of(then(original->tokens(), tiny_prompt(30, 5)), 40);
    Answer shorter;
    EXPECT_EQ(logits_in(*restored, after), logits_in(*original, after, &shorter));
    EXPECT_LT(shorter.counters.reused_tokens, 301u - 16);
  }
}

// More conversations than rings: who lost one begins anew.
TEST_F(MacEngine, RingsAreTakenFromIdleSessions) {
  EngineOptions options = cuda_options();
  options.batch = 2;
  const auto engine = tiny_engine(options);
  const std::string policy = "mac:" + kShort + ",tau=0.3";
  std::vector<std::unique_ptr<Session>> sessions;
  for (uint32_t i = 0; i < 5; ++i) sessions.push_back(*engine->open(policy));
  for (uint32_t turn = 0; turn < 3; ++turn) {
    for (uint32_t i = 0; i < sessions.size(); ++i) {
      const auto prompt =
          turn == 0 ? tiny_prompt(150, i) : then(sessions[i]->tokens(), tiny_prompt(10, turn));
      Request request = request_of(prompt, 30);
      request.forced = tiny_prompt(30, turn + i);
      const Logits rows = logits_in(*sessions[i], request);
      ASSERT_EQ(rows.size(), 30u);
      for (const auto& row : rows) ASSERT_TRUE(std::isfinite(row[0]));
    }
  }
}

TEST_F(MacEngine, RingsGetMemoryWhenSequencesNeedThem) {
  EngineOptions options = cuda_options();
  options.batch = 4;
  const auto engine = tiny_engine(options);
  // Rings of several MiB, which results enter from position 63 on.
  const std::string policy =
      "mac:window=4096,band=32,sink=16,min_context=64,guard=false,tau=0,max_error=0";
  const Answer none = answer_of(*engine, request_of(tiny_prompt(20), 10), policy);
  EXPECT_EQ(none.memory.index_bytes, 0u);
  EXPECT_EQ(figure(none, "mac_rings_mb"), 0.0);
  EXPECT_EQ(figure(none, "mac_ringless"), 0.0);
  const auto session_of = [&](uint32_t seed, Answer& answer) {
    auto session = *engine->open(policy);
    logits_in(*session, request_of(tiny_prompt(100, seed), 30), &answer);
    return session;
  };
  Answer one, two, again;
  {
    const auto first = session_of(1, one), second = session_of(2, two);
    EXPECT_GT(one.memory.index_bytes, 0u);
    EXPECT_EQ(two.memory.index_bytes, one.memory.index_bytes);
    EXPECT_GE(figure(one, "mac_rings_mb") * 1e6, static_cast<double>(one.memory.index_bytes));
    EXPECT_GT(figure(two, "mac_rings_mb"), 1.5 * figure(one, "mac_rings_mb"));
    EXPECT_GT(figure(two, "mac_head_hits"), 0.0);
  }
  // Those that have ended gave theirs back.
  const auto third = session_of(3, again);
  EXPECT_EQ(figure(again, "mac_rings_mb"), figure(two, "mac_rings_mb"));
}

TEST_F(MacEngine, WithoutARingASequenceReadsAsWithoutMac) {
  EngineOptions options = cuda_options();
  options.batch = 2;
  options.prefix_cache = false;
  const auto engine = tiny_engine(options);
  const std::string free = "mac:" + kShort + ",tau=0.2";
  Request request = request_of(tiny_prompt(300), 60);
  request.forced = tiny_prompt(60, 9);
  const uint64_t ring = answer_of(*engine, request, free).memory.index_bytes;
  const std::string policy = free + ",ring_memory=" + std::to_string(ring * 3 / 2);
  const Logits full = logits_of(*engine, request), mac = logits_of(*engine, request, policy);
  EXPECT_EQ(mac, logits_of(*engine, request, free));

  std::vector<Logits> rows(2);
  std::vector<Answer> answers(2);
  std::vector<std::unique_ptr<Session>> sessions;
  for (size_t i = 0; i < rows.size(); ++i) {
    Request own = request;
    own.on_logits = [&rows, i](std::span<const float> logits) {
      rows[i].emplace_back(logits.begin(), logits.end());
    };
    sessions.push_back(*engine->open(policy));
    ASSERT_TRUE(engine->submit(*sessions[i], own, [&answers, i](Result<Answer> answer) {
      ASSERT_TRUE(answer) << answer.error().message;
      answers[i] = std::move(*answer);
    }));
  }
  while (engine->step()) continue;
  const size_t without = figure(answers[0], "mac_ringless") > 0 ? 0 : 1;
  EXPECT_GT(figure(answers[without], "mac_ringless"), 50.0);
  EXPECT_LT(median_distance(rows[without], full), bf16_tolerance(2));
  EXPECT_EQ(figure(answers[1 - without], "mac_ringless"), 0.0);
  EXPECT_GT(figure(answers[1 - without], "mac_head_hits"), 0.0);
  EXPECT_LT(median_distance(rows[1 - without], mac), bf16_tolerance(2));
}

TEST_F(MacEngine, SaysThatARingDoesNotFit) {
  const auto engine = tiny_engine(cuda_options());
  const auto session = engine->open("mac:ring_memory=100K");
  ASSERT_FALSE(session);
  EXPECT_EQ(session.error().code, ErrorCode::kOutOfMemory);
  EXPECT_THAT(session.error().message, testing::HasSubstr("ring_memory is 0 MiB; raise it"));
}

TEST_F(MacEngine, SaysWhatItCannotDo) {
  const auto engine = tiny_engine(cuda_options());
  for (const auto& [policy, says] : std::vector<std::pair<std::string, std::string>>{
           {"mac+attention_predictor", "over full, quest or csattention"},
           {"mac:prefill=reuse", "without lse_fix and prefill=reuse"},
           {"mac+csattention:mode=paper,index=64", "--device cuda csattention has mode=codes"}}) {
    SCOPED_TRACE(policy);
    const auto session = engine->open(policy);
    ASSERT_FALSE(session);
    EXPECT_EQ(session.error().code, ErrorCode::kUnsupported);
    EXPECT_THAT(session.error().message, testing::HasSubstr(says));
  }
}

}  // namespace
}  // namespace reprise::test
