#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/bench.h"
#include "engine/tiny_model.h"

namespace reprise {
namespace {

using testing::HasSubstr;

constexpr uint32_t kContext = 700, kQuestion = 32, kHead = 16;

BenchPlan fusion_plan(const std::string& codec) {
  BenchPlan plan;
  plan.engine = test::tiny_options();
  plan.bench.measure = "fusion";
  plan.bench.rounds = 1;
  plan.contexts = {kContext};
  plan.fusions = {"a3"};
  plan.store_codec = codec;
  return plan;
}

TEST(FusionBench, RowsSayWhereChunksCameFromAndInWhichForm) {
  uint64_t raw_bytes = 0;
  for (const std::string codec : {"none", "q8_0"}) {
    const auto report = run_bench(fusion_plan(codec));
    ASSERT_TRUE(report) << report.error().message;
    ASSERT_EQ(report->fusion.size(), 3u) << "full prefill, from the file cache, from the disk";
    const FusionTimes& full = report->fusion[0];
    EXPECT_EQ(full.fusion, "full prefill");
    EXPECT_EQ(full.from, "");
    EXPECT_DOUBLE_EQ(full.vs_full, 1.0);
    EXPECT_EQ(full.loaded_bytes, 0u);
    const std::string form = codec == "none" ? "" : ", " + codec;
    EXPECT_EQ(report->fusion[1].from, "file cache" + form);
    EXPECT_EQ(report->fusion[2].from, "disk" + form);
    for (const FusionTimes& row : std::span(report->fusion).subspan(1)) {
      EXPECT_EQ(row.fusion, "a3");
      EXPECT_EQ(row.context, kContext);
      EXPECT_EQ(row.loaded_rows, kContext - kHead - kQuestion);
      EXPECT_GT(row.recomputed_rows, 0u);
      EXPECT_GT(row.ttft_ms, 0);
      EXPECT_GE(row.worst_ms, row.ttft_ms);
      EXPECT_DOUBLE_EQ(row.vs_full, full.ttft_ms / row.ttft_ms);
      if (codec == "none") raw_bytes = row.loaded_bytes;
    }
    const double share = static_cast<double>(report->fusion[1].loaded_bytes) / raw_bytes;
    EXPECT_NEAR(share, codec == "none" ? 1.0 : (1 + 2.0 / 32) / 2, 0.01) << codec;
  }
}

TEST(FusionBench, TheLeastContextHasRoomForChunks) {
  BenchPlan plan = fusion_plan("none");
  plan.contexts = {560};
  plan.engine.ctx = 0;
  const auto report = run_bench(plan);
  EXPECT_TRUE(report) << report.error().message;
}

TEST(FusionBench, WhatCannotBeMeasuredIsSaid) {
  BenchPlan brief = fusion_plan("none"), two = fusion_plan("none"), other = fusion_plan("lz4");
  brief.contexts = {500};
  two.policies = {"full", "streaming"};
  const std::pair<BenchPlan*, const char*> wrong[] = {
      {&brief, "560 tokens"}, {&two, "one --policy"}, {&other, "store-codec: \"lz4\""}};
  for (const auto& [plan, words] : wrong) {
    const auto report = run_bench(*plan);
    ASSERT_FALSE(report) << words;
    EXPECT_EQ(report.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(report.error().message, HasSubstr(words));
  }
}

}  // namespace
}  // namespace reprise
