// Texts and conversations longer than the model was trained for, from the command line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/process.h"

namespace reprise::test {
namespace {

using testing::HasSubstr;

constexpr uint64_t kTrained = 2048;  // tokens, of random:tiny

std::string words(size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += "item " + std::to_string(i * 7919 % 10007) + ", ";
  return text;
}

TEST(LongText, RunGoesPastTheTrainedLengthByThePolicyAlone) {
  const TemporaryFolder folder;
  const std::string book = folder.write("book.txt", words(600));
  std::vector<std::string> arguments = {"run", "-m", "random:tiny", "-f",      book,
                                        "-p",  "?",  "--json",      "--policy"};
  arguments.emplace_back("reattention");
  const Outcome outcome = run(arguments);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto counters = outcome.json()["counters"];
  EXPECT_GT(counters["prompt_tokens"], 2 * kTrained);
  EXPECT_GT(counters["policy"]["reattention_scope"], 100);
  EXPECT_LE(counters["policy"]["reattention_scope"], kTrained);
  EXPECT_EQ(outcome.json()["finish_reason"], "length") << "nor is the answer cut";
  const size_t steps = outcome.json()["tokens"].size() - 1;
  for (const char* cost : {"keys_read", "kv_bytes_read", "index_bytes_read", "select_ms"}) {
    EXPECT_GT(counters["per_step"][cost], 0) << cost;
    EXPECT_DOUBLE_EQ(counters["per_step"][cost].get<double>() * static_cast<double>(steps),
                     counters[cost].get<double>());
  }

  arguments.back() = "full";
  const Outcome refused = run(arguments);
  EXPECT_EQ(refused.code, 1);
  EXPECT_EQ(refused.json()["error"]["code"], "context_exceeded");
  EXPECT_THAT(refused.err + refused.out, HasSubstr("--policy reattention"));
}

TEST(LongText, AConversationGoesOnPastTheTrainedLength) {
  std::string script;
  for (int turn = 0; turn < 12; ++turn) script += words(60) + "\n";
  const Outcome outcome =
      run({"chat", "-m", "random:tiny", "-n", "8", "--json", "--policy", "reattention"},
          {.input = script});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto turns = outcome.json()["turns"];
  ASSERT_EQ(turns.size(), 12u);
  uint64_t length = 0;
  for (const auto& turn : turns) {
    EXPECT_NE(turn["finish_reason"], "context");
    EXPECT_GE(turn["counters"]["reused_tokens"], length) << "what was said is not read again";
    length = turn["counters"]["prompt_tokens"];
  }
  EXPECT_GT(length, 3 * kTrained);
}

}  // namespace
}  // namespace reprise::test
