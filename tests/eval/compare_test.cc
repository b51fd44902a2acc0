#include "eval/compare.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "eval/equal_bytes.h"
#include "eval/made_up_runs.h"
#include "eval/paired.h"

namespace reprise::eval::test {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

Comparison compared(const std::vector<RunFile>& files, const CompareOptions& options = {}) {
  const auto settings = join_runs(files, options.join);
  if (!settings) ADD_FAILURE() << settings.error().message;
  return compare(*settings, options).value();
}

const TaskComparison& find(const Comparison& comparison, std::string_view task,
                           std::string_view metric) {
  for (const TaskComparison& one : comparison.tasks)
    if (one.task == task && one.metric == metric) return one;
  throw std::runtime_error(fmt::format("no table of {} by {}", task, metric));
}

const Row& find(const TaskComparison& task, std::string_view policy) {
  for (const Row& row : task.rows)
    if (row.policy == policy) return row;
  throw std::runtime_error(fmt::format("no row of {}", policy));
}

// One task with a score per sample, at a number of bytes.
RunFile scored(const std::string& policy, const std::vector<double>& scores, double bytes,
               const std::string& metric = "f1") {
  RunFile file;
  file.path = policy + ".jsonl";
  RunRecord run;
  run.id = policy;
  run.policy = policy;
  file.runs = {run};
  for (size_t i = 0; i < scores.size(); ++i) {
    SampleRecord sample;
    sample.run = policy;
    sample.task = "t";
    sample.id = std::to_string(i);
    sample.finish = "end";
    sample.scores = {{metric, scores[i]}};
    sample.counters = {{"kv_bytes_per_token", bytes}, {"full_kv_bytes_per_token", 1000}};
    file.samples.push_back(sample);
  }
  return file;
}

std::vector<double> ramp(size_t n, double from = 0) {
  std::vector<double> values;
  for (size_t i = 0; i < n; ++i)
    values.push_back(from + 0.3 * std::sin(static_cast<double>(7 * i)) + 0.3);
  return values;
}

TEST(Compare, FullAgainstFullIsEqualEverywhere) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const MadeUp small{seed, 3, 600, 2, 6};
    const RunFile a = made_up_run({"full"}, small);
    RunFile b = a;
    b.path = "other.jsonl";
    const Comparison comparison = compared({a, b}, {.all_metrics = true});
    EXPECT_GE(comparison.tasks.size(), 4u);
    for (const TaskComparison& task : comparison.tasks) {
      ASSERT_EQ(task.rows.size(), 2u);
      for (const Row& row : task.rows) {
        EXPECT_EQ(row.difference.verdict, Verdict::kEqual) << task.task << " " << row.policy;
        EXPECT_EQ(row.difference.value.mean, 0);
        EXPECT_EQ(row.difference.p_holm, 1);
        EXPECT_TRUE(row.pareto);
      }
    }
  }
}

TEST(Compare, PlantedDifferencesAreFound) {
  const Comparison comparison =
      compared({made_up_file(made_up_policies(), {.documents = 6, .positions = 3000})});
  const TaskComparison& ppl = find(comparison, "ppl", "nll");
  EXPECT_TRUE(ppl.lower_is_better);
  // The loss is 0.35 (0.5 + x) on average over the positions from 1024 on.
  const Row& streaming = find(ppl, "streaming:window=512");
  EXPECT_NEAR(streaming.difference.value.mean, 0.35 * (3000.0 - 1024) / 3000, 0.01);
  EXPECT_LT(streaming.difference.value.low, streaming.difference.value.mean);
  EXPECT_GT(streaming.difference.value.low, 0);
  EXPECT_EQ(streaming.difference.verdict, Verdict::kWorse);
  EXPECT_LT(streaming.difference.p_holm, 0.05);
  EXPECT_EQ(find(ppl, "quest:block=16,budget=1024").difference.verdict, Verdict::kNonInferior);

  const TaskComparison& hit = find(comparison, "needle", "hit");
  EXPECT_FALSE(hit.lower_is_better);
  EXPECT_EQ(find(hit, "random:budget=512").difference.verdict, Verdict::kWorse);
  EXPECT_LT(find(hit, "random:budget=512").difference.value.high, 0);
  EXPECT_EQ(find(comparison, "needle", "nll").rows.size(), 7u) << "nll is shown beside hit";
  for (const Row& row : find(comparison, "longbench", "score").rows)
    EXPECT_EQ(row.difference.verdict, Verdict::kEqual) << "nothing was planted there";
}

TEST(Compare, NumbersAreThoseOfTheRecords) {
  const std::vector<double> a = ramp(40), b = ramp(40, 0.1);
  const Comparison comparison = compared({scored("full", a, 1000), scored("x", b, 250)});
  const TaskComparison& task = find(comparison, "t", "f1");
  const auto mean = [](const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum / static_cast<double>(values.size());
  };
  EXPECT_DOUBLE_EQ(find(task, "full").score.mean, mean(a));
  EXPECT_DOUBLE_EQ(find(task, "x").score.mean, mean(b));
  EXPECT_NEAR(find(task, "x").difference.value.mean, 0.1, 1e-12);
  EXPECT_EQ(find(task, "x").difference.n, 40u);
  EXPECT_EQ(find(task, "x").difference.verdict, Verdict::kBetter);
  EXPECT_EQ(find(task, "x").cost.bytes(), 250);
  EXPECT_EQ(find(task, "x").cost.reduction(), 4);
  EXPECT_THAT(find(task, "full").dominated_by, ElementsAre("x"));
}

TEST(Compare, BytesAreThoseOfTheSamplesThatHaveTheScore) {
  RunFile full = scored("full", ramp(8), 1000), few = scored("few", ramp(8), 100);
  for (RunFile* file : {&full, &few}) {
    for (size_t i = 0; i < 4; ++i) {  // longer texts, without a gold answer
      file->samples[i].counters[0].second *= 3;
      file->samples[i].scores.clear();
    }
  }
  const Comparison comparison = compared({full, few});
  EXPECT_EQ(find(find(comparison, "t", "f1"), "few").cost.bytes(), 100);
}

TEST(Compare, HolmTakesBackWhatManyTestsWouldFind) {
  // One policy of eight gains a little: alone significant, not among eight.
  std::vector<double> base(30, 0.0), gain(30, 0.0);
  for (size_t i = 0; i < 7; ++i) gain[i] = 1;  // McNemar: 7 against 0, p = 0.0156
  const RunFile full = scored("full", base, 1000), lucky = scored("lucky", gain, 500);
  const Row alone = find(find(compared({full, lucky}), "t", "f1"), "lucky");
  EXPECT_NEAR(alone.difference.p, 0.015625, 1e-12);
  EXPECT_EQ(alone.difference.verdict, Verdict::kBetter);
  std::vector<RunFile> files{full, lucky};
  for (int i = 0; i < 7; ++i) files.push_back(scored("other" + std::to_string(i), base, 500));
  const Row among = find(find(compared(files), "t", "f1"), "lucky");
  EXPECT_NEAR(among.difference.p_holm, 8 * 0.015625, 1e-12);
  EXPECT_EQ(among.difference.verdict, Verdict::kNonInferior);
}

TEST(Compare, OneSampleProvesNothing) {
  const Comparison comparison =
      compared({scored("full", {0.5}, 1000), scored("x", {0.9}, 10), scored("y", {0.5}, 10)});
  EXPECT_EQ(find(comparison.tasks[0], "x").difference.verdict, Verdict::kInconclusive);
  EXPECT_EQ(find(comparison.tasks[0], "y").difference.verdict, Verdict::kEqual);
}

// A sample of each id.
RunFile named(RunFile file, const std::vector<std::string>& ids) {
  for (size_t i = 0; i < ids.size(); ++i) file.samples.at(i).id = ids[i];
  return file;
}

// So many samples of each subtask.
std::vector<std::string> subtask_ids(const std::map<std::string, size_t>& sizes) {
  std::vector<std::string> ids;
  for (const auto& [subtask, size] : sizes)
    for (size_t i = 0; i < size; ++i) ids.push_back(fmt::format("{}/{}", subtask, i));
  return ids;
}

TEST(Compare, SubtasksCountAlikeInTheMean) {
  const RunFile file = named(scored("full", {1, 1, 1, 0}, 1000), {"a/1", "a/2", "a/3", "b/1"});
  EXPECT_DOUBLE_EQ(compared({file}).tasks[0].rows[0].score.mean, 0.5);
}

TEST(Compare, SizesOfSubtasksAddNoVariance) {
  const auto ids = subtask_ids({{"a", 10}, {"b", 4}, {"c", 4}, {"d", 4}});
  const RunFile full = named(scored("full", std::vector<double>(22, 0.5), 1000), ids);
  const RunFile less = named(scored("x", std::vector<double>(22, 0.48), 500), ids);
  const Comparison comparison = compared({full, less});
  const Row& row = find(comparison.tasks[0], "x");
  EXPECT_NEAR(row.score.low, 0.48, 1e-12);
  EXPECT_NEAR(row.score.high, 0.48, 1e-12);
  EXPECT_NEAR(row.difference.value.low, -0.02, 1e-12);
  EXPECT_NEAR(row.difference.value.high, -0.02, 1e-12);
  EXPECT_EQ(row.difference.verdict, Verdict::kWorse);
}

TEST(Compare, HitsOfUnequalSubtasksHaveWilsonsInterval) {
  const auto ids = subtask_ids({{"a", 10}, {"b", 4}, {"c", 4}, {"d", 4}});
  const RunFile all = named(scored("full", std::vector<double>(22, 1.0), 1000), ids);
  const Interval score = compared({all}).tasks[0].rows[0].score;
  // Means of 10, 4, 4 and 4 samples tell the mean of the four as well as 16 / 0.85 samples would.
  const Interval expected = wilson_interval(16 / 0.85, 16 / 0.85);
  EXPECT_DOUBLE_EQ(score.mean, 1);
  EXPECT_NEAR(score.low, expected.low, 1e-12);
  EXPECT_DOUBLE_EQ(score.high, 1);
}

// Eight texts with a level each, whose readings hardly differ from it.
RunFile readings(const std::string& policy, double scale, size_t lengths) {
  std::vector<double> values;
  std::vector<std::string> ids;
  const std::vector<double> levels = ramp(8);
  for (size_t text = 0; text < levels.size(); ++text) {
    for (size_t length = 1; length <= lengths; ++length) {
      values.push_back(scale * levels[text] + 1e-6 * static_cast<double>(length));
      ids.push_back(fmt::format("book/{}@{}", text, 1024 * length));
    }
  }
  RunFile file = named(scored(policy, values, 1000, "kl_p95"), ids);
  for (const SampleRecord& sample : file.samples)
    for (uint64_t position = 0; position < 8; ++position)
      file.steps.push_back({policy, "t", sample.id, position, {{"nll", sample.scores[0].second}}});
  return file;
}

TEST(Compare, ReadingsOfOneTextAreOneUnit) {
  const auto row = [](size_t lengths, std::string_view metric) {
    const Comparison comparison = compared(
        {readings("full", 1, lengths), readings("x", 1.5, lengths)}, {.all_metrics = true});
    return find(find(comparison, "t", metric), "x");
  };
  const Row once = row(1, "kl_p95"), often = row(4, "kl_p95");
  EXPECT_EQ(often.difference.n, 32u);
  EXPECT_EQ(often.difference.units, 8u);
  EXPECT_NEAR(often.score.low, once.score.low, 2e-3);
  EXPECT_NEAR(often.score.high, once.score.high, 2e-3);
  EXPECT_NEAR(often.difference.value.high, once.difference.value.high, 2e-3);
  EXPECT_NEAR(often.difference.p, once.difference.p, 1e-12);

  const auto by_steps = [](size_t lengths) {
    const RunFile files[] = {readings("full", 1, lengths), readings("x", 1.5, lengths)};
    const Settings settings = *join_runs(files, {});
    Scored own[2];
    for (size_t i = 0; i < 2; ++i) own[i].steps = settings.all[i].find("t")->step_values("nll");
    return paired_difference(own[1], own[0], true, {});
  };
  EXPECT_EQ(by_steps(4).units, 8u);
  EXPECT_NEAR(by_steps(4).p, by_steps(1).p, 1e-12);

  RunFile steps = readings("full", 1, 4);
  const StepValues values = join_runs({&steps, 1}, {})->all[0].find("t")->step_values("nll");
  EXPECT_EQ(values.size(), 32u);
  ASSERT_EQ(steps_by_text(values).size(), 8u);
  EXPECT_EQ(steps_by_text(values)[0].size(), 4u * 8);
  EXPECT_EQ(steps_by_text(values, 2, 4)[0].size(), 4u * 2);
  EXPECT_THAT(steps_by_text(values, 100), IsEmpty());
}

TEST(Compare, BooksOfTextsAreNoSubtasks) {
  RunFile file = readings("full", 1, 1);
  file.samples[7].id = "other/0@1024";  // a book of one slice counts as one of eight
  const Settings settings = *join_runs({&file, 1}, {});
  const TaskRecords& records = *settings.all[0].find("t");
  EXPECT_FALSE(records.has_subtasks());
  double sum = 0;
  for (const auto& [id, value] : records.values("kl_p95")) sum += value;
  EXPECT_DOUBLE_EQ(score_of(records.scored("kl_p95"), 1).mean, sum / 8);
  file.steps.clear();
  const Settings answers = *join_runs({&file, 1}, {});
  EXPECT_TRUE(answers.all[0].find("t")->has_subtasks());
  EXPECT_NE(score_of(answers.all[0].find("t")->scored("kl_p95"), 1).mean, sum / 8);
}

TEST(Compare, RunsWithoutSamplesAreRefused) {
  RunFile file = readings("full", 1, 1);
  file.samples.clear();
  const auto settings = join_runs({&file, 1}, {});
  ASSERT_FALSE(settings);
  EXPECT_THAT(settings.error().message, testing::HasSubstr("no samples yet"));
}

TEST(Compare, DominatedSettings) {
  const Comparison comparison = compared({
      scored("full", std::vector<double>(5, 0.9), 1000),
      scored("best", std::vector<double>(5, 0.9), 500),
      scored("worse", std::vector<double>(5, 0.8), 500),
      scored("small", std::vector<double>(5, 0.2), 100),
      scored("twin", std::vector<double>(5, 0.9), 500),
  });
  const TaskComparison& task = comparison.tasks[0];
  EXPECT_THAT(find(task, "full").dominated_by, ElementsAre("best", "twin"));
  EXPECT_THAT(find(task, "worse").dominated_by, ElementsAre("best", "twin"));
  for (const char* front : {"best", "small", "twin"}) {
    EXPECT_TRUE(find(task, front).pareto) << front;
    EXPECT_THAT(find(task, front).dominated_by, IsEmpty());
  }
  // A smaller nll is better.
  const Comparison nll = compared({scored("full", std::vector<double>(5, 2.0), 1000, "nll"),
                                   scored("x", std::vector<double>(5, 2.5), 1000, "nll")});
  EXPECT_THAT(find(nll.tasks[0], "x").dominated_by, ElementsAre("full"));
}

TEST(Compare, BytesThatWereNotCountedDominateNobody) {
  RunFile unknown = scored("unknown", std::vector<double>(5, 1.0), 0);
  for (SampleRecord& sample : unknown.samples) sample.counters.clear();
  const Comparison comparison =
      compared({scored("full", std::vector<double>(5, 0.5), 1000), unknown});
  EXPECT_TRUE(find(comparison.tasks[0], "full").pareto);
  EXPECT_FALSE(find(comparison.tasks[0], "unknown").pareto);
  EXPECT_TRUE(std::isnan(find(comparison.tasks[0], "unknown").cost.bytes()));
}

TEST(EqualBytes, NearestInterpolatedOrAbsent) {
  const std::vector<double> scores(6, 0.5);
  const std::vector<RunFile> files{scored("full", std::vector<double>(6, 1.0), 1000),
                                   scored("random:b=1", scores, 200),
                                   scored("near:b=1", std::vector<double>(6, 0.7), 203),
                                   scored("wide:b=1", std::vector<double>(6, 0.2), 100),
                                   scored("wide:b=2", std::vector<double>(6, 0.8), 500),
                                   scored("big:b=1", scores, 800)};
  const Comparison comparison = compared(files, {.equal_bytes = true});
  const auto& groups = comparison.tasks.at(0).groups;
  ASSERT_EQ(groups.size(), 1u) << "one setting of random";
  EXPECT_EQ(groups[0].point, "random:b=1");
  EXPECT_EQ(groups[0].bytes, 200);
  EXPECT_THAT(groups[0].absent, ElementsAre("full", "big"));
  ASSERT_EQ(groups[0].rows.size(), 3u);
  const EqualBytesRow &random = groups[0].rows[0], &near = groups[0].rows[1],
                      &wide = groups[0].rows[2];
  EXPECT_FALSE(random.to_random.has_value());
  EXPECT_EQ(near.setting, "near:b=1");
  EXPECT_FALSE(near.interpolated);
  EXPECT_EQ(near.bytes, 203);
  EXPECT_NEAR(near.to_random->value.mean, 0.2, 1e-12);
  EXPECT_EQ(wide.setting, "wide:b=1 .. wide:b=2");
  EXPECT_TRUE(wide.interpolated);
  EXPECT_NEAR(wide.score, 0.2 + 0.25 * 0.6, 1e-12) << "a quarter of the way from 100 to 500";
  EXPECT_NEAR(wide.to_reference.value.mean, 0.35 - 1, 1e-12);

  CompareOptions strict{.equal_bytes = true};
  strict.tolerance = 0.01;
  EXPECT_THAT(compared(files, strict).tasks.at(0).groups.at(0).absent,
              ElementsAre("full", "near", "big"));
  EXPECT_THAT(compared(files).tasks.at(0).groups, IsEmpty()) << "only when asked for";
}

TEST(EqualBytes, IndexBytesCountToo) {
  RunFile file = scored("quest", {1, 1}, 200);
  for (SampleRecord& sample : file.samples)
    sample.counters.emplace_back("index_bytes_read_per_token", 50);
  const Comparison comparison = compared({scored("full", {1, 1}, 1000), file});
  EXPECT_EQ(find(comparison.tasks[0], "quest").cost.bytes(), 250);
  EXPECT_EQ(find(comparison.tasks[0], "quest").cost.reduction(), 4);
}

TEST(EqualBytes, TextsAreComparedStepByStep) {
  // Six texts alone could not tell; their blocks do.
  const Comparison comparison = compared({made_up_file(made_up_policies())}, {.equal_bytes = true});
  const TaskComparison& ppl = find(comparison, "ppl", "nll");
  ASSERT_EQ(ppl.groups.size(), 2u);
  for (const EqualBytesGroup& group : ppl.groups)
    for (const EqualBytesRow& row : group.rows)
      if (row.to_random) {
        EXPECT_EQ(row.to_random->verdict, Verdict::kBetter) << row.setting;
      }
  const EqualBytesRow& quest = ppl.groups[1].rows.back();
  ASSERT_TRUE(quest.interpolated);
  EXPECT_GT(quest.to_reference.value.mean,
            find(ppl, "quest:block=16,budget=1024").difference.value.mean);
  EXPECT_LT(quest.to_reference.value.mean,
            find(ppl, "quest:block=16,budget=512").difference.value.mean);
}

TEST(EqualBytes, ControlsAreSpokenOf) {
  const std::vector<double> base = ramp(40), better = ramp(40, 0.2);
  const RunFile full = scored("full", better, 1000), random = scored("random", base, 200);
  const auto notes = [&](const RunFile& file) {
    return compared({full, random, file}).tasks.at(0).notes;
  };
  EXPECT_THAT(notes(scored("good", better, 200)), IsEmpty());
  EXPECT_THAT(notes(scored("useless", base, 200)),
              Contains(HasSubstr("useless is not shown to beat random at equal bytes")));
  EXPECT_THAT(notes(scored("other", better, 700)),
              Contains(HasSubstr("other: no run of random reads as many bytes")));
  const RunFile dense = scored("dense:first=2+random:budget=9", base, 300);
  EXPECT_THAT(compared({full, dense, scored("dense:first=2+x", better, 300)}).tasks.at(0).notes,
              IsEmpty());
  EXPECT_THAT(compared({full, scored("good", better, 200)}).tasks.at(0).notes,
              Contains(HasSubstr("random was not run")));
}

TEST(Join, RefusesWhatCannotBeCompared) {
  const MadeUp small{1, 1, 10, 1, 2};
  const RunFile full = made_up_run({"full"}, small);
  const auto refusal = [&](const MadeUp& other) {
    RunFile file = made_up_run({"quest"}, other);
    file.path = "other.jsonl";
    const std::vector<RunFile> files{full, file};
    EXPECT_TRUE(join_runs(files, {.allow_different = true}));
    EXPECT_THAT(join_runs(files, {.allow_different = true})->notes, Not(IsEmpty()));
    const auto settings = join_runs(files, {});
    EXPECT_FALSE(settings);
    EXPECT_EQ(settings.error().code, ErrorCode::kInvalidArgument);
    return settings.error().message;
  };
  MadeUp other = small;
  other.model_sha256 = "feed";
  EXPECT_THAT(refusal(other), HasSubstr("feed"));
  EXPECT_THAT(refusal(other), HasSubstr("quest (other.jsonl)"));
  other = small;
  other.scope = "tail:64";
  EXPECT_THAT(refusal(other), HasSubstr("scopes decode and tail:64"));
  other = small;
  other.data_hash = "d9";
  EXPECT_THAT(refusal(other), HasSubstr("data of ppl: d1 and d9"));
  EXPECT_TRUE(join_runs(std::vector<RunFile>{full, made_up_run({"quest"}, small)}, {}));
}

TEST(Join, RefusesOtherKvTypesAndPromptsOfOtherLengths) {
  const MadeUp small{1, 1, 10, 1, 2};
  const auto joined = [&](const RunFile& other, bool allow_different) {
    return join_runs(std::vector<RunFile>{made_up_run({"full"}, small), other},
                     {.allow_different = allow_different});
  };
  RunFile other = made_up_run({"quest"}, small);
  other.runs[0].kv_type = "q8_0";
  EXPECT_THAT(joined(other, false).error().message, HasSubstr("KV types bf16 and q8_0"));
  EXPECT_THAT(joined(other, true)->notes, Contains(HasSubstr("KV types bf16 and q8_0")));

  other = made_up_run({"quest"}, small);
  SampleRecord& cut = other.samples.back();
  cut.prompt_tokens -= 100;
  EXPECT_THAT(joined(other, false).error().message, HasSubstr("prompts of longbench " + cut.id));
  EXPECT_THAT(joined(other, true)->notes, Contains(HasSubstr("as with another --ctx")));
  cut.prompt_tokens = 0;
  cut.finish = "failed";
  EXPECT_TRUE(joined(other, false)) << "a sample that failed has no prompt";
}

TEST(Join, ReferenceByFamilyOrSpec) {
  const RunFile file = made_up_file(made_up_policies(), {1, 1, 10, 1, 2});
  const std::vector<RunFile> files{file};
  EXPECT_EQ(join_runs(files, {.reference = "quest"})->ref().label, "quest:block=16,budget=512");
  EXPECT_EQ(join_runs(files, {.reference = "random:budget=1024"})->ref().label,
            "random:budget=1024");
  const auto unknown = join_runs(files, {.reference = "h2o"});
  ASSERT_FALSE(unknown);
  EXPECT_THAT(unknown.error().message, HasSubstr("streaming:window=512"));
  EXPECT_FALSE(join_runs(std::vector<RunFile>{}, {}));
}

TEST(Join, ShardsBecomeOneSettingAndRepeatedRunsTwo) {
  const RunFile whole = scored("full", ramp(10), 1000);
  RunFile first = whole, second = whole;
  first.samples.resize(4);
  second.samples.erase(second.samples.begin(), second.samples.begin() + 4);
  const auto merged = join_runs(std::vector<RunFile>{first, second}, {});
  ASSERT_TRUE(merged);
  ASSERT_EQ(merged->all.size(), 1u);
  EXPECT_EQ(merged->all[0].find("t")->samples.size(), 10u);
  const auto repeated = join_runs(std::vector<RunFile>{whole, whole}, {});
  ASSERT_TRUE(repeated);
  ASSERT_EQ(repeated->all.size(), 2u);
  EXPECT_NE(repeated->all[0].label, repeated->all[1].label);
}

// Tasks that were run one by one, each into a file, have a reference in each.
TEST(Join, RunsOfOtherTasksBecomeOneSetting) {
  const auto of = [](const std::string& policy, const std::string& task, const std::string& id) {
    RunFile file = scored(policy, ramp(10), 1000);
    file.path = task + ".jsonl";
    file.runs[0].id = id;
    file.runs[0].data = {{task, "hash of " + task}};
    for (SampleRecord& sample : file.samples) {
      sample.task = task;
      sample.run = id;
    }
    return file;
  };
  const std::vector<RunFile> files{of("full", "a", "1"), of("quest", "a", "2"),
                                   of("full", "b", "3"), of("quest", "b", "4")};
  const auto joined = join_runs(files, {});
  ASSERT_TRUE(joined);
  ASSERT_EQ(joined->all.size(), 2u);
  EXPECT_EQ(joined->ref().label, "full");
  EXPECT_EQ(joined->ref().run.data.size(), 2u);
  for (const Setting& setting : joined->all) {
    for (const auto* task : {"a", "b"}) ASSERT_NE(setting.find(task), nullptr) << setting.label;
  }
  std::vector<RunFile> other = files;
  other[2].runs[0].model_sha256 = "feed";
  EXPECT_FALSE(join_runs(other, {})) << "of another model";
  other = {files[0], of("full", "a", "5")};
  EXPECT_EQ(join_runs(other, {})->all.size(), 2u) << "the same task twice";
}

TEST(Join, FailedAndMissingSamplesAreToldNotHidden) {
  RunFile full = scored("full", ramp(10), 1000), x = scored("x", ramp(10), 100);
  x.samples[3].finish = "failed";
  x.samples[3].scores.clear();
  x.samples.pop_back();
  const Comparison comparison = compared({full, x});
  const Row& row = find(comparison.tasks[0], "x");
  EXPECT_EQ(row.n, 8u);
  EXPECT_EQ(row.failed, 1u);
  EXPECT_EQ(row.difference.n, 8u);
  EXPECT_THAT(comparison.tasks[0].notes, Contains(HasSubstr("2 of the reference's 10 samples")));
  EXPECT_THAT(comparison.tasks[0].notes, Contains(HasSubstr("1 samples failed")));
}

TEST(Join, FailedSamplesCostNothing) {
  RunFile x = scored("x", ramp(10), 100);
  x.samples[3].finish = "failed";
  x.samples[3].counters = {{"kv_bytes_per_token", 1e6}, {"full_kv_bytes_per_token", 1e6}};
  const Comparison comparison = compared({scored("full", ramp(10), 1000), x});
  EXPECT_EQ(find(comparison.tasks[0], "x").cost.bytes(), 100);
  EXPECT_EQ(find(comparison.tasks[0], "x").cost.reduction(), 10);
}

TEST(Join, ReadingsNameTheirText) {
  EXPECT_EQ(text_of("book/3@4096"), "book/3");
  EXPECT_EQ(text_of("book/3"), "book/3");
  EXPECT_EQ(text_of("me@home/3"), "me@home/3");
  EXPECT_EQ(text_of("me@home/3@128"), "me@home/3");
  EXPECT_EQ(text_of("book/3@4096#7"), "book/3") << "as --pool-seeds names it";
  EXPECT_EQ(text_of("book/3#7"), "book/3#7");
  EXPECT_EQ(text_of("me@4#x"), "me@4#x");
}

TEST(Join, PolicyFamilies) {
  EXPECT_EQ(policy_family("full"), "full");
  EXPECT_EQ(policy_family("quest:block=16,budget=1024"), "quest");
  EXPECT_EQ(policy_family("mac:tau=0.45+csattention:sparsity=0.95"), "mac+csattention");
  EXPECT_TRUE(lower_is_better("nll") && lower_is_better("kl_p99") && lower_is_better("rank"));
  EXPECT_FALSE(lower_is_better("hit") || lower_is_better("f1") || lower_is_better("top1"));
}

TEST(ComparisonJson, HasTheNumbersAndNoNaN) {
  RunFile x = scored("x", ramp(10, 0.1), 100);
  for (SampleRecord& sample : x.samples) sample.counters.clear();
  const Comparison comparison =
      compared({scored("full", ramp(10), 1000), x}, {.equal_bytes = true});
  const auto json = comparison_json(comparison);
  const auto& row = json["tasks"][0]["rows"][1];
  EXPECT_EQ(row["policy"], "x");
  EXPECT_EQ(row["n"], 10);
  EXPECT_EQ(row["score"], find(comparison.tasks[0], "x").score.mean);
  EXPECT_EQ(row["difference"]["mean"], find(comparison.tasks[0], "x").difference.value.mean);
  EXPECT_EQ(json.dump().find("nan"), std::string::npos);
  EXPECT_THAT(json.dump(), HasSubstr("\"bytes_per_token\":null"));
}

TEST(Compare, CanBeStopped) {
  const std::vector<RunFile> files{scored("full", ramp(5), 10)};
  const auto settings = join_runs(files, {});
  const auto stopped = compare(*settings, {}, [](const Progress&) { return false; });
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().code, ErrorCode::kCancelled);
}

}  // namespace
}  // namespace reprise::eval::test
