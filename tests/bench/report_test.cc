#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/bench.h"

namespace reprise {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

BenchReport made_up() {
  BenchReport report;
  report.machine = {31.25, 3.5, 4.25, ""};
  report.model.name = "tiny";
  report.model.path = "/models/tiny.gguf";
  report.model.load_ms = 41.6;
  report.model.weight_bytes = 1000;
  report.model.kv_bytes_per_token = 512;
  report.threads = 2;
  BenchRow decode;
  decode.phase = "decode";
  decode.policy = "full";
  decode.context = 8192;
  decode.batch = 4;
  decode.median_ms = 12.345;
  decode.p99_ms = 15.5;
  decode.tok_s = 324.02;
  decode.select_ms = 0.25;
  decode.bytes_per_token = 123456;
  decode.index_bytes_per_token = 789;
  decode.memory_gb_s = 25.5;
  decode.memory_pct = 104.5;
  decode.roof_gb_s = 30.5;
  decode.roof_pct = 87.6;
  decode.vs_full = 1;
  decode.vs_peer = 2.345;
  decode.peer = "llama.cpp";
  decode.figures = {{"index_share", 0.0625}, {"update_us_p99", 1234.6}};
  BenchRow peer;
  peer.phase = "prefill";
  peer.policy = "llama.cpp";
  peer.context = 128;
  peer.note = "version 1, fa=0";
  report.rows = {decode, peer};
  return report;
}

TEST(BenchReportText, JsonHasEveryField) {
  const nlohmann::ordered_json json = bench_json(made_up());
  EXPECT_EQ(json["machine"], (nlohmann::ordered_json{{"device", "cpu"},
                                                     {"read_gb_s", 31.25},
                                                     {"bf16_tflop_s", 3.5},
                                                     {"quantised_tflop_s", 4.25},
                                                     {"threads", 2}}));
  EXPECT_EQ(json["model"]["name"], "tiny");
  EXPECT_EQ(json["model"]["path"], "/models/tiny.gguf");
  EXPECT_EQ(json["model"]["load_ms"], 41.6);
  EXPECT_EQ(json["model"]["weight_bytes"], 1000);
  EXPECT_EQ(json["model"]["kv_bytes_per_token"], 512);
  ASSERT_EQ(json["rows"].size(), 2u);
  std::vector<std::string> keys;
  for (const auto& [key, value] : json["rows"][0].items()) keys.push_back(key);
  EXPECT_THAT(keys, ElementsAre("phase", "policy", "context", "batch", "median_ms", "p99_ms",
                                "tok_s", "select_ms", "bytes_per_token", "index_bytes_per_token",
                                "flops_per_token", "memory_gb_s", "memory_pct", "roof_gb_s",
                                "roof_pct", "vs_full", "vs_peer", "peer", "note", "figures"));
  const auto& decode = json["rows"][0];
  EXPECT_EQ(decode["phase"], "decode");
  EXPECT_EQ(decode["context"], 8192);
  EXPECT_EQ(decode["batch"], 4);
  EXPECT_EQ(decode["median_ms"], 12.345);
  EXPECT_EQ(decode["bytes_per_token"], 123456);
  EXPECT_EQ(decode["index_bytes_per_token"], 789);
  EXPECT_EQ(decode["select_ms"], 0.25);
  EXPECT_EQ(decode["vs_peer"], 2.345);
  EXPECT_EQ(decode["peer"], "llama.cpp");
  EXPECT_EQ(json["rows"][1]["peer"], "") << "not compared";
  EXPECT_EQ(decode["figures"],
            (nlohmann::ordered_json{{"index_share", 0.0625}, {"update_us_p99", 1234.6}}));
  EXPECT_EQ(json["rows"][1]["note"], "version 1, fa=0");
  EXPECT_EQ(json["rows"][1]["figures"].dump(), "{}");
  EXPECT_EQ(nlohmann::ordered_json::parse(json.dump()), json);
}

TEST(BenchReportText, MarkdownHasALineForEveryRow) {
  const std::string text = bench_markdown(made_up());
  EXPECT_THAT(text, HasSubstr("tiny on 2 threads; measured: read 31.2 GB/s, bf16 3.50 TFLOP/s, "
                              "4.25 with quantised weights; load 42 ms\n"));
  EXPECT_THAT(
      text,
      HasSubstr("\n| decode | 8192 | full | 4 | 12.35 | 15.50 | 0.25 | 324.0 | 104 % | 88 % | "
                "1.00x | 2.35x | index_share 0.0625, update_us_p99 1235 |\n"));
  EXPECT_THAT(text,
              HasSubstr("\n| prefill | 128 | llama.cpp | 1 | 0.00 | 0.00 | - | 0.0 | - | - | - | - "
                        "| version 1, fa=0 |\n"));
}

TEST(BenchReportText, DeviceIsNamedInPlaceOfThreads) {
  BenchReport report = made_up();
  report.machine = {4312.5, 750.25, 750.25, "NVIDIA H200"};
  EXPECT_THAT(bench_markdown(report),
              HasSubstr("tiny on NVIDIA H200; measured: read 4.31 TB/s, bf16 750.25 TFLOP/s, "));
  EXPECT_EQ(bench_json(report)["machine"]["device"], "NVIDIA H200");
}

TEST(BenchReportText, MarkdownColumnsAgree) {
  const std::string text = bench_markdown(made_up());
  size_t lines = 0;
  for (size_t at = text.find("\n|"); at != std::string::npos; at = text.find("\n|", at + 1)) {
    const std::string line = text.substr(at + 1, text.find('\n', at + 1) - at - 1);
    EXPECT_EQ(std::count(line.begin(), line.end(), '|'), 14) << line;
    ++lines;
  }
  EXPECT_EQ(lines, 4u);  // names, rule, two rows
}

TEST(BenchReportText, EmptyReportIsStillAReport) {
  EXPECT_EQ(bench_json({})["rows"].dump(), "[]");
  EXPECT_THAT(bench_markdown({}), Not(HasSubstr("decode")));
}

}  // namespace
}  // namespace reprise
