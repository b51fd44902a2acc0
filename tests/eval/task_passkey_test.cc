#include <gmock/gmock.h>

#include <map>
#include <set>

#include "eval/task_fixtures.h"

namespace reprise::eval {
namespace {

constexpr std::string_view kFiller = "The grass is green. ";

TEST(PassKeyTask, CoversTheGridWithoutAnyFile) {
  TaskContext context = task_context({});
  context.lengths = {512, 1024};
  std::map<std::pair<double, double>, int> cells;
  std::set<std::string> keys;
  const TaskData data = loaded("passkey", context);
  for (const Sample& sample : data.samples) {
    ++cells[{axis(sample, "length"), axis(sample, "depth")}];
    keys.insert(sample.references[0]);
    EXPECT_EQ(sample.references[0].size(), 5u);
  }
  EXPECT_EQ(cells.size(), 22u) << "two lengths and eleven depths";
  for (const auto& [cell, trials] : cells) {
    EXPECT_EQ(trials, 10) << cell.first << " " << cell.second;
  }
  EXPECT_GT(keys.size(), data.samples.size() * 9 / 10);
}

TEST(PassKeyTask, TheKeyStandsAtItsDepthAmongFillers) {
  TaskContext context = task_context({});
  context.lengths = {2048};
  context.limit = 11;
  for (const Sample& sample : loaded("passkey", context).samples) {
    SCOPED_TRACE(sample.id);
    const std::string& key = sample.references[0];
    const std::string_view prompt = sample.messages[0].content;
    ASSERT_EQ(occurrences(prompt, key), 2u) << "it is told twice";
    const size_t at = prompt.find("The pass key is " + key + ".");
    ASSERT_NE(at, std::string_view::npos);
    const auto before = static_cast<double>(occurrences(prompt.substr(0, at), kFiller));
    const auto total = static_cast<double>(occurrences(prompt, kFiller));
    EXPECT_GT(total, 50);
    EXPECT_NEAR(before, axis(sample, "depth") * total, 0.5);
  }
}

}  // namespace
}  // namespace reprise::eval
