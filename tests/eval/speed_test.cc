#include "eval/report/speed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "bench/bench.h"

namespace reprise::eval::test {
namespace {

using ::testing::HasSubstr;

std::string written(const std::string& name, const std::string& text) {
  const std::string path = ::testing::TempDir() + name;
  std::ofstream(path) << text;
  return path;
}

BenchReport made_up_report() {
  BenchReport report;
  report.model.name = "tiny";
  for (const uint64_t context : {2048, 8192}) {
    for (const auto* policy : {"full", "quest"}) {
      for (const auto* phase : {"prefill", "decode"}) {
        BenchRow row;
        row.phase = phase;
        row.policy = policy;
        row.context = context;
        row.batch = 1;
        row.median_ms = static_cast<double>(context) / 1000;
        row.tok_s = 1000 / row.median_ms;
        report.rows.push_back(row);
      }
    }
  }
  return report;
}

TEST(Speed, WhatBenchPrintsBecomesPlotsAndATable) {
  const auto run = read_speed(written("bench.json", bench_json(made_up_report()).dump()));
  ASSERT_TRUE(run) << run.error().message;
  EXPECT_EQ(run->model, "tiny");
  EXPECT_EQ(run->device, "cpu");
  ASSERT_EQ(run->rows.size(), 8);
  Page page;
  add_speed(*run, page);
  ASSERT_EQ(page.blocks.size(), 4);  // heading, two plots, table
  for (const size_t block : {1, 2}) {
    const std::string image = std::get<Figure>(page.blocks[block]).image.finish(true);
    EXPECT_THAT(image, HasSubstr("quest at 8192: 8.19 ms, 122.1 tokens per second"));
  }
  EXPECT_EQ(std::get<Table>(page.blocks[3]).rows.size(), 8);
}

TEST(Speed, RoofsThatWereNotMeasuredAreADash) {
  SpeedRun run;
  run.rows = {{"decode", "full", 128, 1, 2.0, 500.0, 61.6},
              {"prefill", "quest", 128, 1, 2.0, 64000.0, 0.0}};
  Page page;
  add_speed(run, page);
  const auto& rows = std::get<Table>(page.blocks.back()).rows;
  EXPECT_EQ(rows[0].back(), "62 %");
  EXPECT_EQ(rows[1].back(), "-");
}

TEST(Speed, OtherFilesAreRefused) {
  EXPECT_EQ(read_speed("/no/such/file").error().code, ErrorCode::kFileNotFound);
  auto missing = bench_json(made_up_report());
  missing["rows"][3].erase("tok_s");
  for (const std::string& text :
       {std::string("{\"rows\": ["), std::string("[1, 2]"), std::string("{}"), missing.dump()}) {
    const auto run = read_speed(written("other.json", text));
    ASSERT_FALSE(run) << text;
    EXPECT_EQ(run.error().code, ErrorCode::kBadJson);
    EXPECT_THAT(run.error().message, HasSubstr("reprise bench --json"));
  }
}

}  // namespace
}  // namespace reprise::eval::test
