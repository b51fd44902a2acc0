// Curves by position: what a policy loses as the text grows.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <utility>

#include "eval/paired.h"
#include "eval/report/plots.h"
#include "eval/report/sections.h"
#include "eval/stats.h"

namespace reprise::eval {
namespace {

constexpr size_t kCurvePoints = 16;  // at most

// Differences or values of all samples within [begin, end).
Interval in_bin(const StepValues& values, uint64_t begin, uint64_t end) {
  const Clusters texts = steps_by_text(values, begin, end);
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  if (texts.empty()) return {kNone, kNone, kNone};
  BootstrapOptions options;
  options.resamples = 2000;
  return cluster_bootstrap(texts, kBlockTokens, options);
}

struct Curve {
  std::string label;
  StepValues values;
};

// First and last position of any curve.
std::optional<std::pair<uint64_t, uint64_t>> extent(const std::vector<Curve>& curves) {
  std::optional<std::pair<uint64_t, uint64_t>> range;
  for (const Curve& curve : curves) {
    for (const auto& [id, positions] : curve.values) {
      const uint64_t first = positions.begin()->first, last = positions.rbegin()->first;
      if (!range) range = {first, last};
      range = {std::min(range->first, first), std::max(range->second, last)};
    }
  }
  return range;
}

// [begin, end) of equal bins, whose width is a power of two.
std::vector<std::pair<uint64_t, uint64_t>> curve_bins(uint64_t first, uint64_t last) {
  uint64_t width = std::bit_ceil((last - first) / kCurvePoints + 1);
  while (last / width - first / width >= kCurvePoints) width *= 2;
  std::vector<std::pair<uint64_t, uint64_t>> bins;
  for (uint64_t begin = first / width * width; begin <= last; begin += width)
    bins.emplace_back(begin, begin + width);
  return bins;
}

// [0, 256), [256, 512), [512, 1024), ... as far as there are values.
std::vector<std::pair<uint64_t, uint64_t>> doubling_bins(uint64_t first, uint64_t last) {
  std::vector<std::pair<uint64_t, uint64_t>> bins;
  for (uint64_t begin = 0, end = 256; begin <= last; begin = end, end *= 2)
    if (end > first) bins.emplace_back(begin, end);
  return bins;
}

XyPlot curve_plot(const std::vector<Curve>& curves, const Styles& styles) {
  XyPlot plot;
  plot.x_name = "position in the text (tokens)";
  plot.x_unit = Unit::kTokens;
  plot.bands = true;
  const auto range = extent(curves);
  if (!range) return plot;
  for (const Curve& curve : curves) {
    PlotSeries series{curve.label, styles.at(curve.label), {}};
    for (const auto& [begin, end] : curve_bins(range->first, range->second)) {
      const Interval value = in_bin(curve.values, begin, end);
      if (!std::isfinite(value.mean)) continue;
      // A bin that the text does not fill is shown where its values are.
      const auto left = static_cast<double>(std::max(begin, range->first));
      const auto right = static_cast<double>(std::min(end - 1, range->second));
      series.points.push_back({(left + right) / 2, value.mean, value.low, value.high, "",
                               fmt::format("{}, {} to {}: {} {}", curve.label, begin, end - 1,
                                           decimal(value.mean), range_text(value))});
    }
    plot.series.push_back(std::move(series));
  }
  return plot;
}

Table bucket_table(const std::string& metric, const std::vector<Curve>& curves,
                   const std::vector<Curve>& differences) {
  Table table{{"positions"}, {}, 1};
  for (const Curve& curve : curves) table.head.push_back(curve.label + " " + metric);
  for (const Curve& curve : differences) table.head.push_back(curve.label + " difference");
  const auto range = extent(curves);
  for (const auto& [begin, end] : doubling_bins(range->first, range->second)) {
    std::vector<std::string> row{fmt::format("{} to {}", begin, end - 1)};
    for (const Curve& curve : curves) row.push_back(decimal(in_bin(curve.values, begin, end).mean));
    for (const Curve& curve : differences) {
      const Interval value = in_bin(curve.values, begin, end);
      row.push_back(std::isfinite(value.mean)
                        ? fmt::format("{} {}", signed_decimal(value.mean), range_text(value))
                        : "-");
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

void add_metric(const Settings& settings, const std::string& task, const std::string& metric,
                Page& page) {
  const Styles styles = styles_of(settings);
  std::vector<Curve> curves, differences;
  const TaskRecords* records = settings.ref().find(task);
  // Divergence is a difference to full attention already.
  const StepValues reference =
      records == nullptr || metric == "kl" ? StepValues() : records->step_values(metric);
  for (const Setting& setting : settings.all) {
    const TaskRecords* own = setting.find(task);
    if (own == nullptr) continue;
    StepValues values = own->step_values(metric);
    if (values.empty()) continue;
    if (StepValues gap = step_differences(values, reference);
        &setting != &settings.ref() && !gap.empty())
      differences.push_back({setting.label, std::move(gap)});
    curves.push_back({setting.label, std::move(values)});
  }
  if (curves.empty()) return;
  page.add(Heading{fmt::format("{}: {} by position", task, metric)});
  XyPlot plot = curve_plot(curves, styles);
  plot.title = fmt::format("{}: {} by position", task, metric);
  plot.y_name = fmt::format("{} (nats per token)", metric);
  page.add(Figure{file_name(fmt::format("{}-{}-by-position", task, metric)),
                  "Means with 95 % bands over texts and their 256-token blocks.", draw(plot)});
  if (!differences.empty()) {
    plot = curve_plot(differences, styles);
    plot.title = fmt::format("{}: {} minus {}'s", task, metric, settings.ref().label);
    plot.y_name = "difference (nats per token)";
    page.add(Figure{file_name(fmt::format("{}-{}-difference", task, metric)),
                    "Paired by text and position; above 0 is worse.", draw(plot)});
  }
  page.add(bucket_table(metric, curves, differences));
}

}  // namespace

void add_positions(const Settings& settings, Page& page) {
  for (const std::string& task : settings.tasks)
    for (const char* metric : {"nll", "kl"}) add_metric(settings, task, metric, page);
}

}  // namespace reprise::eval
