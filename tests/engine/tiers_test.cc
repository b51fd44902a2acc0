// KV that memory has no room for lies on disk until it is needed again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "engine/answers.h"
#include "engine/library_testing.h"
#include "engine/tiny_model.h"
#include "kv/hidden_file.h"
#include "kv/write_faults.h"

namespace reprise::test {
namespace {

EngineOptions small_options() {
  EngineOptions options = tiny_options();
  options.kv_memory = 400 * 512;  // of 512 bytes a token
  options.kv_disk = scratch_folder();
  options.kv_disk_size = 8 << 20;
  return options;
}

std::vector<int32_t> extended(std::vector<int32_t> prompt, const std::vector<int32_t>& more) {
  prompt.insert(prompt.end(), more.begin(), more.end());
  return prompt;
}

TEST(Tiers, PrefixesComeBackFromDisk) {
  const auto ample = tiny_engine(), small = tiny_engine(small_options());
  for (int round = 0; round < 3; ++round) {
    for (uint32_t seed = 0; seed < 4; ++seed) {
      const Request request = request_of(tiny_prompt(300, seed));
      const Answer want = answer_of(**ample->open(), request);
      const Answer got = answer_of(**small->open(), request);
      EXPECT_EQ(got.tokens, want.tokens) << seed;
      EXPECT_EQ(got.counters.reused_tokens, round == 0 ? 0 : 288) << seed;
      EXPECT_LE(got.memory.kv.memory.bytes, 400u * 512);
      EXPECT_EQ(got.memory.kv.lost_pages, 0u);
    }
  }
  const Answer last = answer_of(**small->open(), request_of(tiny_prompt(20, 9)));
  EXPECT_GT(last.memory.kv.disk.moved_in_bytes, 4u * 200 * 512);
  EXPECT_GT(last.memory.kv.disk.moved_out_bytes, 2u * 4 * 200 * 512);
}

TEST(Tiers, IdleSessionsGoOnWhereTheyWere) {
  for (const std::string policy : {"full", "quest:budget=64", "streaming:window=64"}) {
    EngineOptions options = small_options(), with_room = tiny_options();
    options.prefix_cache = with_room.prefix_cache = false;
    const auto ample = tiny_engine(with_room), small = tiny_engine(options);
    std::vector<std::unique_ptr<Session>> here, there;
    std::vector<std::vector<int32_t>> prompts;
    for (uint32_t i = 0; i < 4; ++i) {
      here.push_back(*small->open(policy));
      there.push_back(*ample->open(policy));
      prompts.push_back(tiny_prompt(200, i));
    }
    for (int turn = 0; turn < 3; ++turn) {
      for (uint32_t i = 0; i < 4; ++i) {
        const Answer got = answer_of(*here[i], request_of(prompts[i]));
        const Answer want = answer_of(*there[i], request_of(prompts[i]));
        EXPECT_EQ(got.tokens, want.tokens) << policy << ", session " << i << ", turn " << turn;
        EXPECT_EQ(got.counters.reused_tokens, want.counters.reused_tokens);
        prompts[i] = extended(extended(prompts[i], got.tokens), tiny_prompt(9, 50 + i));
      }
    }
  }
}

TEST(Tiers, ABatchThatFitsIsNotDisturbed) {
  const auto ample = tiny_engine(), small = tiny_engine(small_options());
  for (uint32_t seed = 10; seed < 14; ++seed) {  // fills the disk
    answer_of(**small->open(), request_of(tiny_prompt(300, seed)));
  }
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<std::vector<int32_t>> answers(3);
  for (uint32_t i = 0; i < 3; ++i) {
    sessions.push_back(*small->open());
    ASSERT_TRUE(small->submit(*sessions[i], request_of(tiny_prompt(90, i), 20 + 5 * i),
                              [&answers, i](Result<Answer> answer) {
                                ASSERT_TRUE(answer) << answer.error().message;
                                answers[i] = answer->tokens;
                              }));
  }
  while (small->step()) continue;
  for (uint32_t i = 0; i < 3; ++i) {
    const Request request = request_of(tiny_prompt(90, i), 20 + 5 * i);
    EXPECT_EQ(answers[i], answer_of(**ample->open(), request).tokens) << i;
  }
}

TEST(Tiers, WhatTheDiskLostIsComputedAgain) {
  const auto ample = tiny_engine(), small = tiny_engine(small_options());
  auto session = *small->open(), other = *ample->open();
  Request request = request_of(tiny_prompt(300, 1));
  EXPECT_EQ(answer_of(*session, request).tokens, answer_of(*other, request).tokens);
  answer_of(**small->open(), request_of(tiny_prompt(300, 2)));
  const int file = hidden_file(scratch_folder());
  ASSERT_GE(file, 0);
  char byte = 0;
  for (off_t at = 3000; ::pread(file, &byte, 1, at) == 1; at += 5000) {
    byte = static_cast<char>(byte ^ 8);
    ASSERT_EQ(::pwrite(file, &byte, 1, at), 1);
  }
  request.prompt = extended(request.prompt, tiny_prompt(10, 3));
  const Answer got = answer_of(*session, request);
  EXPECT_EQ(got.tokens, answer_of(*other, request).tokens);
  EXPECT_LT(got.counters.reused_tokens, 300u);
  EXPECT_GT(got.memory.kv.lost_pages, 0u);
  const Answer again = answer_of(**small->open(), request);
  EXPECT_EQ(again.tokens, got.tokens);
  EXPECT_EQ(again.counters.reused_tokens, 304u);  // the prefix cache took what was computed
}

TEST(Tiers, WhatCannotBeWrittenIsComputedAgain) {
  for (const WriteFault::Kind kind : WriteFault::failures()) {
    const auto ample = tiny_engine(), small = tiny_engine(small_options());
    ASSERT_GE(hidden_file(scratch_folder()), 0);
    const WriteFault fault(kind, 40);
    for (int round = 0; round < 2; ++round) {
      for (uint32_t seed = 0; seed < 4; ++seed) {
        const Request request = request_of(tiny_prompt(300, seed));
        const Answer got = answer_of(**small->open(), request);
        EXPECT_EQ(got.tokens, answer_of(**ample->open(), request).tokens) << seed;
        EXPECT_EQ(got.memory.kv.lost_pages, 0u);
      }
    }
    EXPECT_GT(fault.count(), 0);
    EXPECT_THAT(small->kv().disk_error, testing::HasSubstr(WriteFault::message(kind)));
  }
}

TEST(Tiers, ARunningSequenceThatEvictsStillNeedsMemory) {
  const auto engine = tiny_engine(small_options());
  const auto answer = (*engine->open("snapkv"))->generate(request_of(tiny_prompt(500)));
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, ErrorCode::kOutOfMemory);
  EXPECT_THAT(answer.error().message, testing::HasSubstr("--kv-memory"));
}

// The running request's KV makes room for the documents', or for a chunk that is read.
TEST(Tiers, DocumentsAreFusedBesideARunningRequest) {
  EngineOptions options = tiny_options();
  options.model = tiny_model({32, 5, ""});
  options.kv_type = "bf16";  // of 1280 bytes a token
  Books ample(options);
  options.kv_memory = 400 * 1280;
  options.kv_disk = scratch_folder();
  options.kv_disk_size = 8 << 20;
  Books small(options);
  PartedPrompt prompt = three_chunks();
  const Request other = request_of(tiny_prompt(300, 8), 50);
  const auto session = *small.engine->open(), beside = *small.engine->open();
  std::vector<int32_t> answered;
  ASSERT_TRUE(small.engine->submit(*beside, other, [&](Result<Answer> answer) {
    ASSERT_TRUE(answer) << answer.error().message;
    answered = answer->tokens;
  }));
  for (int step = 0; step < 8; ++step) small.engine->step();
  for (Books* books : {&small, &ample}) books->add(prompt);
  const auto fused = small.library->fuse(*session, prompt, "a3");
  ASSERT_TRUE(fused) << fused.error().message;
  EXPECT_EQ(small.logits(*session, prompt), ample.fused(prompt, "a3"));
  while (small.engine->step()) continue;
  EXPECT_EQ(answered, answer_of(**ample.engine->open(), other).tokens);
}

TEST(Tiers, TheHostTierNeedsADevice) {
  EngineOptions options = small_options();
  options.kv_host = 1 << 20;
  const auto engine = Engine::load(options);
  ASSERT_FALSE(engine);
  EXPECT_EQ(engine.error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace reprise::test
