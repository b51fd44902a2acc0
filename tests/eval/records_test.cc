#include "eval/records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "eval/made_up_runs.h"

namespace reprise::eval::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

class RecordsFile : public testing::Test {
 protected:
  std::string write(const std::string& content) const {
    std::ofstream(path_, std::ios::binary) << content;
    return path_;
  }
  Result<RunFile> read(const std::string& content) const {
    RunFile file;
    if (Status status = read_run_file(write(content), file); !status)
      return tl::unexpected(status.error());
    return file;
  }
  void TearDown() override { std::filesystem::remove(path_); }

 private:
  std::string path_ = testing::TempDir() + "records_" +
                      testing::UnitTest::GetInstance()->current_test_info()->name() + ".jsonl";
};

const std::string kRun = R"({"type":"run","schema":1,"id":"r","policy":"full"})"
                         "\n";
const std::string kSample = R"({"type":"sample","run":"r","task":"t","id":"1","scores":{"f1":0.5}})"
                            "\n";

SampleRecord full_sample() {
  SampleRecord sample;
  sample.run = "r";
  sample.task = "needle";
  sample.id = "length-1024";
  sample.prompt_tokens = 1000;
  sample.generated_tokens = 32;
  sample.truncated = true;
  sample.finish = "failed";
  sample.error = "no room";
  sample.prediction = "line\nwith \"quotes\" and \xc3\xa9";
  sample.references = {"a", "b|c"};
  sample.scores = {{"hit", 1}, {"nll", 0.1}};
  sample.axes = {{"length", 1024}, {"depth", 0.3}};
  sample.counters = {{"kv_bytes_per_token", 1.25e9}};
  sample.timing = {{"ttft", 12.345678901234567}};
  return sample;
}

TEST_F(RecordsFile, EveryFieldComesBack) {
  RunFile written;
  RunRecord run{1,
                "r",
                "2030-01-01T00:00:00Z",
                "1.2.3",
                "m",
                "abc",
                "Q4_1",
                "bf16",
                123456,
                "cpu",
                "quest:budget=5",
                "tail:64",
                8192,
                7,
                {{"needle", "h1"}}};
  written.runs = {run};
  written.samples = {full_sample()};
  written.steps = {{"r", "ppl", "book", 4097, {{"nll", 2.5}, {"kl", -0.0}}}};
  written.summaries = {{"r", "needle", "hit", 10, 1, 0.9, 0.6, 0.98, {{"kv", 3}}}};
  const std::string text = lines_of(written);
  const auto read_back = read(text);
  ASSERT_TRUE(read_back) << read_back.error().message;
  EXPECT_EQ(lines_of(*read_back), text);

  const RunRecord& r = read_back->runs.at(0);
  EXPECT_EQ(r.policy, "quest:budget=5");
  EXPECT_EQ(r.weight_bytes, 123456u);
  EXPECT_EQ(r.context, 8192u);
  EXPECT_THAT(r.data, ElementsAre(std::pair<std::string, std::string>("needle", "h1")));
  const SampleRecord& sample = read_back->samples.at(0);
  EXPECT_EQ(sample.prediction, full_sample().prediction);
  EXPECT_EQ(sample.references, full_sample().references);
  EXPECT_EQ(sample.scores, full_sample().scores);
  EXPECT_EQ(sample.axes, full_sample().axes);
  EXPECT_EQ(sample.timing, full_sample().timing);
  EXPECT_TRUE(sample.truncated);
  EXPECT_EQ(sample.error, "no room");
  EXPECT_EQ(read_back->steps.at(0).position, 4097u);
  EXPECT_TRUE(std::signbit(read_back->steps[0].values[1].second));
  EXPECT_EQ(read_back->summaries.at(0).failed, 1u);
}

TEST_F(RecordsFile, TypeIsTheFirstField) {
  EXPECT_THAT(to_line(RunRecord{}), StartsWith(R"({"type":"run","schema":1,)"));
  EXPECT_THAT(to_line(SampleRecord{}), StartsWith(R"({"type":"sample")"));
  EXPECT_THAT(to_line(StepRecord{}), StartsWith(R"({"type":"step")"));
  EXPECT_THAT(to_line(SummaryRecord{}), StartsWith(R"({"type":"summary")"));
  EXPECT_EQ(to_line(full_sample()).find('\n'), std::string::npos);
}

TEST_F(RecordsFile, NumbersAreShortAndExact) {
  StepRecord step{"r", "t", "1", 0, {{"a", 0.1}, {"b", 3}, {"c", 1e300}}};
  EXPECT_THAT(to_line(step), HasSubstr(R"("values":{"a":0.1,"b":3,"c":1e+300})"));
  rc::check("finite numbers are read as they were", [&](double value) {
    RC_PRE(std::isfinite(value));
    step.values = {{"x", value}};
    const auto file = read(kRun + to_line(step) + "\n");
    RC_ASSERT(file.has_value());
    RC_ASSERT(file->steps[0].values[0].second == value);
  });
}

TEST_F(RecordsFile, NotFiniteIsNull) {
  const double infinity = std::numeric_limits<double>::infinity();
  const StepRecord step{
      "r", "t", "1", 0, {{"nan", std::nan("")}, {"inf", infinity}, {"minus", -infinity}}};
  const std::string text = to_line(step);
  EXPECT_THAT(text, HasSubstr(R"({"nan":null,"inf":null,"minus":null})"));
  const auto file = read(kRun + text + "\n");
  ASSERT_TRUE(file);
  for (const auto& [name, value] : file->steps[0].values) EXPECT_TRUE(std::isnan(value)) << name;
}

TEST_F(RecordsFile, BytesThatAreNotUtf8DoNotBreakTheLine) {
  SampleRecord sample = full_sample();
  sample.prediction = "cut \xe2\x82";
  const auto file = read(kRun + to_line(sample) + "\n");
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->samples[0].prediction, "cut \xef\xbf\xbd");
}

TEST_F(RecordsFile, ALastLineCutAnywhereIsIgnored) {
  const std::string line = to_line(full_sample());
  for (size_t length = 0; length < line.size(); ++length) {
    const auto file = read(kRun + kSample + line.substr(0, length));
    ASSERT_TRUE(file) << length << ": " << file.error().message;
    EXPECT_EQ(file->samples.size(), 1u) << length;
  }
  const auto whole = read(kRun + kSample + line);
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->samples.size(), 2u) << "a whole line counts without its newline too";
}

TEST_F(RecordsFile, OtherMalformedLinesAreNamed) {
  const struct {
    std::string content, message;
  } cases[] = {
      {kRun + "{\"type\":\"sam\n" + kSample, ":2: this line is not a JSON object"},
      {kRun + kSample + "[1]\n", ":3: this line is not a JSON object"},
      {kRun + "{\"run\":\"r\"}\n", ":2: field \"type\" is missing"},
      {kRun + R"({"type":"smaple","run":"r"})" + "\n", "\"smaple\" is not a type"},
      {R"({"type":"run","id":"r"})"
       "\n",
       ":1: field \"policy\" is missing"},
      {kRun + R"({"type":"sample","run":"q","task":"t","id":"1"})" + "\n", "declares run \"q\""},
      {kRun + R"({"type":"sample","run":"r","task":"t"})" + "\n", "field \"id\" is missing"},
      {kRun + R"({"type":"sample","run":"r","task":"t","id":1})" + "\n", "\"id\" is not a text"},
      {kRun + R"({"type":"sample","run":"r","task":"t","id":"1","scores":{"a":"b"}})" + "\n",
       "\"scores\" is not a number"},
      {kRun + R"({"type":"sample","run":"r","task":"t","id":"1","scores":[1]})" + "\n",
       "\"scores\" is not an object"},
      {kRun + R"({"type":"sample","run":"r","task":"t","id":"1","prompt_tokens":-1})" + "\n",
       "\"prompt_tokens\" is not a whole number"},
      {kRun + R"({"type":"sample","run":"r","task":"t","id":"1","truncated":1})" + "\n",
       "\"truncated\" is neither"},
      {kRun + R"({"type":"sample","run":"r","task":"t","id":"1","references":"x"})" + "\n",
       "\"references\" is not an array"},
      {kRun + R"({"type":"step","run":"r","task":"t","id":"1","position":0.5})" + "\n",
       "\"position\" is not a whole number"},
      {kRun + R"({"type":"summary","run":"r","task":"t","score":"high"})" + "\n",
       "\"score\" is not a number"},
  };
  for (const auto& c : cases) {
    const auto file = read(c.content);
    ASSERT_FALSE(file) << c.content;
    EXPECT_EQ(file.error().code, ErrorCode::kBadJson) << c.content;
    EXPECT_THAT(file.error().message, HasSubstr(c.message));
    EXPECT_THAT(file.error().message, HasSubstr(".jsonl:"));
  }
}

TEST_F(RecordsFile, LaterSchemasAreRefusedAndUnknownFieldsIgnored) {
  const auto later = read(R"({"type":"run","schema":2,"id":"r","policy":"full"})"
                          "\n");
  ASSERT_FALSE(later);
  EXPECT_EQ(later.error().code, ErrorCode::kUnsupportedVersion);
  const auto more = read(R"({"type":"run","schema":1,"id":"r","policy":"full","color":{"x":[]}})"
                         "\n");
  ASSERT_TRUE(more);
  EXPECT_EQ(more->runs.size(), 1u);
}

TEST_F(RecordsFile, SeveralFilesGatherAndAbsentOnesAreErrors) {
  RunFile file;
  const std::string path = write(kRun + kSample);
  ASSERT_TRUE(read_run_file(path, file));
  ASSERT_TRUE(read_run_file(path, file));
  EXPECT_EQ(file.samples.size(), 2u);
  EXPECT_EQ(file.path, path);
  const Status absent = read_run_file(path + ".absent", file);
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code, ErrorCode::kFileNotFound);
  EXPECT_TRUE(read("").has_value());
}

}  // namespace
}  // namespace reprise::eval::test
