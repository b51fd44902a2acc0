#include <gmock/gmock.h>

#include <map>
#include <set>

#include "eval/task_fixtures.h"

namespace reprise::eval {
namespace {

std::string kind(const Sample& sample) { return sample.id.substr(0, sample.id.find('/')); }

double score(const Sample& sample, std::string_view answer, std::string_view name) {
  for (const auto& [key, value] : sample.score(answer)) {
    if (key == name) return value;
  }
  return -1;
}

// Turns of the user, counted from 1, whose text holds this.
std::vector<size_t> turns_with(const Sample& sample, std::string_view text) {
  std::vector<size_t> turns;
  for (size_t i = 0; i < sample.messages.size(); i += 2) {
    if (sample.messages[i].content.find(text) != std::string::npos) turns.push_back(i / 2 + 1);
  }
  return turns;
}

class Dialogue : public testing::Test {
 protected:
  TaskData data(uint32_t limit) {
    TaskContext context = task_context(folder_.path());
    context.lengths = {1024, 2048};
    context.limit = limit;
    return loaded("dialogue", context);
  }

  DataFolder folder_;
};

TEST_F(Dialogue, UserAndAssistantTakeTurns) {
  for (const Sample& sample : data(80).samples) {
    SCOPED_TRACE(sample.id);
    const double turns = axis(sample, "turns");
    EXPECT_GE(turns, 6);
    EXPECT_LE(turns, 12);
    EXPECT_EQ(static_cast<double>(sample.messages.size()), 2 * turns - 1);
    for (size_t i = 0; i < sample.messages.size(); ++i) {
      EXPECT_EQ(sample.messages[i].role, i % 2 == 0 ? "user" : "assistant");
      EXPECT_FALSE(sample.messages[i].content.empty());
    }
  }
}

TEST_F(Dialogue, TheLagCountsTurnsBackFromTheQuestion) {
  std::set<double> lags;
  for (const Sample& sample : data(160).samples) {
    SCOPED_TRACE(sample.id);
    const bool list = kind(sample) == "list";
    const auto turns = turns_with(sample, (list ? "list: " : "") + sample.references[0]);
    ASSERT_FALSE(turns.empty());
    lags.insert(axis(sample, "lag"));
    const auto asked = static_cast<size_t>(axis(sample, "turns") - axis(sample, "lag"));
    if (list) {
      EXPECT_LE(asked, turns.front()) << "the lag is that of the first thing said";
    } else {
      EXPECT_EQ(turns, std::vector{asked}) << "said once";
    }
  }
  EXPECT_GE(lags.size(), 8u);
}

TEST_F(Dialogue, PromptsHaveTheirLength) {
  for (const Sample& sample : data(80).samples) {
    const size_t tokens =
        count_pieces(prompt_text(sample)) + 20 + sample.max_tokens + 8 * sample.messages.size();
    EXPECT_LE(static_cast<double>(tokens), axis(sample, "length")) << sample.id;
    EXPECT_GE(static_cast<double>(tokens), 0.95 * axis(sample, "length")) << sample.id;
  }
}

TEST_F(Dialogue, TheOldValueIsAContradiction) {
  size_t edits = 0;
  for (const Sample& sample : data(80).samples) {
    if (kind(sample) != "edit") continue;
    ++edits;
    // "Please remember: X is OLD." with the subject of the question.
    const std::string subject =
        sample.answer_prefix.substr(1, sample.answer_prefix.size() - 1);  // "he code ... is"
    std::string old_value;
    for (const Message& message : sample.messages) {
      const size_t at = message.content.find(subject + " ");
      const bool first = message.content.find("Please remember: ") == 0;
      if (first && at != std::string::npos) {
        old_value = message.content.substr(at + subject.size() + 1, 5);
      }
    }
    ASSERT_EQ(old_value.size(), 5u);
    EXPECT_EQ(score(sample, old_value, "recall"), 0.0);
    EXPECT_EQ(score(sample, old_value, "contradiction"), 1.0);
    EXPECT_EQ(score(sample, sample.references[0], "contradiction"), 0.0);
  }
  EXPECT_EQ(edits, 20u);
}

TEST_F(Dialogue, ListsAreScoredByShareAndWithoutWhatWasRemoved) {
  size_t lists = 0;
  for (const Sample& sample : data(80).samples) {
    if (kind(sample) != "list") continue;
    ++lists;
    ASSERT_GE(sample.references.size(), 2u);
    EXPECT_DOUBLE_EQ(score(sample, sample.references[0], "recall"),
                     1.0 / static_cast<double>(sample.references.size()));
    const std::string mark = "Please take this off my list again: ";
    const size_t turn = turns_with(sample, mark).at(0);
    const std::string& text = sample.messages[2 * (turn - 1)].content;
    const size_t at = text.find(mark) + mark.size();
    const std::string removed = text.substr(at, text.find('.', at) - at);
    EXPECT_EQ(score(sample, removed, "contradiction"), 1.0);
    EXPECT_EQ(score(sample, sample.gold, "contradiction"), 0.0);
  }
  EXPECT_EQ(lists, 20u);
}

TEST_F(Dialogue, WorksWithoutAnyFile) {
  TaskContext context = task_context("");
  context.limit = 8;
  const TaskData made = loaded("dialogue", context);
  EXPECT_EQ(made.samples.size(), 8u);
  EXPECT_THAT(made.notes, testing::ElementsAre(testing::HasSubstr("no books")));
}

}  // namespace
}  // namespace reprise::eval
