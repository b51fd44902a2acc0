// Counters of single layers and heads: curves and maps in place of hundreds of columns.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "eval/report/plots.h"
#include "eval/report/sections.h"

namespace reprise::eval {
namespace {

/// "hits_layer3" or "hits_layer3_head5".
struct Place {
  std::string name;
  size_t layer = 0;
  std::optional<size_t> head;
};

/// Cuts what a name ends with, as "_layer" and a number; empty when it ends otherwise.
std::optional<size_t> cut_number(std::string_view& name, std::string_view before) {
  const size_t at = name.rfind(before);
  if (at == std::string_view::npos || at == 0) return {};
  const std::string_view digits = name.substr(at + before.size());
  size_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size()) return {};
  name.remove_suffix(name.size() - at);
  return number;
}

std::optional<Place> place_of(std::string_view counter) {
  Place place;
  place.head = cut_number(counter, "_head");
  const auto layer = cut_number(counter, "_layer");
  if (!layer) return {};
  place.layer = *layer;
  place.name = counter;
  return place;
}

/// Means of one counter by (layer, head); head 0 where it is of layers.
using Grid = std::map<std::pair<size_t, size_t>, double>;

void add_curves(const std::string& task, const std::string& name,
                const std::vector<std::pair<const Setting*, Grid>>& grids, const Styles& styles,
                Page& page) {
  XyPlot plot;
  plot.title = fmt::format("{}: {} by layer", task, name);
  plot.x_name = "layer";
  plot.y_name = name;
  for (const auto& [setting, grid] : grids) {
    PlotSeries series{setting->label, styles.at(setting->label), {}};
    for (const auto& [place, value] : grid) {
      series.points.push_back(
          {static_cast<double>(place.first), value, value, value, "",
           fmt::format("{}, layer {}: {}", setting->label, place.first, decimal(value))});
    }
    plot.series.push_back(std::move(series));
  }
  page.add(Heading{plot.title, 3});
  page.add(Figure{file_name(fmt::format("{}-{}-by-layer", task, name)), "Means over samples.",
                  draw(plot)});
}

void add_map(const std::string& task, const std::string& name, const Setting& setting,
             const Grid& grid, Page& page) {
  HeatMap map;
  map.title = fmt::format("{}: {}", name, setting.label);
  map.x_name = "layer";
  map.y_name = "head";
  size_t layers = 0, heads = 0;
  for (const auto& [place, value] : grid) {
    layers = std::max(layers, place.first + 1);
    heads = std::max(heads, place.second + 1);
    map.high = std::max(map.high, value);
    map.low = std::min(map.low, value);
  }
  for (size_t layer = 0; layer < layers; ++layer) map.columns.push_back(std::to_string(layer));
  for (size_t head = 0; head < heads; ++head) {
    map.rows.push_back(std::to_string(head));
    for (size_t layer = 0; layer < layers; ++layer) {
      const auto at = grid.find({layer, head});
      const bool known = at != grid.end();
      map.values.push_back(known ? at->second : std::numeric_limits<double>::quiet_NaN());
      map.tips.push_back(
          known ? fmt::format("layer {}, head {}: {}", layer, head, decimal(at->second)) : "");
    }
  }
  page.add(
      Figure{file_name(fmt::format("{}-{}-map-{}", task, name, setting.label)),
             fmt::format("{} of every layer and head, mean over samples: {}", name, setting.label),
             draw(map)});
}

void add_task_maps(const Settings& settings, const std::string& task, Page& page) {
  const Styles styles = styles_of(settings);
  std::map<std::string, std::vector<std::pair<const Setting*, Grid>>> curves, maps;
  for (const Setting& setting : settings.all) {
    const TaskRecords* records = setting.find(task);
    if (records == nullptr) continue;
    std::map<std::string, Grid> of_layers, of_heads;
    for (const std::string& counter : settings.names(task, &SampleRecord::counters)) {
      const auto place = place_of(counter);
      const double mean = place ? records->mean_counter(counter) : NAN;
      if (!std::isfinite(mean)) continue;
      (place->head ? of_heads : of_layers)[place->name][{place->layer, place->head.value_or(0)}] =
          mean;
    }
    for (auto& [name, grid] : of_layers) curves[name].emplace_back(&setting, std::move(grid));
    for (auto& [name, grid] : of_heads) maps[name].emplace_back(&setting, std::move(grid));
  }
  if (curves.empty() && maps.empty()) return;
  page.add(Heading{fmt::format("{}: by layer and head", task)});
  for (const auto& [name, grids] : curves) add_curves(task, name, grids, styles, page);
  for (const auto& [name, grids] : maps) {
    page.add(Heading{fmt::format("{}: {} by layer and head", task, name), 3});
    for (const auto& [setting, grid] : grids) add_map(task, name, *setting, grid, page);
  }
}

}  // namespace

bool is_of_layer(std::string_view counter) { return place_of(counter).has_value(); }

void add_layer_maps(const Settings& settings, Page& page) {
  for (const std::string& task : settings.tasks) add_task_maps(settings, task, page);
}

}  // namespace reprise::eval
