// `reprise eval` from outside: usage, exit codes, and a small run of the default model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "cli/process.h"

namespace reprise::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

void expect_usage_error(std::vector<std::string> arguments, const std::string& message) {
  arguments.insert(arguments.begin(), {"eval", "-m", "no-such.gguf"});
  const Outcome outcome = run(arguments);
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr(message));
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1);
}

TEST(EvalUsage, IsCheckedBeforeTheModelIsLoaded) {
  expect_usage_error({"--tasks", "ppl"}, "--out");
  expect_usage_error({"--out", "x"}, "--tasks");
  expect_usage_error({"--out", "x", "--tasks", "ppl,nedle"}, "did you mean needle?");
  expect_usage_error({"--out", "x", "--tasks", "ppl", "--scope", "tail"}, "tail:N");
  expect_usage_error({"--out", "x", "--tasks", "ppl", "--lengths", "4K,x"}, "--lengths: \"x\"");
  expect_usage_error({"--out", "x", "--tasks", "ppl", "--steps", "0"}, "--steps");
  EXPECT_EQ(run({"eval", "-m", "no-such.gguf", "--tasks", "ppl", "--out", "x"}).code, 1);
}

class EvalModelTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto path = real_model();
    if (!path) GTEST_SKIP() << "the default model is not there; `make model` fetches it";
    std::filesystem::create_directories(folder_.file("books"));
    std::string text;
    for (int i = 0; i < 700; ++i) {
      text += "On day " + std::to_string(i) + " the ship sailed " + std::to_string(i * 37 % 101) +
              " miles to the " + (i % 3 == 0 ? "north" : "east") + ".";
      text += i % 5 == 4 ? "\n\n" : " ";
    }
    folder_.write("books/log.txt", text);
    arguments_ = {
        "eval", "-m",      *path, "--tasks", "fidelity", "--data",   folder_.file(""),   "--ctx",
        "512",  "--limit", "2",   "--steps", "16",       "--policy", "random:budget=64", "--policy",
        "full"};
  }
  Outcome evaluate(std::vector<std::string> more, const Launch& launch = {}) {
    more.insert(more.begin(), arguments_.begin(), arguments_.end());
    return run(more, launch);
  }

  TemporaryFolder folder_;
  std::vector<std::string> arguments_;
};

TEST_F(EvalModelTest, MeasuresAndPrintsATable) {
  const std::string out = folder_.file("run.jsonl");
  const Outcome outcome = evaluate({"--out", out});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("| fidelity | full | 2 | 0 | kl | 0.0000 |"),
                                 HasSubstr("| fidelity | random:budget=64 | 2 | 0 | kl | ")));
  EXPECT_EQ(evaluate({"--out", out}).code, 2) << "an old file is not written into by accident";
  const Outcome again = evaluate({"--out", out, "--resume", "--json"});
  ASSERT_EQ(again.code, 0) << again.err;
  const auto json = again.json();
  EXPECT_EQ(json["failed"], 0);
  EXPECT_GT(json["rows"][0]["score"], 1e-4) << "64 keys of 500 are not enough";
  EXPECT_EQ(json["rows"][1]["score"], 0);
}

TEST_F(EvalModelTest, MissingDataIsOneClearLineAndExitCodeOne) {
  const std::string out = folder_.file("run.jsonl");
  const Outcome part = evaluate({"--tasks", "fidelity,gsm8k", "--out", out, "--json"});
  EXPECT_EQ(part.code, 1);
  EXPECT_THAT(part.err, AllOf(HasSubstr("gsm8k"), testing::Not(HasSubstr("see \"error\" in"))))
      << "no sample was tried";
  EXPECT_EQ(part.json()["failed"], 1);
  EXPECT_EQ(part.json()["rows"].size(), 2u) << "the other task was run";
  const Outcome none = evaluate({"--tasks", "gsm8k", "--out", folder_.file("none"), "--json"});
  EXPECT_EQ(none.code, 1);
  EXPECT_EQ(none.json()["error"]["code"], "file_not_found");
}

TEST_F(EvalModelTest, InterruptKeepsWhatIsDone) {
  const std::string out = folder_.file("run.jsonl");
  std::vector<std::string> arguments = arguments_;
  arguments.insert(arguments.end(), {"--limit", "6", "--steps", "128", "--out", out});
  Process process(arguments, {});
  ASSERT_TRUE(process.wait_for_errors("evaluating"));
  process.interrupt();
  const Outcome outcome = process.finish();
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("stopped while evaluating: "));
  arguments.emplace_back("--resume");
  EXPECT_EQ(run(arguments).code, 0);
}

}  // namespace
}  // namespace reprise::test
