// CSAttention's index on a device in session files.
#include <gmock/gmock.h>

#include "cuda/csattention_testing.h"

namespace reprise::test {
namespace {

using CsAttentionSession = CudaEngine;

// Files hold tokens, KV and the index: equal bytes are equal choices from then on.
TEST_F(CsAttentionSession, RestoredSessionsGoOnWithTheirIndex) {
  EngineOptions options = cuda_options();
  options.prefix_cache = false;  // equal passes, so equal bits
  const std::string path = scratch_folder() + "/codes.kv", copy = scratch_folder() + "/again.kv";
  for (const std::string& policy :
       {kSmall, kSmall + ",bits=3", "dense:first=1+" + kSmall, kPeriodic}) {
    SCOPED_TRACE(policy);
    const auto engine = tiny_engine(options), other = tiny_engine(options);
    auto original = *engine->open(policy), restored = *other->open(policy);
    logits_in(*original, request_of(tiny_prompt(500), 20));
    ASSERT_TRUE(original->save(path, "a note"));
    ASSERT_TRUE(restored->restore(path));
    ASSERT_TRUE(restored->save(copy, "a note"));  // before a device has seen it
    EXPECT_EQ(contents(copy), contents(path));
    auto fork = restored->fork();
    const Request more = forced_request(then(original->tokens(), tiny_prompt(30, 3)), 60, 4);
    Answer first, second;
    const Logits want = logits_in(*original, more, &first);
    EXPECT_EQ(logits_in(*restored, more, &second), want);
    EXPECT_EQ(logits_in(*fork, more), want);
    EXPECT_EQ(second.counters.reused_tokens, first.counters.reused_tokens);
    EXPECT_EQ(second.counters.keys_read, first.counters.keys_read);
    EXPECT_EQ(figure(second, "index_mb"), figure(first, "index_mb"));
    EXPECT_EQ(figure(second, "fallback"), 0.0);
    ASSERT_TRUE(original->save(path, ""));
    ASSERT_TRUE(restored->save(copy, ""));
    EXPECT_EQ(contents(copy), contents(path));
    // Cut while they rest, in the middle of a page.
    auto cut = *other->open(policy);
    ASSERT_TRUE(cut->restore(path));
    ASSERT_TRUE(original->truncate(533));
    ASSERT_TRUE(cut->truncate(533));
    const Request after = forced_request(then(original->tokens(), tiny_prompt(30, 5)), 40, 6);
    EXPECT_EQ(logits_in(*original, after), logits_in(*cut, after));
  }
}

// The first answer stays below the length from which on keys are chosen, the second one does not.
TEST_F(CsAttentionSession, RestoredIndexesWaitUntilTheyAreNeeded) {
  EngineOptions options = cuda_options();
  options.prefix_cache = false;
  const std::string policy = "csattention:budget=96,window=16,activate=700";
  const std::string path = scratch_folder() + "/waits.kv", copy = scratch_folder() + "/waited.kv";
  const auto engine = tiny_engine(options);
  auto original = *engine->open(policy), restored = *engine->open(policy);
  logits_in(*original, request_of(tiny_prompt(600), 2));
  ASSERT_TRUE(original->save(path, ""));
  ASSERT_TRUE(restored->restore(path));
  for (const uint32_t seed : {2u, 3u}) {
    const Request more = forced_request(then(original->tokens(), tiny_prompt(20, seed)), 60, seed);
    EXPECT_EQ(logits_in(*original, more), logits_in(*restored, more));
    ASSERT_TRUE(original->save(path, ""));
    ASSERT_TRUE(restored->save(copy, ""));
    EXPECT_EQ(contents(copy), contents(path));
  }
}

TEST_F(CsAttentionSession, DamagedIndexesAreRefused) {
  const auto engine = tiny_engine(cuda_options());
  const std::string path = scratch_folder() + "/damaged.kv";
  auto session = *engine->open(kSmall);
  logits_in(*session, request_of(tiny_prompt(500), 20));
  ASSERT_TRUE(session->save(path, ""));
  std::string file = contents(path);
  file[120 + 4 * session->tokens().size() + 8 + 30000] ^= 1;  // see docs/kv.md
  std::ofstream(path, std::ios::binary) << file;
  const auto refused = (*engine->open(kSmall))->restore(path);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(refused.error().message, testing::HasSubstr("state"));
}

}  // namespace
}  // namespace reprise::test
