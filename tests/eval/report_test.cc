#include "eval/report/report.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "eval/made_up_runs.h"
#include "eval/report/html.h"
#include "eval/report/markdown.h"
#include "eval/report/plots.h"

namespace reprise::eval::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

// What is wrong with a text as XML: tags that do not match, attributes without quotes, characters
// that must be escaped. Empty when nothing is.
std::string xml_error(std::string_view text) {
  std::vector<std::string> open;
  for (size_t at = 0; at < text.size();) {
    if (text[at] == '&') {
      const size_t end = text.find(';', at);
      const std::string entity(text.substr(at, end - at + 1));
      const std::set<std::string> known{"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
      if (known.count(entity) == 0) return "entity " + entity;
    }
    if (text[at] != '<') {
      ++at;
      continue;
    }
    const size_t end = text.find('>', at);
    if (end == std::string_view::npos) return "an open tag at the end";
    std::string tag(text.substr(at + 1, end - at - 1));
    at = end + 1;
    if (tag.find('<') != std::string::npos) return "< inside <" + tag;
    if (std::count(tag.begin(), tag.end(), '"') % 2 != 0) return "quotes in <" + tag;
    if (tag.starts_with("/")) {
      if (open.empty() || open.back() != tag.substr(1)) return "unexpected <" + tag;
      open.pop_back();
    } else if (!tag.ends_with("/")) {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
  }
  return open.empty() ? "" : "never closed: " + open.back();
}

struct Report {
  Settings settings;
  Comparison comparison;
  Page page;
};

Report report_of(const std::vector<RunFile>& files, const CompareOptions& options = {}) {
  Report report;
  report.settings = join_runs(files, options.join).value();
  report.comparison = compare(report.settings, options).value();
  report.page = report_page(report.settings, report.comparison);
  return report;
}

std::vector<const Figure*> figures_of(const Page& page) {
  std::vector<const Figure*> figures;
  for (const auto& block : page.blocks)
    if (const auto* figure = std::get_if<Figure>(&block)) figures.push_back(figure);
  return figures;
}

// The table that stands first after a heading.
const Table* table_after(const Page& page, const std::string& heading) {
  bool found = false;
  for (const auto& block : page.blocks) {
    if (const auto* head = std::get_if<Heading>(&block)) found |= head->text == heading;
    if (const auto* table = std::get_if<Table>(&block); table != nullptr && found) return table;
  }
  return nullptr;
}

const std::vector<RunFile>& made_up_files() {
  static const std::vector<RunFile> files{made_up_file(made_up_policies())};
  return files;
}

TEST(Xml, TheCheckFindsWhatIsWrong) {
  EXPECT_THAT(xml_error("<a b=\"c\"><d/>text &amp; more</a>"), IsEmpty());
  for (const char* bad : {"<a>", "<a></b>", "</a>", "<a b=\"c></a>", "<a>&</a>", "<a>&x;</a>",
                          "<a <b></b></a>", "<a"})
    EXPECT_THAT(xml_error(bad), Not(IsEmpty())) << bad;
}

TEST(ReportSvg, PlotsAreWellFormed) {
  const Report report = report_of(made_up_files(), {.equal_bytes = true});
  const std::vector<const Figure*> figures = figures_of(report.page);
  EXPECT_GT(figures.size(), 15u);
  std::set<std::string> names;
  for (const Figure* figure : figures) {
    EXPECT_THAT(xml_error(figure->image.finish(false)), IsEmpty()) << figure->name;
    EXPECT_TRUE(names.insert(figure->name).second) << figure->name << " would be overwritten";
    const std::string alone = figure->image.finish(true);
    EXPECT_THAT(alone, StartsWith("<svg xmlns=\"http://www.w3.org/2000/svg\""));
    EXPECT_THAT(alone, HasSubstr("<style>"));
    EXPECT_THAT(alone, Not(testing::AnyOf(HasSubstr("nan"), HasSubstr("inf"))));
  }
}

TEST(ReportSvg, PlotsOfOnePointOrNoneAreDrawn) {
  XyPlot plot;
  plot.title = "a <title>";
  EXPECT_THAT(xml_error(draw(plot).finish(true)), IsEmpty());
  plot.logarithmic_x = true;
  plot.x_unit = Unit::kBytes;
  plot.series = {{"one", 0, {{1000, 0.5, 0.5, 0.5, "l", "t"}}}};
  EXPECT_THAT(xml_error(draw(plot).finish(true)), IsEmpty());
  plot.series[0].points.push_back({std::nan(""), 1, 0, 2, "", ""});
  plot.series[0].points.push_back({0, 1e300, 0, 2e300, "", ""});
  const std::string svg = draw(plot).finish(true);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  HeatMap map;
  map.columns = {"1K"};
  map.rows = {"0 %"};
  map.values = {std::nan("")};
  map.tips = {""};
  EXPECT_THAT(draw(map).finish(true), HasSubstr("not measured"));
}

TEST(ReportSvg, TicksCoverTheRange) {
  for (const bool logarithmic : {false, true}) {
    for (const auto& [low, high] :
         {std::pair{0.0, 1.0}, {3.0, 3.0}, {100.0, 1e8}, {0.123, 0.124}, {-5.0, 20.0}}) {
      const Scale scale(low, high, Unit::kPlain, logarithmic);
      const std::vector<double> ticks = scale.ticks();
      EXPECT_GE(ticks.size(), 2u) << low << " " << high;
      EXPECT_LE(ticks.size(), 9u) << low << " " << high;
      for (const double tick : ticks) {
        EXPECT_GE(tick, scale.low() - 1e-9);
        EXPECT_LE(tick, scale.high() + 1e-9);
      }
    }
  }
}

TEST(ReportSvg, HeatMapsPutValuesWhereTheyBelong) {
  HeatMap map;
  map.columns = {"1K", "2K"};
  map.rows = {"0 %", "50 %", "100 %"};
  map.values = {0.0, 0.25, 0.5, 0.75, 1.0, 0.33};
  map.tips.assign(6, "t");
  const std::string svg = draw(map).finish(false);
  size_t at = 0;
  for (const char* value : {"0.00", "0.25", "0.50", "0.75", "1.00", "0.33"}) {
    at = svg.find(fmt::format(">{}</text>", value), at);
    ASSERT_NE(at, std::string::npos) << value;
  }
  EXPECT_THAT(svg, HasSubstr("#440154"));  // 0: the dark end
  EXPECT_THAT(svg, HasSubstr("#fde725"));  // 1: the bright end
  map.lower_is_better = true;
  map.values = {0.0};
  map.columns = {"1K"};
  map.rows = {"0 %"};
  EXPECT_THAT(draw(map).finish(false), HasSubstr("fill=\"#fde725\"><title>t"));
}

TEST(ReportPage, HasEveryPart) {
  const Report report = report_of(made_up_files(), {.equal_bytes = true});
  const std::string text = to_markdown(report.page);
  for (const char* part :
       {"## Runs", "## What these numbers do not show", "## Verdicts", "## ppl: nll (lower is",
        "## needle: hit (higher is", "## longbench: score by subtask", "## ppl: nll by position",
        "## ppl: kl by position", "## needle: hit by length and depth", "## Counters and timings",
        "## Failures and cut samples", "at the bytes of random:budget=512", "The model is small",
        "have 4 bits", "Scope decode", "claims need 50", "interpolated"})
    EXPECT_THAT(text, HasSubstr(part));
  EXPECT_THAT(text, Not(HasSubstr("The control policy")));
  EXPECT_THAT(to_markdown(report_of({made_up_run({"full"})}).page),
              HasSubstr("The control policy random was not run"));
}

TEST(ReportPage, TablesShowTheNumbers) {
  const Report report = report_of(made_up_files());
  const TaskComparison& ppl = report.comparison.tasks.at(0);
  const Table* table = table_after(report.page, "ppl: nll (lower is better)");
  ASSERT_NE(table, nullptr);
  ASSERT_EQ(table->rows.size(), ppl.rows.size());
  for (size_t i = 0; i < ppl.rows.size(); ++i) {
    const Row& row = ppl.rows[i];
    EXPECT_EQ(table->rows[i][0], row.policy);
    EXPECT_EQ(table->rows[i][4], fmt::format("{:.4f}", row.score.mean));
    EXPECT_EQ(table->rows[i][6], fmt::format("{:+.4f}", row.difference.value.mean));
    EXPECT_EQ(table->rows[i].size(), table->head.size());
  }
  const Table* subtasks = table_after(report.page, "longbench: score by subtask");
  ASSERT_NE(subtasks, nullptr);
  const Values scores = report.settings.all[0].find("longbench")->values("score");
  double sum = 0;
  for (const auto& [id, value] : scores)
    if (id.starts_with("hotpotqa/")) sum += value;
  EXPECT_EQ(subtasks->rows[0][1], fmt::format("{:.4f} (n = 12)", sum / 12));
  const Table* failures = table_after(report.page, "Failures and cut samples");
  ASSERT_NE(failures, nullptr);
  EXPECT_EQ(failures->head.size(), failures->rows[0].size());
}

TEST(ReportPage, CountersOfLayersAndHeadsAreDrawn) {
  RunFile file = made_up_file(made_up_policies());
  for (SampleRecord& sample : file.samples) {
    if (sample.run != file.runs.back().id || sample.task != "needle") continue;
    for (int layer = 0; layer < 3; ++layer) {
      sample.counters.emplace_back(fmt::format("hits_layer{}", layer), 0.25 * layer);
      for (int head = 0; head < 4; ++head) {
        sample.counters.emplace_back(fmt::format("hits_layer{}_head{}", layer, head),
                                     0.1 * layer + 0.01 * head);
      }
    }
    sample.counters.emplace_back("other_layers", 1.0);
  }
  const Report report = report_of({file});
  std::vector<std::string> svgs;
  for (const Figure* figure : figures_of(report.page)) {
    if (figure->name.find("hits") != std::string::npos) svgs.push_back(figure->image.finish(true));
  }
  ASSERT_EQ(svgs.size(), 2u);
  EXPECT_THAT(svgs[0], HasSubstr("layer 2: 0.5000"));
  EXPECT_THAT(svgs[1], HasSubstr("layer 2, head 3: 0.2300"));
  for (const std::string& svg : svgs) EXPECT_THAT(xml_error(svg), IsEmpty());
  const Table* costs = table_after(report.page, "Counters and timings");
  for (const char* heading : {"needle", "Counters and timings"}) {
    const Table* table = table_after(report.page, heading);
    ASSERT_NE(table, nullptr) << heading;
    for (const std::string& name : table->head) EXPECT_THAT(name, Not(HasSubstr("hits layer")));
  }
  EXPECT_NE(costs, nullptr);
}

TEST(ReportPage, FailuresAreCounted) {
  RunFile file = made_up_run({"full"});
  for (SampleRecord& sample : file.samples)
    if (sample.task == "longbench" && sample.id == "hotpotqa/0") {
      sample.finish = "failed";
      sample.error = "the prompt is too long";
      sample.prompt_tokens = 1'000'000;
      sample.counters = {{"kv_bytes_per_token", 1e12}};
      sample.timing = {{"prefill", 1e12}};
    } else if (sample.task == "longbench" && sample.id == "hotpotqa/1") {
      sample.prediction = " \n";
    }
  const Report report = report_of({file});
  const Table* failures = table_after(report.page, "Failures and cut samples");
  EXPECT_THAT(failures->rows.back(),
              ElementsAre("longbench", "full", "47 end, 1 failed",
                          "hotpotqa/0: the prompt is too long", "48", "1", "16", "1"));
  std::erase_if(file.samples, [](const SampleRecord& sample) { return sample.failed(); });
  const auto costs = [](const Page& page) {
    const Table* last = nullptr;
    for (const Block& block : page.blocks)
      if (const Table* table = std::get_if<Table>(&block);
          table != nullptr && table->head.size() > 1 && table->head[1] == "prompt tokens")
        last = table;
    return last == nullptr ? std::vector<std::vector<std::string>>{} : last->rows;
  };
  EXPECT_THAT(costs(report.page), Not(IsEmpty()));
  EXPECT_EQ(costs(report.page), costs(report_of({file}).page)) << "and cost nothing";
}

TEST(ReportPage, DataCannotBreakOut) {
  RunFile file = made_up_run({"full"}, {1, 2, 300, 1, 3});
  const std::string attack = "<script>alert(1)</script>|`x`\"'&\n\x01";
  file.runs[0].model = attack;
  file.runs[0].policy = "full:" + attack;
  file.path = attack;
  for (SampleRecord& sample : file.samples) {
    sample.error = attack;
    sample.task += attack;
    sample.finish = attack;
    sample.scores[0].first += attack;
    sample.counters[0].first += attack;
  }
  for (StepRecord& step : file.steps) step.task += attack;
  const Report report = report_of({file});
  const std::string html = to_html(report.page);
  EXPECT_THAT(html, Not(HasSubstr("<script")));
  EXPECT_THAT(html, HasSubstr("&lt;script&gt;"));
  const std::string body = html.substr(html.find("<h1>"), html.find("</body>") - html.find("<h1>"));
  EXPECT_THAT(xml_error(body), IsEmpty());
  const std::string markdown = to_markdown(report.page, "plots");
  EXPECT_THAT(markdown, Not(HasSubstr("<script")));
  for (const Figure* figure : figures_of(report.page)) {
    EXPECT_THAT(xml_error(figure->image.finish(true)), IsEmpty());
    EXPECT_EQ(figure->name.find_first_of("/.<>\"' "), std::string::npos);
  }
}

TEST(ReportPage, FiguresHaveFilesOfTheirOwn) {
  const std::string many = "reattention:heads=" + std::string(400, '1');
  const Report report = report_of({made_up_file({{"full"},
                                                 {"csattention:cosine=1"},
                                                 {"csattention:cosine=-1"},
                                                 {many + "2"},
                                                 {many + "3"}})});
  std::set<std::string> names;
  for (const Figure* figure : figures_of(report.page)) {
    EXPECT_TRUE(names.insert(figure->name).second) << figure->name;
    EXPECT_LT(figure->name.size(), 200u);
  }
  EXPECT_TRUE(names.contains("needle-hit-grid-csattention-cosine-1"));
  EXPECT_TRUE(names.contains("needle-hit-grid-csattention-cosine-1-2"));
}

TEST(ReportHtml, StandsAlone) {
  const std::string html = to_html(report_of(made_up_files()).page);
  EXPECT_THAT(html, StartsWith("<!DOCTYPE html>"));
  EXPECT_THAT(html, Not(HasSubstr("<script")));
  EXPECT_THAT(html, Not(HasSubstr("<link")));
  EXPECT_THAT(html, Not(HasSubstr("src=")));
  EXPECT_THAT(html, Not(HasSubstr("url(")));
  EXPECT_THAT(html, HasSubstr("prefers-color-scheme:dark"));
  const std::string body = html.substr(html.find("<h1>"), html.find("</body>") - html.find("<h1>"));
  EXPECT_THAT(xml_error(body), IsEmpty());
}

TEST(ReportMarkdown, TablesAreAlignedAndEscaped) {
  const Table table{
      {"policy", "n"}, {{"a|b", "1"}, {"é", "1000"}, {"[1, 2] < 3", ""}, {"[a](b) <b>", ""}}, 1};
  EXPECT_EQ(to_markdown(table),
            "| policy         |    n |\n"
            "|----------------|-----:|\n"
            "| a\\|b           |    1 |\n"
            "| é              | 1000 |\n"
            "| [1, 2] < 3     |      |\n"
            "| [a\\](b) &lt;b> |      |\n");
}

TEST(ReportMarkdown, LinksFiguresOnlyWhenTheyLieSomewhere) {
  const Page page{"T", {Figure{"plot-1", "a caption", Svg(10, 10, "x")}, Paragraph{"text"}}};
  EXPECT_EQ(to_markdown(page), "# T\n\ntext\n");
  EXPECT_EQ(to_markdown(page, "plots"), "# T\n\n![a caption](plots/plot-1.svg)\n\ntext\n");
}

TEST(ReportNumbers, AsPeopleReadThem) {
  EXPECT_EQ(number_text(0.123456), "0.1235");
  EXPECT_EQ(number_text(23592960, Unit::kBytes), "22.5 MiB");
  EXPECT_EQ(number_text(8192, Unit::kTokens), "8K");
  EXPECT_EQ(number_text(1536, Unit::kTokens), "1.5K");
  EXPECT_EQ(number_text(1000, Unit::kTokens), "1000");
  EXPECT_EQ(number_text(std::nan("")), "-");
}

}  // namespace
}  // namespace reprise::eval::test
