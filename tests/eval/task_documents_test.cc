// Tasks that read long texts: ppl and fidelity.
#include <gmock/gmock.h>

#include <set>

#include "eval/task_fixtures.h"

namespace reprise::eval {
namespace {

std::vector<std::string> ids(const TaskData& data) {
  std::vector<std::string> result;
  for (const Document& document : data.documents) result.push_back(document.id);
  return result;
}

TEST(PplTask, SlicesFillTheContextAndStartAtParagraphs) {
  const DataFolder folder;
  TaskContext context = task_context(folder.path());
  context.context = 1000;
  const TaskData data = loaded("ppl", context);
  EXPECT_TRUE(data.samples.empty());
  ASSERT_GE(data.documents.size(), 4u);
  for (const Document& document : data.documents) {
    EXPECT_GE(count_pieces(document.text), 1000u) << document.id;
    EXPECT_LE(count_pieces(document.text), 1600u) << document.id;
    EXPECT_THAT(document.text, testing::StartsWith("In part ")) << document.id;
  }
}

TEST(PplTask, SlicesDoNotOverlapAndBooksTakeTurns) {
  const DataFolder folder;
  TaskContext context = task_context(folder.path());
  context.context = 600;
  const TaskData data = loaded("ppl", context);
  std::set<std::string> parts;
  for (const Document& document : data.documents) {
    for (size_t at = 0; (at = document.text.find("In part ", at)) != std::string::npos; ++at) {
      const size_t end = document.text.find(" the old", at);
      if (end == std::string::npos) break;  // cut inside the last sentence
      EXPECT_TRUE(parts.insert(document.text.substr(at, end - at)).second) << document.id;
    }
  }
  EXPECT_THAT(data.documents[0].id, testing::StartsWith("first/"));
  EXPECT_THAT(data.documents[1].id, testing::StartsWith("more/second/"));
  const auto names = ids(data);
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
}

TEST(PplTask, ALimitTakesTheFirstAndASeedOthers) {
  const DataFolder folder;
  TaskContext context = task_context(folder.path());
  context.context = 400;
  context.limit = 8;
  const auto eight = ids(loaded("ppl", context));
  ASSERT_EQ(eight.size(), 8u);
  EXPECT_EQ(ids(loaded("ppl", context)), eight);
  context.limit = 2;
  EXPECT_EQ(ids(loaded("ppl", context)), std::vector(eight.begin(), eight.begin() + 2));
  context.limit = 8;
  context.seed = 5;
  EXPECT_NE(ids(loaded("ppl", context)), eight);
}

TEST(PplTask, EndsWhenTheTextsAreUsedUp) {
  const DataFolder folder;
  TaskContext context = task_context(folder.path());
  context.context = 1000;
  context.limit = 100000;
  const size_t many = loaded("ppl", context).documents.size();
  EXPECT_GT(many, 4u);
  EXPECT_LT(many, 40u);
  context.context = 1u << 20;
  const TaskData whole = loaded("ppl", context);
  ASSERT_EQ(whole.documents.size(), 2u) << "both books whole";
  EXPECT_EQ(whole.documents[0].text, numbered_prose("the first book", 700));
}

TEST(PplTask, ReadsWikiTextToo) {
  const DataFolder folder;
  write_file(folder.path() / "wikitext2/wiki.test.raw", numbered_prose("the wiki", 300));
  TaskContext context = task_context(folder.path());
  context.context = 500;
  context.limit = 3;
  EXPECT_THAT(ids(loaded("ppl", context)), testing::Contains(testing::StartsWith("wikitext2/")));
}

TEST(FidelityTask, TakesTurnsBetweenKindsOfText) {
  const DataFolder folder;
  write_file(
      folder.path() / "longbench/qasper.jsonl",
      nlohmann::json{{"context", numbered_prose("the paper", 200)}, {"language", "en"}}.dump() +
          "\n");
  TaskContext context = task_context(folder.path());
  context.context = 500;
  context.limit = 3;
  const auto names = ids(loaded("fidelity", context));
  ASSERT_EQ(names.size(), 3u);
  EXPECT_THAT(names[0], testing::StartsWith("first/"));
  EXPECT_THAT(names[1], testing::StartsWith("essays/"));
  EXPECT_THAT(names[2], testing::StartsWith("qasper-1/"));
}

TEST(FidelityTask, GoesOnWithoutOneKindAndSaysSo) {
  const DataFolder folder;
  std::filesystem::remove_all(folder.path() / "needle");
  std::filesystem::remove_all(folder.path() / "ruler");
  TaskContext context = task_context(folder.path());
  context.context = 500;
  const TaskData data = loaded("fidelity", context);
  EXPECT_FALSE(data.documents.empty());
  EXPECT_THAT(data.notes, testing::ElementsAre(testing::HasSubstr("PaulGrahamEssays.json")));
}

}  // namespace
}  // namespace reprise::eval
