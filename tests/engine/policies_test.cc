// Policies through the whole engine: shared prefixes, turns of a conversation, batches, memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "engine/answers.h"
#include "engine/tiny_model.h"

namespace reprise::test {
namespace {

const char* const kSpecs[] = {
    "streaming:sink=4,window=32",
    "h2o:budget=48,observe=16",
    "snapkv:budget=48,window=16",
    "quest:budget=48",
    "sparq:budget=48,local=16",
    "pqcache:budget=64,sink=8",
    "csattention:budget=64,window=16,observe=16",
    "csattention:budget=64,mode=paper,centroids=8,observe=16",
    "magicpig:tables=20,bits=4",
    "dense:first=1+quest:budget=48",
    "probe+quest:budget=48",
    "random:budget=48",
    "infllm:local=32,init=16,block=16,chunk=48",
    "reattention:stride=1,sink=8,local=32,span=8,spans=6,activate=48",
    "reattention:sink=8,local=32,span=8,spans=6,activate=48,lead=1.1,gate=0.3",
    "auto:from=120+quest:budget=48",
    "mac:min_context=0,window=16,band=16,sink=4,align=4,tau=0.1,max_error=0,guard=false",
    "mac:min_context=0,window=16,band=16,mode=paper,tau=0+quest:budget=48",
    ("mac:min_context=0,window=16,band=16,sink=4,align=4,tau=0.1,max_error=0,guard=false"
     "+csattention:budget=64,observe=16"),
    "attention_predictor:budget=64,history=16",
    "attention_predictor:budget=64,history=16,calibrate=dense,period=3,pool=max"};

TEST(EnginePolicies, ASharedPrefixChangesNothing) {
  EngineOptions alone = tiny_options();
  alone.prefix_cache = false;
  const auto fresh = tiny_engine(alone), sharing = tiny_engine();
  const Request request = request_of(tiny_prompt(150), 24);
  answer_of(*sharing, request, "full");
  for (const std::string spec : kSpecs) {
    const Answer want = answer_of(*fresh, request, spec), got = answer_of(*sharing, request, spec);
    EXPECT_EQ(got.tokens, want.tokens) << spec;
    const bool dense = !spec.starts_with("streaming") && !spec.starts_with("infllm") &&
                       !spec.starts_with("reattention");
    EXPECT_EQ(got.counters.reused_tokens > 0, dense) << spec;
    EXPECT_EQ(got.counters.keys_read, want.counters.keys_read) << spec;
  }
}

TEST(EnginePolicies, AnswersDoNotDependOnTheBatch) {
  const auto engine = tiny_engine();
  std::map<std::string, std::vector<int32_t>> together;
  std::vector<std::unique_ptr<Session>> sessions;
  for (const std::string spec : kSpecs) {
    sessions.push_back(*engine->open(spec));
    ASSERT_TRUE(engine->submit(*sessions.back(), request_of(tiny_prompt(130), 20),
                               [&, spec](Result<Answer> answer) {
                                 ASSERT_TRUE(answer) << spec << answer.error().message;
                                 together[spec] = answer->tokens;
                               }));
  }
  while (engine->step()) continue;
  const auto other = tiny_engine();
  for (const auto& [spec, tokens] : together) {
    EXPECT_EQ(answer_of(*other, request_of(tiny_prompt(130), 20), spec).tokens, tokens) << spec;
  }
}

TEST(EnginePolicies, AnIndexServesEveryPromptThatBeginsAlike) {
  EngineOptions alone = tiny_options();
  alone.prefix_cache = false;
  const auto fresh = tiny_engine(alone), sharing = tiny_engine();
  const std::string spec = "csattention:budget=128";
  const Request first = request_of(tiny_prompt(1500), 4);
  Request other = request_of(tiny_prompt(1450), 24);
  other.prompt.push_back(65);
  answer_of(*sharing, first, spec);
  const Answer shared = answer_of(*sharing, other, spec);
  EXPECT_EQ(shared.counters.reused_tokens, 1440u);  // not only those before the rows it is made of
  EXPECT_EQ(shared.tokens, answer_of(*fresh, other, spec).tokens);
  EXPECT_EQ(answer_of(*sharing, first, spec).tokens, answer_of(*fresh, first, spec).tokens);
  other.prompt[1100] ^= 1;  // another document
  EXPECT_EQ(answer_of(*sharing, other, spec).tokens, answer_of(*fresh, other, spec).tokens);
  other.prompt[1100] ^= 1;
  EXPECT_LE(answer_of(*sharing, other, "csattention:budget=192").counters.reused_tokens, 1024u);
}

TEST(EnginePolicies, CellsOfPromptRowsStayWholeWhateverTheChunk) {
  const Request request = request_of(tiny_prompt(700), 24);
  for (const std::string more : {",stride=1", ",lead=1.1,gate=0.3"}) {
    const auto spec = "reattention:sink=8,local=64,span=8,spans=6,activate=80,chunk=48" + more;
    std::vector<std::vector<int32_t>> answers;
    for (const uint32_t chunk : {16, 48, 512}) {
      EngineOptions options = tiny_options();
      options.chunk = chunk;
      const Answer answer = answer_of(*tiny_engine(options), request, spec);
      answers.push_back(answer.tokens);
      const auto& [figure, share] = answer.counters.policy.back();
      if (more == ",stride=1") continue;
      EXPECT_EQ(figure, "reattention_open");
      EXPECT_GT(share, 0.2);  // else the gate would not matter
      EXPECT_LT(share, 0.8);
    }
    EXPECT_EQ(answers[1], answers[0]) << spec;
    EXPECT_EQ(answers[2], answers[0]) << spec;
  }
}

TEST(EnginePolicies, ReAttentionGoesOnBeyondTheContextAndFromAFile) {
  EngineOptions options = tiny_options();
  options.ctx = 100;
  const auto engine = tiny_engine(options);
  for (const std::string more : {"stride=1,interval=3", "lead=1.1,gate=0.3"}) {
    const std::string spec = "reattention:sink=8,local=32,span=8,spans=6,activate=48," + more;
    auto session = *engine->open(spec), restored = *engine->open(spec);
    auto prompt = tiny_prompt(250);
    const Answer first = *session->generate(request_of(prompt, 40));
    EXPECT_EQ(first.tokens.size(), 40u);
    const std::string path = scratch_folder() + "/reattention";
    ASSERT_TRUE(session->save(path, ""));
    ASSERT_TRUE(restored->restore(path));
    const auto forked = session->fork();
    prompt.insert(prompt.end(), first.tokens.begin(), first.tokens.end());
    prompt.push_back(65);
    const Answer live = *session->generate(request_of(prompt, 40));
    for (Session* other : {restored.get(), forked.get()}) {
      const Answer again = *other->generate(request_of(prompt, 40));
      EXPECT_GE(again.counters.reused_tokens, 280u) << spec;
      EXPECT_EQ(again.tokens, live.tokens) << spec;
      EXPECT_EQ(again.counters.keys_read, live.counters.keys_read) << spec;
    }
  }
}

// A ring of MAC is filled by queries, which KV does not hold.
TEST(EnginePolicies, ARingGoesOnFromAFileWithoutReadingThePromptAnew) {
  const auto engine = tiny_engine();
  for (const std::string spec :
       {"mac:min_context=0,window=48,band=16,sink=4,align=4,tau=0.1,max_error=0,guard=false",
        "mac:min_context=0,window=48,band=16,mode=paper,tau=0+quest"}) {
    auto session = *engine->open(spec), restored = *engine->open(spec);
    auto prompt = tiny_prompt(150);
    const Answer first = *session->generate(request_of(prompt, 40));
    const std::string path = scratch_folder() + "/rings";
    ASSERT_TRUE(session->save(path, ""));
    ASSERT_TRUE(restored->restore(path));
    prompt.insert(prompt.end(), first.tokens.begin(), first.tokens.end());
    prompt.push_back(65);
    const Answer live = *session->generate(request_of(prompt, 40));
    const Answer again = *restored->generate(request_of(prompt, 40));
    EXPECT_EQ(again.tokens, live.tokens) << spec;
    EXPECT_EQ(again.counters.keys_read, live.counters.keys_read) << spec;
    EXPECT_LT(again.counters.keys_read, again.counters.keys_visible) << spec;
    EXPECT_GE(again.counters.reused_tokens, 188u) << spec;  // none of the 48 rows was needed again
    auto other =
        *engine->open("mac:min_context=0,window=47,band=16,sink=4,align=4,tau=0.1,max_error=0");
    EXPECT_EQ(other->restore(path).error().code, ErrorCode::kSessionMismatch);
  }
}

// A shared prefix has no ring: the rows that fill it are computed.
TEST(EnginePolicies, ASharedPrefixFillsARing) {
  const auto engine = tiny_engine();
  const std::string spec =
      "mac:min_context=0,window=48,band=16,sink=4,align=4,tau=0.1,max_error=0,guard=false";
  const Request request = request_of(tiny_prompt(200), 24);
  const Answer alone = answer_of(*engine, request, spec),
               shared = answer_of(*engine, request, spec);
  EXPECT_EQ(alone.counters.reused_tokens, 0u);
  EXPECT_EQ(shared.counters.reused_tokens, 144u);  // whole pages before the last 48 tokens
  EXPECT_EQ(shared.tokens, alone.tokens);
  EXPECT_EQ(shared.counters.keys_read, alone.counters.keys_read);
  EXPECT_LT(shared.counters.keys_read, shared.counters.keys_visible);
}

TEST(EnginePolicies, AConversationGoesOnUnderEveryPolicy) {
  const auto engine = tiny_engine();
  for (const std::string spec : kSpecs) {
    auto session = *engine->open(spec);
    std::vector<int32_t> prompt = tiny_prompt(120);
    for (uint32_t turn = 0; turn < 3; ++turn) {
      const auto answer = session->generate(request_of(prompt, 12));
      ASSERT_TRUE(answer) << spec << " turn " << turn << ": " << answer.error().message;
      EXPECT_EQ(answer->tokens.size(), 12u) << spec;
      const uint64_t reused = answer->counters.reused_tokens;
      EXPECT_TRUE(turn == 0 || reused > 100) << spec << " turn " << turn << ": " << reused;
      prompt.insert(prompt.end(), answer->tokens.begin(), answer->tokens.end());
      const auto more = tiny_prompt(20, turn + 5);
      prompt.insert(prompt.end(), more.begin(), more.end());
    }
  }
}

// The page that the next token is written to is needed even where no key of it is read.
TEST(EnginePolicies, StreamingGoesOnFromAnyTokenWhateverItsWindow) {
  const auto engine = tiny_engine();
  for (const std::string spec : {"streaming:sink=4,window=1", "streaming:sink=0,window=17"}) {
    for (size_t kept = 1; kept < 90; kept += 3) {
      auto session = *engine->open(spec);
      answer_of(*session, request_of(tiny_prompt(90), 12));
      std::vector<int32_t> prompt(session->tokens().begin(), session->tokens().end());
      prompt.resize(kept);
      const auto more = tiny_prompt(20, 7);
      prompt.insert(prompt.end(), more.begin(), more.end());
      const Answer answer = answer_of(*session, request_of(prompt, 4));
      EXPECT_EQ(answer.tokens, answer_of(*engine, request_of(prompt, 4), spec).tokens) << kept;
    }
  }
}

TEST(EnginePolicies, ASessionFileGoesOnUnderEveryPolicyThatIsSaved) {
  const auto engine = tiny_engine();
  size_t saved = 0;
  for (const std::string spec : kSpecs) {
    auto session = *engine->open(spec), restored = *engine->open(spec);
    std::vector<int32_t> prompt = tiny_prompt(120);
    const Answer first = answer_of(*session, request_of(prompt, 20));
    const std::string path = scratch_folder() + "/any-policy";
    if (const Status status = session->save(path, ""); !status) {
      EXPECT_EQ(status.error().code, ErrorCode::kUnsupported) << spec;
      continue;
    }
    ++saved;
    ASSERT_TRUE(restored->restore(path)) << spec;
    prompt.insert(prompt.end(), first.tokens.begin(), first.tokens.end());
    prompt.push_back(65);
    const Answer live = answer_of(*session, request_of(prompt, 30)),
                 again = answer_of(*restored, request_of(prompt, 30));
    EXPECT_EQ(again.tokens, live.tokens) << spec;
    EXPECT_EQ(again.counters.keys_read, live.counters.keys_read) << spec;
    EXPECT_GT(again.counters.reused_tokens, 100u) << spec;
  }
  EXPECT_EQ(saved, std::size(kSpecs) - 3);  // not h2o, snapkv and infllm
}

TEST(EnginePolicies, EvictingPoliciesGetMemoryFromThePrefixCache) {
  EngineOptions options = tiny_options();
  options.kv_memory = 320 * tiny_engine()->info().kv_bytes_per_token;
  for (const std::string spec : {"snapkv:budget=64,window=16", "h2o:budget=64,observe=16"}) {
    const auto engine = tiny_engine(options);
    // Prompts that nobody holds any more fill the pool.
    answer_of(*engine, request_of(tiny_prompt(100, 8), 1), "full");
    answer_of(*engine, request_of(tiny_prompt(100, 9), 1), "full");
    const Answer answer = answer_of(*engine, request_of(tiny_prompt(110, 10), 30), spec);
    ASSERT_EQ(answer.counters.policy.size(), 1u) << spec;
    EXPECT_EQ(answer.counters.policy[0].first, "fallback");
    EXPECT_EQ(answer.counters.policy[0].second, 0.0) << spec;
    EXPECT_LT(answer.counters.keys_read, answer.counters.keys_visible) << spec;
  }
}

TEST(EnginePolicies, ForcedTokensAreTheAnswerAndLogitsAreSeen) {
  const auto engine = tiny_engine();
  const Request free = request_of(tiny_prompt(60), 8);
  std::vector<std::vector<float>> seen;
  Request watched = free;
  watched.on_logits = [&](std::span<const float> logits) {
    seen.emplace_back(logits.begin(), logits.end());
  };
  const Answer answer = answer_of(*engine, watched, "full");
  ASSERT_EQ(seen.size(), 8u);
  for (size_t i = 0; i < seen.size(); ++i) {
    const auto best = std::max_element(seen[i].begin(), seen[i].end()) - seen[i].begin();
    EXPECT_EQ(best, answer.tokens[i]);
  }
  // The same tokens by force see the same logits; others do not.
  const auto first = seen;
  seen.clear();
  watched.forced = {answer.tokens.begin(), answer.tokens.begin() + 5};
  EXPECT_EQ(answer_of(*engine, watched, "full").tokens, answer.tokens);
  EXPECT_EQ(seen, first);
  seen.clear();
  watched.forced = {(answer.tokens[0] + 1) % 256};
  EXPECT_EQ(answer_of(*engine, watched, "full").tokens[0], watched.forced[0]);
  EXPECT_EQ(seen[0], first[0]);
  EXPECT_NE(seen[1], first[1]);
  watched.forced = {-1};
  EXPECT_EQ((*engine->open())->generate(watched).error().code, ErrorCode::kInvalidArgument);
}

std::vector<std::vector<float>> logits_of(Engine& engine, Request request, std::string_view spec) {
  std::vector<std::vector<float>> rows;
  request.on_logits = [&](std::span<const float> logits) {
    rows.emplace_back(logits.begin(), logits.end());
  };
  answer_of(engine, request, spec);
  return rows;
}

TEST(EnginePolicies, HowAPromptIsCutChangesNoLogit) {
  for (const std::string spec :
       {"skim:sink=64,window=300", "infllm:local=64,init=16,block=16,chunk=96",
        "mac:min_context=0,window=64,band=16,sink=4,align=4,tau=0.2,max_error=0"}) {
    const Request request = request_of(tiny_prompt(1600), 60);
    std::vector<std::vector<float>> want;
    for (const uint32_t chunk : {64, 70, 1599}) {
      EngineOptions options = tiny_options();
      options.chunk = chunk;
      const auto got = logits_of(*tiny_engine(options), request, spec);
      if (want.empty()) want = got;
      EXPECT_TRUE(got == want) << spec << " " << chunk;
    }
  }
}

// The default model, where it is installed.
TEST(EnginePolicies, RoomForEveryKeyGivesTheLogitsOfFullAttention) {
  const char* path = std::getenv("REPRISE_MODEL");
  EngineOptions options;
  options.model = path != nullptr ? path : "smollm2";
  options.kv_memory = 512 << 20;
  auto loaded = Engine::load(options);
  if (!loaded) GTEST_SKIP() << loaded.error().message << "; set REPRISE_MODEL";
  Engine& engine = **loaded;
  std::string text = "A library keeps what it has read, so that nobody reads it twice.";
  for (int i = 0; i < 5; ++i) text += " " + text.substr(0, 64) + std::to_string(i);
  Request request = request_of(engine.tokenize(text), 12);
  const auto full = logits_of(engine, request, "full");
  request.forced.clear();
  for (const auto& row : full) {  // the same trajectory, should two tokens be nearly as likely
    const auto best = std::max_element(row.begin(), row.end()) - row.begin();
    request.forced.push_back(static_cast<int32_t>(best));
  }
  const auto free = logits_of(engine, request, "full:keys=position-free");
  for (const std::string spec :
       {"streaming:window=4096", "h2o:budget=4096", "snapkv:budget=4096", "quest:budget=4096",
        "sparq:budget=4096", "pqcache:budget=4096", "magicpig:local=4096", "random:budget=4096",
        "auto+quest:budget=4096", "dense+h2o:budget=4096", "probe+snapkv:budget=4096",
        "infllm:local=4096"}) {
    EXPECT_TRUE(logits_of(engine, request, spec) == (spec.starts_with("infllm") ? free : full))
        << spec;
  }
}

TEST(EnginePolicies, WhatCannotBeRestoredIsNotSaved) {
  const auto engine = tiny_engine();
  for (const std::string spec : {"snapkv:budget=32,window=8", "infllm"}) {
    auto session = *engine->open(spec);
    ASSERT_TRUE(session->generate(request_of(tiny_prompt(80), 4)));
    const auto status = session->save(::testing::TempDir() + "evicted.kv", "");
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kUnsupported);
    EXPECT_THAT(status.error().message, ::testing::HasSubstr(spec));
  }
}

}  // namespace
}  // namespace reprise::test
