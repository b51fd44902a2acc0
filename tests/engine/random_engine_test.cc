// Models without weights, end to end.
#include <gtest/gtest.h>

#include "base/no_threads.h"
#include "engine/model_path.h"
#include "reprise/engine.h"

namespace reprise {
namespace {

using test::NoThreads;

EngineOptions random_options(const std::string& model) {
  EngineOptions options;
  options.model = model;
  options.threads = 2;
  options.kv_memory = 16 << 20;
  return options;
}

TEST(RandomEngine, AnswersTheSameNoiseEveryTime) {
  for (const char* model : {"random:tiny", "random:tiny:q8_0", "random:tiny:q4_0"}) {
    std::vector<std::vector<int32_t>> answers;
    for (int run = 0; run < 2; ++run) {
      const auto engine = Engine::load(random_options(model));
      ASSERT_TRUE(engine) << engine.error().message;
      EXPECT_EQ((*engine)->info().path, model);
      EXPECT_EQ((*engine)->info().name, "tiny");
      const auto session = (*engine)->open("full");
      ASSERT_TRUE(session) << session.error().message;
      const Message question{"user", "Why?"};
      const auto prompt = (*engine)->chat_prompt({&question, 1});
      ASSERT_TRUE(prompt) << prompt.error().message;
      Request request;
      request.prompt = *prompt;
      request.max_tokens = 8;
      const auto answer = (*session)->generate(request);
      ASSERT_TRUE(answer) << answer.error().message;
      EXPECT_EQ(answer->tokens.size(), 8u);
      answers.push_back(answer->tokens);
    }
    EXPECT_EQ(answers[0], answers[1]) << model;
  }
}

TEST(RandomEngine, LoadsWhereTheSystemStartsNoThread) {
  const NoThreads none;
  const auto engine = Engine::load(random_options("random:tiny"));
  ASSERT_TRUE(engine) << engine.error().message;
  EXPECT_GT((*engine)->tokenize("Why?").size(), 0u);
}

TEST(RandomEngine, UnknownNamesAreUsageErrors) {
  const auto engine = Engine::load(random_options("random:no-such-model"));
  ASSERT_FALSE(engine);
  EXPECT_EQ(engine.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(read_tokenizer("random:no-such-model").error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace reprise
