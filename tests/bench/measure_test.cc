#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "bench/bench.h"
#include "engine/tiny_model.h"

namespace reprise {
namespace {

using testing::HasSubstr;

constexpr uint32_t kSteps = 8;

BenchPlan tiny_plan() {
  BenchPlan plan;
  plan.engine = test::tiny_options();
  plan.bench.max_tokens = kSteps;
  plan.bench.rounds = 2;
  plan.contexts = {32, 64};
  plan.policies = {"full", "streaming:window=16"};
  return plan;
}

Error error_of(const BenchPlan& plan) {
  const auto report = run_bench(plan);
  EXPECT_FALSE(report);
  return report ? Error{} : report.error();
}

void expect_measured(const BenchRow& row) {
  EXPECT_GT(row.median_ms, 0);
  EXPECT_GE(row.p99_ms, row.median_ms);
  EXPECT_DOUBLE_EQ(row.tok_s,
                   (row.phase == "decode" ? row.batch : row.context) * 1000.0 / row.median_ms);
  EXPECT_EQ(row.vs_peer, 0) << "no peer was measured";
  EXPECT_EQ(row.peer, "");
  EXPECT_EQ(row.note, "");
}

// Tokens of the pages that every decode step reads: its row follows the context and one token, and
// the few steps stay inside a page.
double full_keys(uint32_t context) { return context + 16; }
constexpr double kStreamingKeys = 16 + 32;  // the sinks' page and the two that the window touches

TEST(Measure, RowsCountWhatEveryPolicyReads) {
  const auto report = run_bench(tiny_plan());
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->threads, 2u);
  EXPECT_EQ(report->model.name, "tiny");
  EXPECT_GT(report->machine.read_gb_s, 0);
  ASSERT_EQ(report->rows.size(), 8u);
  const auto kv_bytes = static_cast<double>(report->model.kv_bytes_per_token);
  const auto weight_bytes = static_cast<double>(report->model.weight_bytes);
  for (size_t i = 0; i < report->rows.size(); i += 2) {
    const BenchRow &full = report->rows[i], &streaming = report->rows[i + 1];
    const bool decode = i % 4 == 2;
    for (const BenchRow* row : {&full, &streaming}) {
      EXPECT_EQ(row->phase, decode ? "decode" : "prefill");
      EXPECT_EQ(row->context, i < 4 ? 32u : 64u);
      EXPECT_EQ(row->batch, 1u);
      expect_measured(*row);
      EXPECT_EQ(row->roof_gb_s > 0, decode);
      EXPECT_EQ(row->memory_gb_s > 0, decode);
      EXPECT_EQ(row->memory_pct > 0, decode);
    }
    EXPECT_EQ(full.policy, "full");
    EXPECT_EQ(streaming.policy, "streaming:window=16");
    EXPECT_DOUBLE_EQ(full.vs_full, 1);
    EXPECT_DOUBLE_EQ(streaming.vs_full, full.median_ms / streaming.median_ms);
    EXPECT_GT(full.roof_pct, 0);
    if (decode) {
      EXPECT_DOUBLE_EQ(full.bytes_per_token, weight_bytes + kv_bytes * full_keys(full.context));
      EXPECT_DOUBLE_EQ(streaming.bytes_per_token, weight_bytes + kv_bytes * kStreamingKeys);
    } else {
      EXPECT_GT(full.flops_per_token, 0);
    }
  }
  EXPECT_GT(report->rows[4].flops_per_token, report->rows[0].flops_per_token);
}

TEST(Measure, SequencesShareTheWeights) {
  BenchPlan plan = tiny_plan();
  plan.policies = {"full"};
  plan.contexts = {32};
  plan.bench.sequences = 3;
  plan.bench.prefill = false;
  const auto report = run_bench(plan);
  ASSERT_TRUE(report) << report.error().message;
  ASSERT_EQ(report->rows.size(), 1u);
  const BenchRow& row = report->rows.front();
  EXPECT_EQ(row.phase, "decode");
  EXPECT_EQ(row.batch, 3u);
  expect_measured(row);
  EXPECT_DOUBLE_EQ(row.bytes_per_token,
                   static_cast<double>(report->model.weight_bytes) / 3 +
                       static_cast<double>(report->model.kv_bytes_per_token) * full_keys(32));
}

TEST(Measure, SequencesMayHoldCopiesOfOnePrompt) {
  BenchPlan plan = tiny_plan();
  plan.policies = {"full", "csattention:budget=64,sink=0,window=16"};
  plan.contexts = {512};
  plan.bench.sequences = 3;
  plan.bench.prefill = false;
  const auto read = run_bench(plan);
  plan.bench.copy_prompt = true;
  const auto copied = run_bench(plan);
  ASSERT_TRUE(read && copied);
  ASSERT_EQ(copied->rows.size(), 2u);
  EXPECT_EQ(read->rows[0].note, "");
  for (size_t i = 0; i < copied->rows.size(); ++i) {
    EXPECT_EQ(copied->rows[i].note, "copies of one prompt");
    EXPECT_EQ(copied->rows[i].batch, 3u);
    EXPECT_GT(copied->rows[i].median_ms, 0);
  }
  EXPECT_DOUBLE_EQ(copied->rows[0].bytes_per_token, read->rows[0].bytes_per_token);
  EXPECT_EQ(copied->kv.memory.bytes, read->kv.memory.bytes) << "pages of their own";
}

TEST(Measure, RowsHaveThePolicysOwnFigures) {
  BenchPlan plan = tiny_plan();
  plan.policies = {"full", "csattention:budget=64,sink=0,window=16"};
  plan.contexts = {512};
  plan.bench.sequences = 2;
  const auto report = run_bench(plan);
  ASSERT_TRUE(report) << report.error().message;
  ASSERT_EQ(report->rows.size(), 4u);
  for (const BenchRow& row : report->rows) {
    const std::map<std::string, double> figures(row.figures.begin(), row.figures.end());
    EXPECT_EQ(figures.size(), row.figures.size());
    if (row.policy == "full") {
      EXPECT_TRUE(figures.empty());
      continue;
    }
    EXPECT_GT(figures.at("index_share"), 0.06);
    EXPECT_LT(figures.at("index_share"), 1.0);
    EXPECT_GT(figures.at("build_ms"), 0.0);
    EXPECT_EQ(figures.contains("update_us_p99"), row.phase == "decode");
  }
}

TEST(Measure, LongContextsAreNotPrefilledAgain) {
  BenchPlan plan = tiny_plan();
  plan.bench.prefill_max = 32;
  plan.policies = {"full"};
  const auto report = run_bench(plan);
  ASSERT_TRUE(report) << report.error().message;
  std::vector<std::string> phases;
  for (const BenchRow& row : report->rows) phases.push_back(row.phase);
  EXPECT_THAT(phases, testing::ElementsAre("prefill", "decode", "decode"));
}

TEST(Measure, ProgressCountsToTheEndAndCancels) {
  uint64_t last = 0, total = 0;
  const auto report = run_bench(tiny_plan(), [&](const Progress& progress) {
    EXPECT_TRUE(progress.done == last || progress.done == last + 1);
    last = progress.done;
    total = progress.total;
    return true;
  });
  EXPECT_TRUE(report);
  EXPECT_EQ(last, total);
  const auto cancelled = run_bench(tiny_plan(), [](const Progress& p) { return p.done < 3; });
  ASSERT_FALSE(cancelled);
  EXPECT_EQ(cancelled.error().code, ErrorCode::kCancelled);
}

TEST(Measure, ACancelDoesNotWaitForAPrompt) {
  BenchPlan plan = tiny_plan();
  plan.contexts = {1024};
  plan.engine.chunk = 64;
  int asked = 0;
  const auto cancelled = run_bench(plan, [&](const Progress& progress) {
    EXPECT_EQ(progress.done, 0u) << "measured to its end";
    return ++asked < 6;
  });
  ASSERT_FALSE(cancelled);
  EXPECT_EQ(cancelled.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(asked, 6);
}

TEST(Measure, ModelsNeedNoWeights) {
  BenchPlan plan = tiny_plan();
  plan.engine.model = "random:tiny:q8_0";
  plan.contexts = {32};
  plan.policies = {"full"};
  const auto report = run_bench(plan);
  ASSERT_TRUE(report) << report.error().message;
  ASSERT_EQ(report->rows.size(), 2u);
  for (const BenchRow& row : report->rows) expect_measured(row);
}

TEST(Measure, RefusesImpossiblePlans) {
  BenchPlan cramped = tiny_plan();
  cramped.engine.ctx = 48;
  EXPECT_EQ(error_of(cramped).code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(error_of(cramped).message, testing::HasSubstr("--ctx 48"));
  BenchPlan plan = tiny_plan();
  plan.contexts = {};
  EXPECT_EQ(error_of(plan).code, ErrorCode::kInvalidArgument);
  plan.contexts = {32, 0};
  EXPECT_EQ(error_of(plan).code, ErrorCode::kInvalidArgument);
  plan = tiny_plan();
  plan.policies = {"streeming"};
  EXPECT_EQ(error_of(plan).code, ErrorCode::kUnknownPolicy);
  EXPECT_THAT(error_of(plan).message, HasSubstr("did you mean streaming?"));
  plan = tiny_plan();
  plan.engine.model = "/nowhere/model.gguf";
  EXPECT_EQ(error_of(plan).code, ErrorCode::kFileNotFound);
  plan = tiny_plan();
  plan.bench.copy_prompt = true;
  EXPECT_THAT(error_of(plan).message, HasSubstr("--no-prefill"));
  plan = tiny_plan();
  plan.peer = "other";
  EXPECT_EQ(error_of(plan).code, ErrorCode::kInvalidArgument);
  plan.engine.model = "random:tiny";
  plan.peer = "llama.cpp";
  EXPECT_EQ(error_of(plan).code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(error_of(plan).message, HasSubstr("random:tiny"));
}

}  // namespace
}  // namespace reprise
