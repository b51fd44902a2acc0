#include "eval/report/speed.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "base/try.h"
#include "eval/report/plots.h"
#include "eval/report/sections.h"

namespace reprise::eval {
namespace {

// As in a legend: the batch is named where there is more than one sequence.
std::string series_name(const SpeedRow& row) {
  return row.batch > 1 ? fmt::format("{}, {} sequences", row.policy, row.batch) : row.policy;
}

XyPlot speed_plot(const SpeedRun& run, const std::string& phase) {
  XyPlot plot;
  const bool decode = phase == "decode";
  plot.title = fmt::format("{}, {}: {} by context", run.model, run.device, phase);
  plot.x_name = "context (tokens)";
  plot.y_name = decode ? "ms per step, median" : "tokens per second";
  plot.x_unit = Unit::kTokens;
  plot.logarithmic_x = true;
  for (const SpeedRow& row : run.rows) {
    if (row.phase != phase) continue;
    const std::string name = series_name(row);
    auto series = std::find_if(plot.series.begin(), plot.series.end(),
                               [&](const PlotSeries& each) { return each.name == name; });
    if (series == plot.series.end()) {
      plot.series.push_back({name, plot.series.size(), {}});
      series = plot.series.end() - 1;
    }
    const double y = decode ? row.median_ms : row.tok_s;
    series->points.push_back({static_cast<double>(row.context), y, y, y, "",
                              fmt::format("{} at {}: {:.2f} ms, {:.1f} tokens per second", name,
                                          row.context, row.median_ms, row.tok_s)});
  }
  return plot;
}

}  // namespace

Result<SpeedRun> read_speed(const std::string& path) {
  REPRISE_TRY(const MappedFile file, MappedFile::open(path));
  const auto bytes = file.bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto json = nlohmann::json::parse(text, nullptr, false);
  const auto bad = [&](std::string_view what) {
    return fail(ErrorCode::kBadJson, "{}: {}; give what `reprise bench --json` printed", path,
                what);
  };
  if (!json.is_object()) return bad("not a JSON object");
  SpeedRun run;
  try {
    run.model = json.at("model").at("name").get<std::string>();
    run.device = json.at("machine").at("device").get<std::string>();
    for (const auto& row : json.at("rows")) {
      run.rows.push_back({row.at("phase").get<std::string>(), row.at("policy").get<std::string>(),
                          row.at("context").get<uint64_t>(), row.at("batch").get<uint64_t>(),
                          row.at("median_ms").get<double>(), row.at("tok_s").get<double>(),
                          row.at("roof_pct").get<double>()});
    }
  } catch (const nlohmann::json::exception& error) {
    return bad(error.what());
  }
  return run;
}

void add_speed(const SpeedRun& run, Page& page) {
  page.add(Heading{fmt::format("Speed: {} on {}", run.model, run.device)});
  for (const std::string phase : {"decode", "prefill"}) {
    XyPlot plot = speed_plot(run, phase);
    if (plot.series.empty()) continue;
    const std::string title = plot.title;
    page.add(Figure{file_name(title), title, draw(plot)});
  }
  Table table{{"phase", "policy", "context", "batch", "median ms", "tok/s", "of roof"}, {}, 2};
  for (const SpeedRow& row : run.rows) {
    table.rows.push_back({row.phase, row.policy, fmt::format("{}", row.context),
                          fmt::format("{}", row.batch), fmt::format("{:.2f}", row.median_ms),
                          fmt::format("{:.1f}", row.tok_s),
                          row.roof_pct > 0 ? fmt::format("{:.0f} %", row.roof_pct) : "-"});
  }
  page.add(std::move(table));
}

}  // namespace reprise::eval
