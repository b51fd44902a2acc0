// Needle grids: a score over the length of the text and the depth of what was to be found.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "eval/report/plots.h"
#include "eval/report/sections.h"
#include "eval/stats.h"

namespace reprise::eval {
namespace {

struct Cell {
  double sum = 0;
  uint64_t n = 0;
  bool binary = true;
  double mean() const { return sum / static_cast<double>(n); }
};

/// By length, then depth.
using Grid = std::map<std::pair<double, double>, Cell>;

Grid grid_of(const TaskRecords& records, const std::string& metric) {
  Grid grid;
  for (const auto& [id, value] : records.values(metric)) {
    const SampleRecord& sample = *records.samples.at(id);
    const double length = find_number(sample.axes, "length");
    const double depth = find_number(sample.axes, "depth");
    if (!std::isfinite(length) || !std::isfinite(depth)) continue;
    Cell& cell = grid[{length, depth}];
    cell.sum += value;
    cell.n += 1;
    cell.binary &= value == 0 || value == 1;
  }
  return grid;
}

std::string tip(const std::pair<double, double>& place, const Cell& cell) {
  const std::string where = fmt::format("{:.0f} tokens, depth {:.0f} %: {}", place.first,
                                        100 * place.second, decimal(cell.mean()));
  if (!cell.binary) return fmt::format("{} (n = {})", where, cell.n);
  const auto hits = static_cast<uint64_t>(std::llround(cell.sum));
  return fmt::format("{} ({} of {}, 95 % {})", where, hits, cell.n,
                     range_text(wilson_interval(hits, cell.n)));
}

// The rows and columns of all grids of a task, so that its maps can be laid side by side.
struct Places {
  std::set<double> lengths, depths;
  void add(const Grid& grid) {
    for (const auto& [place, cell] : grid) {
      lengths.insert(place.first);
      depths.insert(place.second);
    }
  }
};

HeatMap heat_map(const Grid& grid, const Places& places) {
  HeatMap map;
  map.x_name = "length of the text (tokens)";
  map.y_name = "depth";
  for (const double length : places.lengths)
    map.columns.push_back(number_text(length, Unit::kTokens));
  for (const double depth : places.depths) {
    map.rows.push_back(fmt::format("{:.0f} %", 100 * depth));
    for (const double length : places.lengths) {
      const auto at = grid.find({length, depth});
      map.values.push_back(at == grid.end() ? std::numeric_limits<double>::quiet_NaN()
                                            : at->second.mean());
      map.tips.push_back(at == grid.end() ? "" : tip(at->first, at->second));
    }
  }
  return map;
}

// Scores have the fixed scale 0 to 1; others the range of all maps, so that maps can be compared.
void set_scale(std::vector<HeatMap>& maps, bool zero_to_one) {
  if (zero_to_one) return;
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const HeatMap& map : maps) {
    for (const double value : map.values) {
      if (!std::isfinite(value)) continue;
      low = std::min(low, value);
      high = std::max(high, value);
    }
  }
  for (HeatMap& map : maps) {
    map.low = std::min(0.0, low);
    map.high = high;
  }
}

HeatMap difference_map(const HeatMap& map, const HeatMap& reference, double scale) {
  HeatMap difference = map;
  difference.difference = true;
  difference.low = -scale;
  difference.high = scale;
  for (size_t i = 0; i < map.values.size(); ++i) {
    difference.values[i] = map.values[i] - reference.values[i];
    difference.tips[i] = fmt::format("{}; reference: {}", map.tips[i], reference.tips[i]);
  }
  return difference;
}

void add_metric(const Settings& settings, const std::string& task, const std::string& metric,
                Page& page) {
  std::vector<const Setting*> shown;
  std::vector<Grid> grids;
  Places places;
  for (const Setting& setting : settings.all) {
    const TaskRecords* records = setting.find(task);
    Grid grid = records == nullptr ? Grid() : grid_of(*records, metric);
    if (grid.empty()) continue;
    places.add(grid);
    shown.push_back(&setting);
    grids.push_back(std::move(grid));
  }
  if (places.lengths.size() * places.depths.size() < 2) return;
  std::vector<HeatMap> maps;
  for (const Grid& grid : grids) {
    maps.push_back(heat_map(grid, places));
    maps.back().lower_is_better = lower_is_better(metric);
  }
  set_scale(maps, !lower_is_better(metric));
  page.add(Heading{fmt::format("{}: {} by length and depth", task, metric)});
  const auto reference = std::find(shown.begin(), shown.end(), &settings.ref());
  const auto add = [&](HeatMap& map, const std::string& label, const std::string& kind) {
    map.title = fmt::format("{}: {}", metric, label);
    if (kind == "difference") map.title += " minus " + settings.ref().label;
    page.add(
        Figure{file_name(fmt::format("{}-{}-{}-{}", task, metric, kind, label)),
               fmt::format("{}, {}{}", metric, kind == "difference" ? "difference to " : "mean of ",
                           kind == "difference" ? settings.ref().label : label),
               draw(map)});
  };
  for (size_t i = 0; i < maps.size(); ++i) {
    add(maps[i], shown[i]->label, "grid");
    if (reference == shown.end() || shown[i] == *reference) continue;
    const double scale = maps[i].high - maps[i].low;
    HeatMap difference =
        difference_map(maps[i], maps[static_cast<size_t>(reference - shown.begin())], scale);
    add(difference, shown[i]->label, "difference");
  }
}

}  // namespace

void add_heat_maps(const Settings& settings, Page& page) {
  for (const std::string& task : settings.tasks)
    for (const std::string& metric : settings.metrics(task))
      add_metric(settings, task, metric, page);
}

}  // namespace reprise::eval
