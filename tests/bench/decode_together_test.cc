#include "bench/decode_together.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/tiny_model.h"

namespace reprise {
namespace {

constexpr size_t kContext = 300;
constexpr uint32_t kSteps = 4;
constexpr const char* kFull = "full";
// Reads 256 rows of a prompt again: with chunks of 64, three sequences take twelve passes.
constexpr const char* kObserving = "h2o:budget=64,observe=256";

std::vector<std::unique_ptr<Session>> read_sessions(Engine& engine, size_t count,
                                                    const char* policy) {
  std::vector<std::unique_ptr<Session>> sessions;
  for (size_t i = 0; i < count; ++i) {
    sessions.push_back(*engine.open(policy));
    Request request;
    request.prompt = test::tiny_prompt(kContext, static_cast<uint32_t>(i + 1));
    request.max_tokens = 0;
    EXPECT_TRUE(sessions.back()->generate(request));
  }
  return sessions;
}

TEST(DecodeTogether, NothingIsTimedBeforeEverySequenceHasBegun) {
  for (const char* policy : {kFull, kObserving}) {
    for (const size_t count : {1, 3}) {
      const auto engine = test::tiny_engine();
      const auto sessions = read_sessions(*engine, count, policy);
      const auto decoded = decode_together(*engine, sessions, kSteps);
      ASSERT_TRUE(decoded) << decoded.error().message;
      EXPECT_EQ(decoded->step_ms.size(), kSteps);
      ASSERT_EQ(decoded->answers.size(), count);
      for (const Answer& answer : decoded->answers) {
        EXPECT_GE(answer.tokens.size(), 2 + kSteps) << policy << ": each timed step made one";
        EXPECT_LE(answer.tokens.size(), tokens_together(kSteps, count)) << policy;
      }
      for (const auto& session : sessions)
        EXPECT_EQ(session->tokens().size(), kContext) << "forks went on";
    }
  }
}

TEST(DecodeTogether, SequencesThatEndTooEarlyAreNoMeasurement) {
  EngineOptions options = test::tiny_options();
  options.ctx = kContext + 3;
  const auto engine = test::tiny_engine(options);
  const auto decoded =
      decode_together(*engine, read_sessions(*engine, 2, kFull), tokens_together(kSteps, 2));
  ASSERT_FALSE(decoded);
  EXPECT_EQ(decoded.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(decoded.error().message, testing::HasSubstr("--sequences"));
}

}  // namespace
}  // namespace reprise
