// What holds for every task that asks questions, on small files and on the real ones.
#include <gmock/gmock.h>

#include <set>

#include "base/data_folder.h"
#include "eval/task_fixtures.h"
#include "eval/tasks/prose.h"
#include "formats/printable.h"
#include "text/tokenizer_fixtures.h"

namespace reprise::eval {
namespace {

const std::vector<std::string> kAsking = {"needle",    "passkey", "ruler",
                                          "longbench", "gsm8k",   "dialogue"};

std::string task_name(const testing::TestParamInfo<std::string>& task) { return task.param; }

// What a model says that copies the right answer out of its prompt.
std::string copied(const Sample& sample) {
  return sample.gold.empty() ? sample.references.front() : sample.gold;
}

double headline(const Sample& sample, std::string_view answer) {
  const Scores scores = sample.score(answer);
  EXPECT_FALSE(scores.empty());
  return scores.empty() ? -1 : scores.front().second;
}

std::string everything(const Sample& sample) {
  std::string text = sample.id + sample.gold + prompt_text(sample);
  for (const std::string& reference : sample.references) text += "\n" + reference;
  for (const auto& [name, value] : sample.axes) text += fmt::format("\n{} {}", name, value);
  return text;
}

void expect_sound(std::string_view task, const TaskContext& context) {
  const TaskData data = loaded(task, context);
  ASSERT_FALSE(data.samples.empty()) << task;
  std::set<std::string> ids;
  for (const Sample& sample : data.samples) {
    SCOPED_TRACE(fmt::format("{} {}", task, sample.id));
    EXPECT_TRUE(ids.insert(sample.id).second) << "repeated id";
    ASSERT_FALSE(sample.messages.empty());
    EXPECT_EQ(sample.messages.back().role, "user");
    EXPECT_TRUE(!sample.plain || sample.messages.size() == 1);
    EXPECT_GT(sample.max_tokens, 0u);
    EXPECT_FALSE(sample.references.empty());
    EXPECT_TRUE(is_utf8(everything(sample)));
    EXPECT_NEAR(headline(sample, copied(sample)), 1.0, 1e-6);
    EXPECT_EQ(headline(sample, ""), 0.0);
    EXPECT_EQ(headline(sample, "zzz"), 0.0);
    EXPECT_NE(copied(sample), "");
  }
}

class Asking : public testing::TestWithParam<std::string> {};

TEST_P(Asking, CopyingTheReferenceScoresOne) {
  const DataFolder folder;
  TaskContext context = task_context(folder.path());
  context.limit = 60;
  expect_sound(GetParam(), context);
}

TEST_P(Asking, SameSeedSameSamples) {
  const DataFolder folder;
  TaskContext context = task_context(folder.path());
  context.limit = 30;
  const TaskData first = loaded(GetParam(), context), second = loaded(GetParam(), context);
  ASSERT_EQ(first.samples.size(), second.samples.size());
  for (size_t i = 0; i < first.samples.size(); ++i) {
    EXPECT_EQ(everything(first.samples[i]), everything(second.samples[i]));
  }
}

TEST_P(Asking, ALimitTakesTheFirstSamples) {
  const DataFolder folder;
  TaskContext context = task_context(folder.path());
  context.limit = 30;
  const TaskData more = loaded(GetParam(), context);
  context.limit = 3;
  const TaskData fewer = loaded(GetParam(), context);
  ASSERT_EQ(fewer.samples.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(everything(fewer.samples[i]), everything(more.samples[i]));
  }
}

INSTANTIATE_TEST_SUITE_P(Tasks, Asking, testing::ValuesIn(kAsking), task_name);

TEST(AskingSeed, AnotherSeedMakesOtherSamples) {
  const DataFolder folder;
  for (const std::string_view task : {"needle", "passkey", "ruler", "dialogue"}) {
    TaskContext context = task_context(folder.path());
    context.limit = 8;
    const TaskData first = loaded(task, context);
    context.seed = 99;
    const TaskData second = loaded(task, context);
    for (size_t i = 0; i < first.samples.size(); ++i) {
      EXPECT_EQ(first.samples[i].id, second.samples[i].id);
      EXPECT_NE(prompt_text(first.samples[i]), prompt_text(second.samples[i]));
    }
  }
}

// --- On the data that docs/evaluation.md describes ---

class RealData : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const char* folder = test::data_folder();
    if (folder == nullptr) GTEST_SKIP() << "set REPRISE_DATA to the folder of --data";
    context_ = task_context(folder);
    context_.context = 8192;
    tokenizer_ = gguf_tokenizer(std::string(folder) + "/tokenizers/ggml-vocab-llama-bpe.gguf");
    ASSERT_NE(tokenizer_, nullptr);
    context_.count_tokens = [this](std::string_view text) {
      return tokenizer_->encode(text, {.add_special = false}).size();
    };
  }

  TaskContext context_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(RealData, CopyingTheReferenceScoresOne) {
  context_.limit = 52;
  const TaskData data = loaded(GetParam(), context_);
  ASSERT_FALSE(data.samples.empty());
  for (const Sample& sample : data.samples) {
    const double score = headline(sample, copied(sample));
    // Code is judged by the first line that is no comment, which the right line may be.
    const bool comment = copied(sample).find_first_of("#`/") != std::string::npos;
    EXPECT_NEAR(comment ? 1.0 : score, 1.0, 1e-6) << sample.id << ": " << copied(sample);
    EXPECT_TRUE(is_utf8(everything(sample)));
  }
}

class GeneratedFromRealData : public RealData {};

TEST_P(GeneratedFromRealData, PromptsHaveTheirLength) {
  context_.limit = 26;
  context_.lengths = {4096};
  for (const Sample& sample : loaded(GetParam(), context_).samples) {
    size_t tokens = context_.count_tokens(prompt_text(sample)) + sample.max_tokens;
    tokens += context_.template_tokens;
    EXPECT_LE(tokens, 4096u) << sample.id;
    // A conversation also keeps 8 tokens for the template of each message.
    if (sample.messages.size() > 1) tokens += 8 * sample.messages.size();
    EXPECT_GE(tokens, 4096 * 95 / 100) << sample.id;
  }
}

INSTANTIATE_TEST_SUITE_P(Tasks, GeneratedFromRealData,
                         testing::Values("needle", "passkey", "ruler", "dialogue"), task_name);
INSTANTIATE_TEST_SUITE_P(Tasks, RealData, testing::ValuesIn(kAsking), task_name);

TEST(TaskRegistry, NamesFilesAndHeadlines) {
  std::vector<std::string_view> names;
  for (const TaskEntry& entry : task_entries()) {
    names.push_back(entry.name);
    EXPECT_FALSE(entry.summary.empty());
    EXPECT_FALSE(entry.headline.empty());
  }
  EXPECT_THAT(names, testing::ElementsAre("ppl", "needle", "passkey", "ruler", "longbench", "gsm8k",
                                          "dialogue", "fidelity"));
}

TEST(TaskRegistry, HeadlinesAreTheFirstScores) {
  const DataFolder folder;
  TaskContext context = task_context(folder.path());
  context.limit = 1;
  for (const TaskEntry& entry : task_entries()) {
    for (const Sample& sample : loaded(entry.name, context).samples) {
      EXPECT_EQ(sample.score("").front().first, entry.headline);
    }
  }
}

TEST(TaskFiles, AMissingFileIsNamedWithWhereToGetIt) {
  for (const std::string_view task : {"ppl", "needle", "ruler", "longbench", "gsm8k", "fidelity"}) {
    const auto data = load_task(task, task_context("/nonexistent/folder"));
    ASSERT_FALSE(data) << task;
    EXPECT_EQ(data.error().code, ErrorCode::kFileNotFound) << task;
    EXPECT_THAT(data.error().message, testing::HasSubstr("/nonexistent/folder"));
    EXPECT_THAT(data.error().message, testing::HasSubstr("docs/evaluation.md"));
  }
}

TEST(TaskFiles, TextThatIsNotUtf8IsRefused) {
  const DataFolder folder;
  write_file(folder.path() / "books/first.txt", "good \xff bad");
  write_file(folder.path() / "ruler/wonderwords/nounlist.txt", "tr\xc3");
  write_file(folder.path() / "needle/PaulGrahamEssays/a.txt", "\xed\xa0\x80");
  for (const std::string_view task : {"ppl", "needle", "ruler", "fidelity", "dialogue"}) {
    const auto data = load_task(task, task_context(folder.path()));
    ASSERT_FALSE(data) << task;
    EXPECT_EQ(data.error().code, ErrorCode::kBadString) << task << ": " << data.error().message;
  }
}

TEST(TaskLengths, OnesAboveTheContextAreRefused) {
  const DataFolder folder;
  TaskContext context = task_context(folder.path());
  context.lengths = {4096};
  for (const std::string_view task : {"needle", "passkey", "ruler", "dialogue"}) {
    EXPECT_EQ(load_task(task, context).error().code, ErrorCode::kContextExceeded) << task;
  }
  context.lengths = {100};
  for (const std::string_view task : {"needle", "passkey", "ruler", "dialogue"}) {
    EXPECT_EQ(load_task(task, context).error().code, ErrorCode::kInvalidArgument) << task;
  }
}

}  // namespace
}  // namespace reprise::eval
