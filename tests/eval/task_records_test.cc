// Tasks that read records: LongBench and GSM8K.
#include <gmock/gmock.h>

#include "eval/task_fixtures.h"

namespace reprise::eval {
namespace {

const Sample& by_id(const TaskData& data, std::string_view id) {
  for (const Sample& sample : data.samples) {
    if (sample.id == id) return sample;
  }
  ADD_FAILURE() << "no sample " << id;
  return data.samples.at(0);
}

TEST(LongBenchTask, FillsTheOfficialPrompt) {
  const DataFolder folder;
  const TaskData data = loaded("longbench", task_context(folder.path()));
  const Sample& sample = by_id(data, "hotpotqa/id1");
  ASSERT_EQ(sample.messages.size(), 1u);
  // The braces of the record stay as they are.
  EXPECT_EQ(sample.messages[0].content,
            "Read this.\nLong text {input} 1\nQuestion: What is {context}?\nAnswer:");
  EXPECT_TRUE(sample.cut_middle);
  EXPECT_EQ(sample.max_tokens, 32u);
  EXPECT_FALSE(sample.plain);
  EXPECT_EQ(sample.gold, "Bob Dylan");
  EXPECT_EQ(sample.score("It was bob dylan").front().first, "score");
  EXPECT_DOUBLE_EQ(sample.score("Bob Dylan.").front().second, 1.0);
  EXPECT_LT(sample.score("It was bob dylan").front().second, 1.0);
}

TEST(LongBenchTask, FewShotAndCodeHaveNoChatTemplate) {
  const DataFolder folder;
  const TaskData data = loaded("longbench", task_context(folder.path()));
  for (const char* id : {"trec/id1", "samsum/id1", "lcc/id1"}) {
    EXPECT_TRUE(by_id(data, id).plain) << id;
  }
  EXPECT_FALSE(by_id(data, "gov_report/id1").plain);
  EXPECT_EQ(by_id(data, "trec/id1").gold, " Date") << "the prompt ends inside a line";
  EXPECT_EQ(by_id(data, "gov_report/id1").gold, "") << "summaries are not measured by likelihood";
  EXPECT_DOUBLE_EQ(by_id(data, "trec/id1").score("\nDate\nCity").front().second, 1.0);
  EXPECT_DOUBLE_EQ(by_id(data, "trec/id1").score("City").front().second, 0.0);
}

TEST(LongBenchTask, SubtasksTakeTurnsAndAbsentOnesAreTold) {
  const DataFolder folder;
  TaskContext context = task_context(folder.path());
  const TaskData all = loaded("longbench", context);
  EXPECT_EQ(all.samples.size(), 6u);
  EXPECT_EQ(all.samples.back().id, "hotpotqa/id2") << "the only second record";
  EXPECT_EQ(all.notes.size(), 11u);
  EXPECT_THAT(all.notes, testing::Contains(testing::HasSubstr("narrativeqa is left out")));
  context.limit = 4;
  EXPECT_EQ(loaded("longbench", context).samples.size(), 4u);
}

TEST(LongBenchTask, BrokenRecordsAreNamed) {
  const DataFolder folder;
  const auto path = folder.path() / "longbench/trec.jsonl";
  const auto error = [&](std::string_view text) {
    write_file(path, text);
    const auto data = load_task("longbench", task_context(folder.path()));
    EXPECT_FALSE(data) << text;
    return data ? Error{ErrorCode::kUnsupported, ""} : data.error();
  };
  const std::string good =
      R"({"context":"c","input":"i","answers":["a"],"all_classes":["a"],"_id":"x"})";
  EXPECT_EQ(error(good + "\n{\"context\":").code, ErrorCode::kBadJson);
  EXPECT_THAT(error(good + "\n{\"context\":").message, testing::HasSubstr("trec.jsonl line 2"));
  EXPECT_THAT(error(good + "\n" + good).message, testing::HasSubstr("line 2: the _id of an"));
  EXPECT_THAT(error("\"text\"").message, testing::HasSubstr("line 1: expected an object"));
  EXPECT_THAT(error(R"({"context":"c","input":"i","answers":[],"_id":"x"})").message,
              testing::HasSubstr("field 'answers' must be a list"));
  EXPECT_THAT(error(R"({"context":"c","input":"i","answers":["a",1],"_id":"x"})").message,
              testing::HasSubstr("field 'answers' must be a list"));
  EXPECT_THAT(error(R"({"context":"c","input":"i","answers":["a"]})").message,
              testing::HasSubstr("field '_id' must be a string"));
  EXPECT_EQ(error("").code, ErrorCode::kBadValue);
  EXPECT_EQ(error("{\"a\": \"\xff\"}").code, ErrorCode::kBadString);
}

TEST(LongBenchTask, BrokenConfigurationsAreNamed) {
  const DataFolder folder;
  write_file(folder.path() / "longbench/dataset2maxlen.json", "{\"narrativeqa\": -1}");
  const auto lengths = load_task("longbench", task_context(folder.path()));
  ASSERT_FALSE(lengths);
  EXPECT_EQ(lengths.error().code, ErrorCode::kBadValue);
  EXPECT_THAT(lengths.error().message, testing::HasSubstr("dataset2maxlen.json"));
  write_file(folder.path() / "longbench/dataset2prompt.json", "[1]");
  const auto prompts = load_task("longbench", task_context(folder.path()));
  ASSERT_FALSE(prompts);
  EXPECT_THAT(prompts.error().message, testing::HasSubstr("dataset2prompt.json"));
}

TEST(Gsm8kTask, AsksAfterEightWorkedExamples) {
  const DataFolder folder;
  const TaskData data = loaded("gsm8k", task_context(folder.path()));
  ASSERT_EQ(data.samples.size(), 4u);
  const Sample& sample = data.samples[1];
  const std::string& prompt = sample.messages[0].content;
  EXPECT_TRUE(sample.plain);
  EXPECT_EQ(occurrences(prompt, "Q: "), 9u);
  EXPECT_EQ(occurrences(prompt, "The answer is "), 8u);
  EXPECT_THAT(prompt, testing::StartsWith("Q: There are 15 trees"));
  EXPECT_THAT(prompt, testing::EndsWith("\n\nQ: What is 2 thousand and one?\nA:"));
  EXPECT_THAT(sample.stop, testing::ElementsAre("Q:"));
  EXPECT_THAT(sample.references, testing::ElementsAre("2001"));
  EXPECT_EQ(sample.gold, " It is 2000+1 = 2,001. The answer is 2001.");
}

TEST(Gsm8kTask, ScoresStrictlyAndFlexibly) {
  const DataFolder folder;
  const Sample sample = loaded("gsm8k", task_context(folder.path())).samples[0];
  const auto score = [&](std::string_view answer, std::string_view name) {
    for (const auto& [key, value] : sample.score(answer)) {
      if (key == name) return value;
    }
    return -1.0;
  };
  EXPECT_EQ(score("So 1,001. The answer is 1,001.", "strict"), 1.0);
  EXPECT_EQ(score("So it must be 1001", "strict"), 0.0);
  EXPECT_EQ(score("So it must be 1001", "flexible"), 1.0);
  EXPECT_EQ(score("The answer is 1,002.", "flexible"), 0.0);
}

TEST(Gsm8kTask, AnAnswerWithoutANumberIsNamed) {
  const DataFolder folder;
  write_file(folder.path() / "gsm8k/test.jsonl",
             "{\"question\": \"q\", \"answer\": \"#### 1\"}\n"
             "{\"question\": \"q\", \"answer\": \"no number\"}\n");
  const auto data = load_task("gsm8k", task_context(folder.path()));
  ASSERT_FALSE(data);
  EXPECT_EQ(data.error().code, ErrorCode::kBadValue);
  EXPECT_THAT(data.error().message, testing::HasSubstr("test.jsonl line 2"));
}

}  // namespace
}  // namespace reprise::eval
