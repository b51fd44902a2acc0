// Whole runs of made-up tasks on a tiny model: what is written, resumed, counted.
#include "eval/runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "engine/tiny_model.h"
#include "eval/settings.h"

namespace reprise::eval {
namespace {

using nlohmann::ordered_json;
using testing::HasSubstr;
using testing::Not;

std::string text_of(size_t length, uint32_t seed) {
  std::string text;
  for (const int32_t token : test::tiny_prompt(length, seed))
    text += static_cast<char>('i' + token % 9);
  return text;
}

Sample sample_of(const std::string& id, size_t length, uint32_t seed) {
  Sample sample;
  sample.id = id;
  sample.messages = {{"user", text_of(length, seed)}};
  sample.max_tokens = 6;
  sample.gold = "mono";
  sample.references = {"mono"};
  sample.axes = {{"length", static_cast<double>(length)}};
  sample.score = [](std::string_view answer) -> Scores {
    return {{"hit", answer.find('m') != std::string_view::npos ? 1 : 0}};
  };
  return sample;
}

Result<TaskData> load_questions(const TaskContext& context) {
  TaskData data;
  for (uint32_t i = 0; i < 3; ++i)
    data.samples.push_back(
        sample_of("q" + std::to_string(i), 150 + 20 * i, i + static_cast<uint32_t>(context.seed)));
  data.notes = {"made up"};
  return data;
}

Result<TaskData> load_texts(const TaskContext& context) {
  TaskData data;
  for (uint32_t i = 0; i < 2; ++i)
    data.documents.push_back(
        {"d" + std::to_string(i), text_of(300, i + static_cast<uint32_t>(context.seed))});
  return data;
}

Result<TaskData> load_troubles(const TaskContext&) {
  TaskData data;
  data.samples = {sample_of("long", 3000, 1), sample_of("fine", 100, 1)};
  data.documents = {{"short", "x"}};
  return data;
}

Result<TaskData> load_nothing(const TaskContext&) {
  return fail(ErrorCode::kFileNotFound, "no books; put some there");
}

constexpr TaskEntry kTasks[] = {
    {"questions", "", "", "hit", load_questions},    {"texts", "", "", "kl", load_texts},
    {"troubles", "", "", "hit", load_troubles},      {"nothing", "", "", "hit", load_nothing},
    {"fixed", "", "", "hit", load_questions, false},
};

class RunnerTest : public testing::Test {
 protected:
  EvalPlan plan(const std::string& file, std::vector<std::string> tasks = {"questions", "texts"}) {
    EvalPlan plan;
    plan.engine = test::tiny_options();
    plan.eval.out = path(file);
    plan.eval.steps = 20;
    plan.tasks = std::move(tasks);
    plan.policies = {"full", "random:budget=16", "streaming:sink=4,window=12"};
    plan.version = "test";
    plan.known_tasks = kTasks;
    return plan;
  }
  // A name of its own for every test.
  static std::string path(const std::string& file) {
    return test::scratch_folder() + "/" +
           testing::UnitTest::GetInstance()->current_test_info()->name() + file;
  }
  static std::string content(const std::string& name) {
    std::stringstream text;
    text << std::ifstream(path(name), std::ios::binary).rdbuf();
    return text.str();
  }
  static std::vector<ordered_json> lines(const std::string& file) {
    std::vector<ordered_json> lines;
    std::ifstream stream(path(file));
    for (std::string line; std::getline(stream, line);) {
      lines.push_back(ordered_json::parse(line));
      lines.back().erase("time");
      lines.back().erase("timing");
    }
    return lines;
  }
  static size_t count(const std::vector<ordered_json>& lines, const char* type) {
    return static_cast<size_t>(std::count_if(
        lines.begin(), lines.end(), [&](const auto& line) { return line["type"] == type; }));
  }
  static EvalReport run(const EvalPlan& plan) {
    auto report = run_eval(plan);
    EXPECT_TRUE(report) << report.error().message;
    return report ? std::move(*report) : EvalReport{};
  }
};

TEST_F(RunnerTest, WritesRunsSamplesStepsAndSummaries) {
  const EvalReport report = run(plan("a"));
  const auto written = lines("a");
  EXPECT_EQ(count(written, "run"), 3u);
  EXPECT_EQ(count(written, "sample"), 3u * 3 + 2 * 3);
  EXPECT_EQ(count(written, "step"), 2u * 3 * 20);
  EXPECT_EQ(count(written, "summary"), 6u);
  EXPECT_THAT(report.notes, testing::ElementsAre("questions: made up"));
  EXPECT_EQ(report.failed, 0u);
  ASSERT_EQ(report.rows.size(), 6u);

  const auto& full = report.rows[3].summary;  // of texts
  EXPECT_EQ(full.metric, "kl");
  EXPECT_EQ(full.score, 0.0);
  EXPECT_EQ(full.high, 0.0);
  EXPECT_DOUBLE_EQ(find_number(full.counters, "keys_share"), 1);
  EXPECT_EQ(find_number(full.counters, "kv_bytes_per_token"),
            find_number(full.counters, "full_kv_bytes_per_token"));
  const auto& random = report.rows[4].summary;
  EXPECT_GT(random.score, 0.0);
  EXPECT_LT(find_number(random.counters, "keys_share"), 0.2);
  EXPECT_LT(find_number(random.counters, "kv_bytes_per_token"),
            0.2 * find_number(random.counters, "full_kv_bytes_per_token"));
  EXPECT_THAT(eval_markdown(report), HasSubstr("| texts | full | 2 | 0 | kl | 0.0000 |"));
  EXPECT_EQ(eval_json(report)["rows"][4]["policy"], "random:budget=16");
}

TEST_F(RunnerTest, LengthsThatATaskDoesNotTakeAreTold) {
  EvalPlan with = plan("a", {"fixed"});
  with.lengths = {64};
  EXPECT_THAT(run(with).notes, testing::Contains(testing::HasSubstr("--lengths is not used")));
}

TEST_F(RunnerTest, TheFileIsReadBackAndTwoRunsAreEqual) {
  for (const char* name : {"a", "b"}) {
    EvalPlan timed = plan(name);
    timed.policies.emplace_back("attention_predictor:budget=64");  // has times among its figures
    run(timed);
  }
  EXPECT_EQ(lines("a"), lines("b"));
  RunFile file;
  ASSERT_TRUE(read_run_file(path("a"), file));
  ASSERT_EQ(file.runs.size(), 4u);
  for (const SampleRecord& sample : file.samples)
    EXPECT_EQ(find_number(sample.timing, "forecast") > 0, sample.run == file.runs[3].id);
  EXPECT_EQ(file.runs[1].policy, "random:budget=16");
  EXPECT_EQ(file.runs[0].scope, "decode");
  EXPECT_EQ(file.runs[0].data.size(), 2u);
  EXPECT_EQ(file.runs[0].model_sha256.size(), 16u);
  EXPECT_NE(file.runs[0].id, file.runs[1].id);
}

TEST_F(RunnerTest, FullIsTheReferenceOfTextsAlsoWhenNotAskedFor) {
  EvalPlan all = plan("a", {"texts"}), one = plan("b", {"texts"});
  one.policies = {"random:budget=16"};
  const EvalReport both = run(all), alone = run(one);
  ASSERT_EQ(alone.rows.size(), 1u);
  EXPECT_EQ(alone.rows[0].summary.score, both.rows[1].summary.score);
  EXPECT_EQ(count(lines("b"), "run"), 1u);
}

TEST_F(RunnerTest, AStoppedRunKeepsItsSamplesAndResumesToTheSameFile) {
  run(plan("whole"));
  const auto whole = lines("whole");
  // Stopped again and again, after another sample is done each time.
  EvalPlan again = plan("parts");
  again.eval.resume = true;
  size_t stops = 0;
  for (;; ++stops) {
    uint64_t first = 0;
    bool started = false;
    const auto report = run_eval(again, [&](const Progress& progress) {
      if (progress.stage != "eval") return true;
      if (!started) first = progress.done;
      started = true;
      return progress.done < first + 3;
    });
    const auto parts = lines("parts");
    if (report) break;
    ASSERT_EQ(report.error().code, ErrorCode::kCancelled);
    EXPECT_EQ(count(parts, "sample"), 3 * (stops + 1));
    EXPECT_EQ(count(parts, "summary"), 0u);
    ASSERT_LT(stops, 10u);
  }
  EXPECT_EQ(stops, 4u);
  EXPECT_EQ(lines("parts"), whole);
  run(again);
  EXPECT_EQ(lines("parts"), whole) << "nothing is left to do";
}

TEST_F(RunnerTest, WhatACrashCutShortIsDoneAgain) {
  run(plan("whole"));
  std::ifstream file(path("whole"), std::ios::binary);
  std::stringstream content;
  content << file.rdbuf();
  const std::string text = content.str();
  EvalPlan again = plan("cut");
  again.eval.resume = true;
  const size_t step = text.find("{\"type\":\"step\"", text.size() / 2);
  for (const size_t size : {step + 5, text.find('\n', step) + 1, text.find('\n') / 2}) {
    std::ofstream(path("cut"), std::ios::binary | std::ios::trunc) << text.substr(0, size);
    run(again);
    EXPECT_EQ(lines("cut"), lines("whole")) << size;
  }
}

TEST_F(RunnerTest, WhatIsNoRunFileStaysAsItIs) {
  EvalPlan again = plan("notes");
  again.eval.resume = true;
  for (const std::string notes : {"my notes", "my notes\nof today"}) {
    std::ofstream(path("notes"), std::ios::binary | std::ios::trunc) << notes;
    const auto refused = run_eval(again);
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message, HasSubstr("is no run file"));
    EXPECT_EQ(content("notes"), notes);
  }
  EvalPlan both = plan("run");
  both.eval.prompts = both.eval.out;
  const auto refused = run_eval(both);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("are one file"));
  EXPECT_FALSE(std::ifstream(path("run")).good());
}

TEST_F(RunnerTest, PromptsReplaceNothingElse) {
  const std::string text = "a book\n";
  std::ofstream(path("book"), std::ios::binary) << text;
  EvalPlan over = plan("run");
  over.eval.prompts = path("book");
  for (const bool resume : {false, true}) {
    over.eval.resume = resume;
    const auto refused = run_eval(over);
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message, HasSubstr("exists; choose another --prompts"));
    EXPECT_EQ(content("book"), text);
  }
  over.eval.prompts = path("no folder/prompts");
  EXPECT_FALSE(run_eval(over));
  EXPECT_FALSE(std::ifstream(path("run")).good());
}

TEST_F(RunnerTest, AResumedRunWritesEveryPrompt) {
  EvalPlan again = plan("a");
  again.eval.resume = true;
  again.eval.prompts = path("prompts");
  run(again);
  const auto prompts = lines("prompts");
  EXPECT_EQ(prompts.size(), 5u);  // three questions, two texts
  run(again);
  EXPECT_EQ(lines("prompts"), prompts);
}

TEST_F(RunnerTest, ResumeAddsPoliciesAndRefusesOtherRuns) {
  EvalPlan first = plan("a", {"questions"});
  first.policies = {"full"};
  run(first);
  const auto again = run_eval(first);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(again.error().message, HasSubstr("--resume"));

  first.eval.resume = true;
  first.policies = {"full", "random:budget=16"};
  EXPECT_EQ(run(first).rows.size(), 2u);
  EXPECT_EQ(count(lines("a"), "sample"), 6u);

  const auto before = lines("a");
  for (int what = 0; what < 4; ++what) {
    EvalPlan other = first;
    if (what == 0) other.eval.seed = 99;
    if (what == 1) other.eval.scope = "tail:8";
    if (what == 2) other.tasks = {"texts"};
    if (what == 3) other.engine.ctx = 100;
    const auto refused = run_eval(other);
    ASSERT_FALSE(refused) << what;
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(refused.error().message, HasSubstr("full"));
  }
  EXPECT_EQ(lines("a"), before);
}

TEST_F(RunnerTest, FailuresAreRecordedAndCounted) {
  EvalPlan troubles = plan("a", {"troubles", "nothing"});
  const EvalReport report = run(troubles);
  EXPECT_EQ(report.failed, 1u + 2 + 3) << "streaming reads what is too long for the others";
  EXPECT_THAT(report.first_failure, HasSubstr("nothing: no books"));
  size_t failed = 0;
  for (const ordered_json& line : lines("a")) {
    if (line["type"] != "sample" || line["finish"] != "failed") continue;
    ++failed;
    EXPECT_TRUE(line["id"] == "long" || line["id"] == "short");
    EXPECT_FALSE(line["error"].get<std::string>().empty());
  }
  EXPECT_EQ(failed, 5u);
  EXPECT_EQ(report.rows[0].summary.failed, 2u);
  EXPECT_EQ(report.rows[0].summary.n, 1u);
}

TEST_F(RunnerTest, NoMemoryIsAFailureOfTheSample) {
  EvalPlan small = plan("a", {"questions"});
  small.engine.kv_type = "bf16";
  small.engine.kv_memory = 160 << 10;  // less than the prompts' KV
  const EvalReport report = run(small);
  EXPECT_GT(report.failed, 0u);
  EXPECT_THAT(report.first_failure, HasSubstr("memory"));
}

TEST_F(RunnerTest, LengthsReadTheBeginningsOfTexts) {
  EvalPlan lengths = plan("a", {"texts"});
  lengths.lengths = {200, 100};
  const EvalReport report = run(lengths);
  EXPECT_EQ(report.rows[0].summary.n, 4u);
  std::vector<std::string> ids;
  for (const ordered_json& line : lines("a")) {
    if (line["type"] != "sample") continue;
    const auto id = line["id"].get<std::string>();
    if (ids.empty() || ids.back() != id) ids.push_back(id);
  }
  EXPECT_THAT(ids, testing::ElementsAre("d0@100", "d0@200", "d1@100", "d1@200"));
}

TEST_F(RunnerTest, LengthsBeyondTheContextAreRefused) {
  EvalPlan lengths = plan("a", {"texts"});
  lengths.lengths = {100, 3000};
  lengths.engine.ctx = 2000;
  const auto report = run_eval(lengths);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, ErrorCode::kContextExceeded);
  EXPECT_THAT(report.error().message, HasSubstr("length 3000 does not fit"));
}

TEST_F(RunnerTest, LengthsThatATextDoesNotHaveAreNotReadAgain) {
  EvalPlan lengths = plan("a", {"texts"});
  lengths.lengths = {200, 500, 1000};  // the texts have 300 tokens
  uint64_t done = 0, total = 0;
  const auto report = run_eval(lengths, [&](const Progress& progress) {
    done = progress.stage == "eval" ? progress.done : done;
    total = progress.stage == "eval" ? progress.total : total;
    return true;
  });
  ASSERT_TRUE(report);
  EXPECT_EQ(report->rows[0].summary.n, 4u);
  EXPECT_EQ(total, 2u * 3 * 3);
  EXPECT_EQ(done, total - 2 * 3) << "while the last reading was computed";
  const auto written = lines("a");
  EXPECT_EQ(count(written, "sample"), 2u * 2 * 3);
  for (const ordered_json& line : written)
    if (line["type"] == "sample") {
      EXPECT_THAT(line["id"].get<std::string>(), Not(HasSubstr("@1000")));
    }
}

TEST_F(RunnerTest, WrongPlansAreToldBeforeAnythingIsWritten) {
  std::vector<EvalPlan> wrong(5, plan("a"));
  wrong[0].tasks = {"qestions"};
  wrong[1].tasks.clear();
  wrong[2].eval.scope = "everything";
  wrong[3].policies = {"qest"};
  wrong[4].tasks = {"nothing"};
  const ErrorCode codes[] = {ErrorCode::kInvalidArgument, ErrorCode::kInvalidArgument,
                             ErrorCode::kInvalidArgument, ErrorCode::kUnknownPolicy,
                             ErrorCode::kFileNotFound};
  for (size_t i = 0; i < wrong.size(); ++i) {
    const auto report = run_eval(wrong[i]);
    ASSERT_FALSE(report) << i;
    EXPECT_EQ(report.error().code, codes[i]) << i;
  }
  EXPECT_THAT(run_eval(wrong[0]).error().message, HasSubstr("did you mean questions?"));
  EXPECT_FALSE(std::filesystem::exists(path("a")));
}

}  // namespace
}  // namespace reprise::eval
