// compare and report on run files, from outside. No model is needed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "cli/process.h"

namespace reprise::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

std::string run_lines(const std::string& policy, const std::string& model, double loss) {
  std::string text = R"({"type":"run","schema":1,"id":")" + policy + R"(","policy":")" + policy +
                     R"(","model_sha256":")" + model + R"("})" + "\n";
  for (int i = 0; i < 20; ++i) {
    const std::string number = std::to_string(i);
    text += R"({"type":"sample","run":")" + policy + R"(","task":"qa","id":")" + number +
            R"(","finish":"end","scores":{"f1":)" + std::to_string(0.9 - 0.01 * i - loss) +
            R"(},"counters":{"kv_bytes_per_token":)" + (loss > 0 ? "1024" : "4096") + "}}\n";
  }
  return text;
}

std::string content(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(Reports, CompareSaysWhatIsLostAndSaved) {
  const TemporaryFolder folder;
  const std::string full = folder.write("full.jsonl", run_lines("full", "m", 0)),
                    small = folder.write("small.jsonl", run_lines("quest:budget=8", "m", 0.1));
  const Outcome text = run({"compare", full, small});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, AllOf(HasSubstr("| quest:budget=8 | worse"), HasSubstr("1.0 KiB")));
  const auto json = run({"compare", full, small, "--json"}).json();
  EXPECT_EQ(json["tasks"][0]["rows"][1]["difference"]["verdict"], "worse");
  EXPECT_NEAR(json["tasks"][0]["rows"][1]["difference"]["mean"].get<double>(), -0.1, 1e-6);
}

TEST(Reports, ReportWritesItsFiles) {
  const TemporaryFolder folder;
  const std::string file =
      folder.write("run.jsonl", run_lines("full", "m", 0) + run_lines("quest:budget=8", "m", 0.1));
  const std::string html = folder.file("r.html"), markdown = folder.file("r.md");
  const Outcome outcome =
      run({"report", file, "--html", html, "--md", markdown, "--svg", folder.file("plots")});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, IsEmpty());
  EXPECT_THAT(content(html), StartsWith("<!DOCTYPE html>"));
  EXPECT_THAT(content(markdown), HasSubstr("](plots/pareto-qa-f1.svg)"));
  EXPECT_THAT(content(folder.file("plots/pareto-qa-f1.svg")), StartsWith("<svg "));
  EXPECT_THAT(run({"report", file}).out, StartsWith("# Evaluation report"));
}

TEST(Reports, WhatCannotBeComparedIsWrongUsage) {
  const TemporaryFolder folder;
  const std::string full = folder.write("full.jsonl", run_lines("full", "m", 0)),
                    other = folder.write("other.jsonl", run_lines("quest", "n", 0.1)),
                    broken = folder.write("broken.jsonl", "{}\n");
  EXPECT_EQ(run({"compare"}).code, 2);
  EXPECT_EQ(run({"compare", full, other}).code, 2);
  EXPECT_THAT(run({"compare", full, other}).err, HasSubstr("other.jsonl"));
  EXPECT_EQ(run({"compare", full, other, "--allow-different"}).code, 0);
  EXPECT_EQ(run({"compare", full, "--ref", "h2o"}).code, 2);
  EXPECT_EQ(run({"compare", broken}).code, 1);
  EXPECT_THAT(run({"compare", broken}).err, HasSubstr("broken.jsonl:1: "));
  EXPECT_EQ(run({"report", folder.file("absent.jsonl")}).code, 1);
  EXPECT_EQ(run({"report", full, "--html", folder.file("no/such/folder.html")}).code, 1);
  const std::string both = folder.file("both");
  EXPECT_THAT(run({"report", full, "--html", both, "--md", both}).err, HasSubstr("are one file"));
}

}  // namespace
}  // namespace reprise::test
