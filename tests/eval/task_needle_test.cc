#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <set>

#include "eval/task_fixtures.h"
#include "text/tokenizer_fixtures.h"

namespace reprise::eval {
namespace {

constexpr std::string_view kBegin = "afterwards.\n\n", kEnd = "\n\nWhat is";

// The text between the instruction and the question.
std::string_view haystack(const Sample& sample) {
  const std::string_view prompt = sample.messages[0].content;
  const size_t begin = prompt.find(kBegin) + kBegin.size();
  return prompt.substr(begin, prompt.rfind(kEnd) - begin);
}

TEST(NeedleTask, CoversTheGrid) {
  const DataFolder folder;
  TaskContext context = task_context(folder.path());
  context.lengths = {512, 1024};
  std::map<std::pair<double, double>, int> cells;
  for (const Sample& sample : loaded("needle", context).samples) {
    ++cells[{axis(sample, "length"), axis(sample, "depth")}];
  }
  EXPECT_EQ(cells.size(), 22u) << "two lengths and eleven depths";
  for (const auto& [cell, trials] : cells) {
    EXPECT_EQ(trials, 10) << cell.first << " " << cell.second;
  }
}

TEST(NeedleTask, ASmallLimitIsSpreadOverTheGrid) {
  const DataFolder folder;
  TaskContext context = task_context(folder.path());
  context.lengths = {512, 1024, 2048};
  context.limit = 9;
  std::map<double, int> lengths;
  std::set<double> depths;
  for (const Sample& sample : loaded("needle", context).samples) {
    ++lengths[axis(sample, "length")];
    depths.insert(axis(sample, "depth"));
  }
  for (const auto& [length, count] : lengths) EXPECT_EQ(count, 3) << length;
  EXPECT_GE(depths.size(), 6u);
}

TEST(NeedleTask, TheNeedleStandsOnceAtASentenceEndNearItsDepth) {
  const DataFolder folder;
  TaskContext context = task_context(folder.path());
  context.lengths = {1024};
  context.limit = 44;
  for (const Sample& sample : loaded("needle", context).samples) {
    SCOPED_TRACE(sample.id);
    const std::string needle =
        sample.answer_prefix + " " + sample.references[0] + ".";  // the prefix is its beginning
    const std::string_view hay = haystack(sample);
    ASSERT_EQ(occurrences(hay, needle), 1u);
    EXPECT_EQ(occurrences(hay, sample.references[0]), 1u);
    const size_t at = hay.find(needle);
    EXPECT_TRUE(at == 0 || hay.substr(at - 2, 2) == ". ");

    const auto before = static_cast<double>(count_pieces(hay.substr(0, at)));
    const auto total = static_cast<double>(count_pieces(hay) - count_pieces(needle));
    EXPECT_NEAR(axis(sample, "true_depth"), before / total, 1e-9);
    // Sentences of this prose have 20 to 26 tokens; the nearest end is half of one away.
    EXPECT_NEAR(axis(sample, "true_depth"), axis(sample, "depth"), 13.0 / total);
  }
}

TEST(NeedleTask, PromptsHaveTheirLength) {
  const DataFolder folder;
  TaskContext context = task_context(folder.path());
  context.context = 4096;
  context.lengths = {300, 1000, 4096};
  context.limit = 33;
  for (const Sample& sample : loaded("needle", context).samples) {
    const size_t tokens =
        count_pieces(prompt_text(sample)) + sample.max_tokens + context.template_tokens;
    const auto length = static_cast<size_t>(axis(sample, "length"));
    EXPECT_LE(tokens, length) << sample.id;
    // A unit is a sentence of at most 26 tokens.
    EXPECT_GE(tokens + 26, length * 95 / 100 + (length > 1000 ? 26 : 0)) << sample.id;
  }
}

// A tokenizer that starts every text with a token of its own, so counts of parts do not add up.
TEST(NeedleTask, HoldsItsLengthWhereCountsDoNotAddUp) {
  const DataFolder folder;
  TaskContext context = task_context(folder.path());
  const auto tokenizer = fixture_tokenizer("llama2.json");
  ASSERT_NE(tokenizer, nullptr);
  context.context = 8192;
  context.lengths = {4096, 8192};
  context.limit = 6;
  size_t bytes = 0;
  context.count_tokens = [&](std::string_view text) {
    bytes += text.size();
    return tokenizer->encode(text).size();
  };
  size_t prompts = 0;
  for (const Sample& sample : loaded("needle", context).samples) {
    const size_t own = tokenizer->encode(prompt_text(sample)).size();
    const size_t tokens = own + sample.max_tokens + context.template_tokens;
    const double length = axis(sample, "length");
    EXPECT_LE(static_cast<double>(tokens), length);
    EXPECT_GE(static_cast<double>(tokens), 0.95 * length);
    prompts += prompt_text(sample).size();
  }
  EXPECT_LT(bytes, 6 * prompts) << "counting is linear: no search that counts over and over";
}

TEST(NeedleTask, KeysAndValuesAreFresh) {
  const DataFolder folder;
  TaskContext context = task_context(folder.path());
  context.lengths = {512};
  std::set<std::string> values, prefixes;
  const TaskData data = loaded("needle", context);
  for (const Sample& sample : data.samples) {
    values.insert(sample.references[0]);
    prefixes.insert(sample.answer_prefix);
    EXPECT_EQ(sample.references[0].size(), 7u);
    EXPECT_EQ(sample.gold, " " + sample.references[0]);
  }
  EXPECT_EQ(values.size(), data.samples.size());
  EXPECT_GT(prefixes.size(), data.samples.size() * 9 / 10);
}

TEST(NeedleTask, FallsBackToOtherProse) {
  const DataFolder folder;
  TaskContext context = task_context(folder.path());
  context.limit = 1;
  std::filesystem::remove_all(folder.path() / "needle");
  EXPECT_THAT(prompt_text(loaded("needle", context).samples[0]), testing::HasSubstr("the essay"));
  std::filesystem::remove_all(folder.path() / "ruler");
  EXPECT_THAT(prompt_text(loaded("needle", context).samples[0]), testing::HasSubstr(" book"));
}

}  // namespace
}  // namespace reprise::eval
