// Differences to the reference and what they cost, task by task.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "eval/report/plots.h"
#include "eval/report/sections.h"

namespace reprise::eval {
namespace {

std::string p_text(double p) { return p < 0.001 ? "< 0.001" : fmt::format("{:.3f}", p); }

std::string factor_text(double factor) {
  return std::isfinite(factor) ? fmt::format("{:.2f}x", factor) : "-";
}

std::string dominators(const Row& row) {
  if (row.pareto) return "none";
  if (row.dominated_by.empty()) return "-";
  if (row.dominated_by.size() == 1) return row.dominated_by[0];
  return fmt::format("{} and {} more", row.dominated_by[0], row.dominated_by.size() - 1);
}

// Cells of a difference: mean, interval, adjusted p.
std::vector<std::string> difference_cells(const Difference& difference) {
  if (difference.n == 0) return {"-", "-", "-"};
  return {signed_decimal(difference.value.mean), range_text(difference.value),
          p_text(difference.p_holm)};
}

Table verdict_table(const TaskComparison& task, const std::string& reference) {
  const bool recovery = std::any_of(task.rows.begin(), task.rows.end(),
                                    [](const Row& row) { return std::isfinite(row.recovery); });
  Table table{{"policy", "verdict", "dominated by", "n", task.metric, "95 %", "difference", "95 %",
               "p (Holm)", "bytes/token", "of it index", "reduction", "index size"},
              {},
              3};
  if (recovery) table.head.emplace_back("recovery");
  for (const Row& row : task.rows) {
    std::vector<std::string> cells{
        row.policy,
        row.policy == reference ? "reference" : std::string(verdict_name(row.difference.verdict)),
        dominators(row),
        std::to_string(row.n),
        decimal(row.score.mean),
        range_text(row.score)};
    for (std::string& cell : difference_cells(row.difference)) cells.push_back(std::move(cell));
    cells.push_back(number_text(row.cost.bytes(), Unit::kBytes));
    cells.push_back(number_text(row.cost.index_bytes, Unit::kBytes));
    cells.push_back(factor_text(row.cost.reduction()));
    cells.push_back(number_text(row.cost.state_bytes, Unit::kBytes));
    if (recovery) cells.push_back(decimal(row.recovery));
    table.rows.push_back(std::move(cells));
  }
  return table;
}

Table equal_bytes_table(const TaskComparison& task, const EqualBytesGroup& group) {
  Table table{{"policy", "setting", "verdict", "against random", "bytes/token", task.metric,
               "difference", "95 %", "p (Holm)", "to random", "95 %"},
              {},
              4};
  for (const EqualBytesRow& row : group.rows) {
    std::vector<std::string> cells{
        row.family,
        row.interpolated ? row.setting + " (interpolated)" : row.setting,
        std::string(verdict_name(row.to_reference.verdict)),
        row.to_random ? std::string(verdict_name(row.to_random->verdict)) : "-",
        number_text(row.bytes, Unit::kBytes),
        decimal(row.score)};
    for (std::string& cell : difference_cells(row.to_reference)) cells.push_back(std::move(cell));
    cells.push_back(row.to_random ? signed_decimal(row.to_random->value.mean) : "-");
    cells.push_back(row.to_random ? range_text(row.to_random->value) : "-");
    table.rows.push_back(std::move(cells));
  }
  return table;
}

// "budget=512" of "quest:block=16,budget=512" among settings that differ in it alone would be
// shorter still, but options are what a reader looks for.
std::string options_of(const std::string& spec) {
  const size_t colon = spec.find(':');
  return colon == std::string::npos ? "" : spec.substr(colon + 1);
}

PlotPoint plot_point(const Row& row) {
  return {row.cost.bytes(),
          row.score.mean,
          row.score.low,
          row.score.high,
          options_of(row.policy),
          fmt::format("{}: {} {}, {} a token", row.policy, decimal(row.score.mean),
                      range_text(row.score), number_text(row.cost.bytes(), Unit::kBytes))};
}

// Settings of one family are points of one series, joined in order of their bytes.
XyPlot pareto_plot(const TaskComparison& task) {
  XyPlot plot;
  plot.title = fmt::format("{}: {} against bytes read per token", task.task, task.metric);
  plot.x_name = "KV and index bytes read per generated token";
  plot.y_name =
      fmt::format("{} ({} is better)", task.metric, task.lower_is_better ? "lower" : "higher");
  plot.x_unit = Unit::kBytes;
  plot.logarithmic_x = true;
  for (const Row& row : task.rows) {
    if (!std::isfinite(row.cost.bytes()) || !std::isfinite(row.score.mean)) continue;
    auto series = std::find_if(plot.series.begin(), plot.series.end(),
                               [&](const PlotSeries& s) { return s.name == row.family; });
    if (series == plot.series.end()) {
      plot.series.push_back({row.family, 0, {}});
      series = plot.series.end() - 1;
    }
    series->points.push_back(plot_point(row));
    if (row.pareto) plot.front.push_back({row.cost.bytes(), row.score.mean});
  }
  size_t style = 1;
  for (PlotSeries& series : plot.series) {
    series.style = series.name == "full" ? 0 : style++;
    std::stable_sort(series.points.begin(), series.points.end(),
                     [](const PlotPoint& a, const PlotPoint& b) { return a.x < b.x; });
  }
  std::sort(plot.front.begin(), plot.front.end(),
            [](const Svg::Point& a, const Svg::Point& b) { return a.x < b.x; });
  return plot;
}

}  // namespace

void add_task(const TaskComparison& task, const std::string& reference, Page& page) {
  page.add(Heading{fmt::format("{}: {} ({} is better)", task.task, task.metric,
                               task.lower_is_better ? "lower" : "higher")});
  page.add(verdict_table(task, reference));
  if (!task.notes.empty()) page.add(Bullets{task.notes});
  for (const EqualBytesGroup& group : task.groups) {
    page.add(Heading{fmt::format("{} at the bytes of {}: {} a token", task.task, group.point,
                                 number_text(group.bytes, Unit::kBytes)),
                     3});
    page.add(equal_bytes_table(task, group));
    if (!group.absent.empty())
      page.add(Paragraph{fmt::format("Without a setting of this size, or two around it: {}.",
                                     fmt::join(group.absent, ", "))});
  }
  if (XyPlot plot = pareto_plot(task); !plot.series.empty())
    page.add(
        Figure{file_name(fmt::format("pareto-{}-{}", task.task, task.metric)),
               "Mean with its 95 % interval. The dotted line joins the settings that no other one "
               "beats in both score and bytes.",
               draw(plot)});
}

}  // namespace reprise::eval
