#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <sstream>

#include "eval/task_fixtures.h"

namespace reprise::eval {
namespace {

std::string subtask(const Sample& sample) { return sample.id.substr(0, sample.id.find('/')); }

class RulerTasks : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new DataFolder;
    TaskContext context = task_context(folder_->path());
    context.context = 4096;
    context.lengths = {1500, 4096};
    context.limit = 13 * 2 * 4;
    for (Sample& sample : loaded("ruler", context).samples) {
      samples_[subtask(sample)].push_back(std::move(sample));
    }
  }
  static void TearDownTestSuite() {
    delete folder_;
    samples_.clear();
  }

  static const std::vector<Sample>& of(std::string_view name) {
    return samples_.at(std::string(name));
  }

  static inline DataFolder* folder_ = nullptr;
  static inline std::map<std::string, std::vector<Sample>> samples_;
};

TEST_F(RulerTasks, AreThirteen) {
  EXPECT_EQ(samples_.size(), 13u);
  for (const auto& [name, samples] : samples_) EXPECT_EQ(samples.size(), 8u) << name;
}

TEST_F(RulerTasks, PromptsHaveTheirLength) {
  for (const auto& [name, samples] : samples_) {
    for (const Sample& sample : samples) {
      const size_t tokens = count_pieces(prompt_text(sample)) + sample.max_tokens + 20;
      EXPECT_LE(static_cast<double>(tokens), axis(sample, "length")) << sample.id;
      EXPECT_GE(static_cast<double>(tokens), 0.95 * axis(sample, "length")) << sample.id;
    }
  }
}

TEST_F(RulerTasks, NeedlesStandOnce) {
  for (const auto& [name, samples] : samples_) {
    if (!name.starts_with("niah")) continue;
    for (const Sample& sample : samples) {
      for (const std::string& value : sample.references) {
        EXPECT_EQ(occurrences(prompt_text(sample), value), 1u) << sample.id;
      }
      const std::set<std::string> different(sample.references.begin(), sample.references.end());
      EXPECT_EQ(different.size(), sample.references.size());
    }
  }
}

TEST_F(RulerTasks, HaveTheNumbersOfKeysAndValuesOfTheBenchmark) {
  const auto needles = [](const Sample& sample) {
    return occurrences(sample.messages[0].content, "One of the special magic ");
  };
  for (const char* one : {"niah_single_1", "niah_single_2", "niah_single_3"}) {
    for (const Sample& sample : of(one)) EXPECT_EQ(needles(sample), 1u) << one;
  }
  for (const Sample& sample : of("niah_multikey_1")) {
    EXPECT_EQ(needles(sample), 4u);
    EXPECT_EQ(sample.references.size(), 1u);
  }
  for (const Sample& sample : of("niah_multikey_2")) EXPECT_GT(needles(sample), 20u);
  for (const Sample& sample : of("niah_multikey_3")) {
    EXPECT_GT(needles(sample), 10u);
    EXPECT_EQ(sample.references[0].size(), 36u) << "a UUID";
  }
  for (const char* four : {"niah_multivalue", "niah_multiquery"}) {
    for (const Sample& sample : of(four)) {
      EXPECT_EQ(needles(sample), 4u) << four;
      EXPECT_EQ(sample.references.size(), 4u);
    }
  }
}

TEST_F(RulerTasks, OneValueIsAskedForInTheSingular) {
  const Sample& one = of("niah_single_1")[0];
  EXPECT_THAT(one.messages[0].content, testing::StartsWith("A special magic number is hidden."));
  EXPECT_THAT(one.messages[0].content, testing::HasSubstr("What is the special magic number for "));
  EXPECT_THAT(one.answer_prefix, testing::EndsWith(" is"));
  const Sample& four = of("niah_multiquery")[0];
  EXPECT_THAT(four.messages[0].content, testing::StartsWith("Some special magic numbers are"));
  EXPECT_EQ(occurrences(four.answer_prefix, ", "), 3u);
  EXPECT_EQ(occurrences(four.answer_prefix, ", and "), 1u);
}

TEST_F(RulerTasks, VariablesFormOneChain) {
  for (const Sample& sample : of("vt")) {
    ASSERT_EQ(sample.references.size(), 5u);
    const std::string& prompt = sample.messages[0].content;
    size_t at = prompt.find("VAR " + sample.references[0] + " = ");
    ASSERT_NE(at, prompt.npos);
    const std::string value = prompt.substr(at + 12, 5);
    for (size_t i = 1; i < 5; ++i) {
      const size_t next =
          prompt.find("VAR " + sample.references[i] + " = VAR " + sample.references[i - 1] + " ");
      ASSERT_NE(next, prompt.npos) << i;
      EXPECT_GT(next, at) << "assigned in order";
      at = next;
    }
    EXPECT_THAT(sample.answer_prefix, testing::HasSubstr("5 variables are " + value));
    EXPECT_EQ(occurrences(prompt, "VAR "), 5 + 4 + 5 + 4u) << "this chain and the example's";
  }
}

// Words of the last numbered list of a prompt, counted.
std::map<std::string, int> counted_words(const std::string& prompt) {
  std::istringstream words(prompt.substr(prompt.rfind("A list of words.")));
  std::map<std::string, int> counts;
  std::string word;
  bool numbered = false;
  while (words >> word) {
    if (numbered) ++counts[word];
    numbered = word.size() > 1 && word.back() == '.' && std::isdigit(word[0]) != 0;
  }
  return counts;
}

TEST_F(RulerTasks, CommonWordsAreMoreCommonThanOthers) {
  for (const Sample& sample : of("cwe")) {
    ASSERT_EQ(sample.references.size(), 10u);
    const bool brief = axis(sample, "length") < 4096;
    for (const auto& [word, count] : counted_words(sample.messages[0].content)) {
      const bool common = std::count(sample.references.begin(), sample.references.end(), word) > 0;
      EXPECT_EQ(count, common ? (brief ? 6 : 30) : (brief ? 1 : 3)) << sample.id << " " << word;
    }
  }
}

TEST_F(RulerTasks, FrequentWordsAreTheThreeMostFrequent) {
  for (const Sample& sample : of("fwe")) {
    std::istringstream words(sample.messages[0].content);
    std::map<std::string, int> counts;
    for (std::string word; words >> word;) ++counts[word];
    std::vector<std::pair<int, std::string>> order;
    for (const auto& [word, count] : counts) order.emplace_back(-count, word);
    std::sort(order.begin(), order.end());
    ASSERT_GE(order.size(), 5u);
    EXPECT_EQ(order[0].second, "...");
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(order[i + 1].second, sample.references[i]);
    EXPECT_LT(order[3].first, order[4].first) << "no tie decides";
  }
}

TEST_F(RulerTasks, QuestionsHaveTheirPassage) {
  for (const char* name : {"qa_1", "qa_2"}) {
    for (const Sample& sample : of(name)) {
      const std::string prompt = prompt_text(sample);
      EXPECT_THAT(prompt, testing::HasSubstr(" By " + sample.references[0] + "."));
      EXPECT_THAT(prompt, testing::HasSubstr("Document 1:\n"));
      EXPECT_GT(occurrences(prompt, "Document "), 3u);
      EXPECT_EQ(sample.score("it was the " + sample.references[0])[0].second, 1.0);
    }
  }
}

TEST_F(RulerTasks, DepthsAreWhereTheGoldStands) {
  for (const Sample& sample : of("niah_single_2")) {
    const std::string& prompt = sample.messages[0].content;
    const size_t at = prompt.find("One of the special magic ");
    const double depth = static_cast<double>(count_pieces(prompt.substr(0, at))) /
                         static_cast<double>(count_pieces(prompt_text(sample)));
    EXPECT_NEAR(axis(sample, "depth"), depth, 1e-12);
  }
}

// Kolmogorov-Smirnov against the uniform distribution, 1 in 1000 by chance.
TEST(RulerDepth, IsUniform) {
  const DataFolder folder;
  TaskContext context = task_context(folder.path());
  context.lengths = {1500};
  context.limit = 13 * 60;
  std::map<std::string, std::vector<double>> depths;
  for (const Sample& sample : loaded("ruler", context).samples) {
    const std::string name = subtask(sample);
    if (name == "qa_1" || name.starts_with("niah_single") || name == "niah_multikey_3") {
      depths[name].push_back(axis(sample, "depth"));
    }
  }
  EXPECT_EQ(depths.size(), 5u);
  for (auto& [name, values] : depths) {
    std::sort(values.begin(), values.end());
    const auto n = static_cast<double>(values.size());
    double distance = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      distance = std::max(distance, std::abs(values[i] - (static_cast<double>(i) + 0.5) / n));
    }
    // The instruction and the question keep the ends free: a few percent of 1500 tokens.
    EXPECT_LT(distance, 1.95 / std::sqrt(n) + 0.06) << name;
  }
}

TEST(RulerErrors, ListsThatAreTooSmallSayTheLengthThatTheyFill) {
  const DataFolder folder;
  TaskContext context = task_context(folder.path());
  context.context = 1u << 20;
  context.lengths = {1u << 16};
  context.limit = 13;
  const auto data = load_task("ruler", context);
  ASSERT_FALSE(data);
  EXPECT_EQ(data.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(data.error().message, testing::StartsWith("ruler cwe: its files hold text for "));
}

TEST(RulerErrors, BrokenFilesAreNamed) {
  const DataFolder folder;
  const auto error = [&](const std::string& file, std::string_view text) {
    const auto path = folder.path() / file;
    std::ifstream stream(path, std::ios::binary);
    const std::string before{std::istreambuf_iterator<char>(stream), {}};
    write_file(path, text);
    const auto data = load_task("ruler", task_context(folder.path()));
    write_file(path, before);
    EXPECT_FALSE(data) << file;
    if (data) return Error{ErrorCode::kUnsupported, ""};
    EXPECT_THAT(data.error().message, testing::HasSubstr(file));
    return data.error();
  };
  EXPECT_EQ(error("ruler/templates.json", "{\"tasks\": 3").code, ErrorCode::kBadJson);
  EXPECT_EQ(error("ruler/templates.json", "{\"tasks\": 3}").code, ErrorCode::kBadValue);
  EXPECT_EQ(error("ruler/templates.json", "[]").code, ErrorCode::kBadValue);
  EXPECT_EQ(error("ruler/PaulGrahamEssays.json", "{\"text\": \"\"}").code, ErrorCode::kBadValue);
  EXPECT_EQ(error("ruler/PaulGrahamEssays.json", "3").code, ErrorCode::kBadValue);
  EXPECT_EQ(error("ruler/wonderwords/verblist.txt", "\n \n").code, ErrorCode::kBadValue);
  EXPECT_EQ(error("fusion/musique_s.json", "{}").code, ErrorCode::kBadValue);
  EXPECT_EQ(error("fusion/musique_s.json", "[{}]").code, ErrorCode::kBadValue);
  const Error line = error("fusion/nq-open-oracle.jsonl", "\n{\"question\": 3}\n");
  EXPECT_EQ(line.code, ErrorCode::kBadValue);
  EXPECT_THAT(line.message, testing::HasSubstr("line 2: field 'question' must be a string"));
}

}  // namespace
}  // namespace reprise::eval
