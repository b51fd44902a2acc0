#include "eval/report/plots.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>

namespace reprise::eval {
namespace {

constexpr double kWidth = 840, kHeight = 380, kLegend = 250, kLegendLine = 21;

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void add(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  Scale scale(Unit unit, bool logarithmic) const {
    return low <= high ? Scale(low, high, unit, logarithmic) : Scale(0, 1, unit, false);
  }
};

bool has_interval(const PlotPoint& point) { return point.low < point.high; }

// At most limit characters (not bytes); settings differ in their ends, so the middle goes.
std::string shortened(const std::string& text, size_t limit) {
  std::vector<size_t> starts;  // of characters
  for (size_t i = 0; i < text.size(); ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) starts.push_back(i);
  if (starts.size() <= limit) return text;
  const size_t head = limit / 2, tail = limit - head - 1;
  return text.substr(0, starts[head]) + "…" + text.substr(starts[starts.size() - tail]);
}

struct Box {
  double left, top, right, bottom;
  bool meets(const Box& other) const {
    return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
  }
};

// Writes a label above, right, below or left of its point, where it covers nothing; nowhere if it
// would.
class Labels {
 public:
  Labels(Svg& svg, const Frame& frame) : svg_(svg), frame_(frame) {}

  void block(Svg::Point at) { taken_.push_back({at.x - 6, at.y - 6, at.x + 6, at.y + 6}); }

  void write(Svg::Point at, const std::string& label) {
    const double width = 6.2 * static_cast<double>(label.size());
    struct Place {
      double x, y;
      const char* anchor;
      double left;
    };
    const Place places[] = {{0, -10, "middle", -width / 2},
                            {9, 4, "start", 9},
                            {0, 18, "middle", -width / 2},
                            {-9, 4, "end", -9 - width}};
    for (const Place& place : places) {
      const Box box{at.x + place.left, at.y + place.y - 10, at.x + place.left + width,
                    at.y + place.y + 2};
      if (box.left < frame_.left || box.right > frame_.right || box.top < frame_.top ||
          box.bottom > frame_.bottom)
        continue;
      if (std::any_of(taken_.begin(), taken_.end(), [&](const Box& b) { return b.meets(box); }))
        continue;
      svg_.text({at.x + place.x, at.y + place.y}, label, place.anchor, "label");
      taken_.push_back(box);
      return;
    }
  }

 private:
  Svg& svg_;
  const Frame& frame_;
  std::vector<Box> taken_;
};

void draw_series(Svg& svg, const PlotSeries& series, const Scale& x, const Scale& y, bool bands) {
  const std::string colour = Svg::series_class(series.style);
  std::vector<Svg::Point> line, band, lower;
  for (const PlotPoint& point : series.points) {
    line.push_back({x(point.x), y(point.y)});
    if (!has_interval(point)) continue;
    if (bands) {
      band.push_back({x(point.x), y(point.high)});
      lower.push_back({x(point.x), y(point.low)});
    } else {
      svg.line({x(point.x), y(point.low)}, {x(point.x), y(point.high)}, "bar " + colour);
    }
  }
  band.insert(band.end(), lower.rbegin(), lower.rend());
  svg.path(band, "band " + colour, true);
  svg.series_line(line, series.style);
  for (size_t i = 0; i < line.size(); ++i) svg.marker(line[i], series.style, series.points[i].tip);
}

struct Colour {
  double r, g, b;
  std::string hex() const {
    return fmt::format("#{:02x}{:02x}{:02x}", std::lround(r), std::lround(g), std::lround(b));
  }
  double brightness() const { return (0.299 * r + 0.587 * g + 0.114 * b) / 255; }
};

// viridis, and blue to orange through light grey: both keep their order for every kind of colour
// vision.
constexpr std::array<Colour, 6> kSequential{
    {{68, 1, 84}, {65, 68, 135}, {42, 120, 142}, {34, 168, 132}, {122, 209, 81}, {253, 231, 37}}};
constexpr std::array<Colour, 5> kDiverging{
    {{179, 74, 0}, {230, 159, 94}, {242, 242, 242}, {109, 170, 214}, {0, 92, 150}}};

Colour blend(std::span<const Colour> stops, double share) {
  const double at = std::clamp(share, 0.0, 1.0) * static_cast<double>(stops.size() - 1);
  const size_t i = std::min(static_cast<size_t>(at), stops.size() - 2);
  const double t = at - static_cast<double>(i);
  const Colour &a = stops[i], &b = stops[i + 1];
  return {a.r + t * (b.r - a.r), a.g + t * (b.g - a.g), a.b + t * (b.b - a.b)};
}

Colour colour_of(const HeatMap& map, double value) {
  double share = map.high > map.low ? (value - map.low) / (map.high - map.low) : 0.5;
  if (map.lower_is_better) share = 1 - share;
  return map.difference ? blend(kDiverging, share) : blend(kSequential, share);
}

void draw_colour_bar(Svg& svg, const HeatMap& map, double left, double top, double height) {
  constexpr int kSteps = 32;
  for (int i = 0; i < kSteps; ++i) {
    const double value = map.high - (i + 0.5) / kSteps * (map.high - map.low);
    svg.rect({left, top + i * height / kSteps}, 12, height / kSteps + 0.3, {},
             colour_of(map, value).hex());
  }
  for (const double share : {0.0, 0.5, 1.0})
    svg.text({left + 17, top + height * (1 - share) + 4},
             number_text(map.low + share * (map.high - map.low)), "start", "small");
}

}  // namespace

Svg draw(const XyPlot& plot) {
  Range xs, ys;
  for (const PlotSeries& series : plot.series) {
    for (const PlotPoint& point : series.points) {
      xs.add(point.x);
      ys.add(point.y);
      if (!has_interval(point)) continue;
      ys.add(point.low);
      ys.add(point.high);
    }
  }
  Scale x = xs.scale(plot.x_unit, plot.logarithmic_x);
  Scale y = ys.scale(Unit::kPlain, false);
  const double height =
      std::max(kHeight, 60 + kLegendLine * static_cast<double>(plot.series.size()));
  Svg svg(kWidth, height, plot.title);
  const Frame frame{72, 36, kWidth - kLegend - 18, height - 52};
  svg.text({frame.left, 20}, plot.title, "start", "name");
  frame.draw(svg, x, y, plot.x_name, plot.y_name);

  std::vector<Svg::Point> front;
  for (const Svg::Point& point : plot.front) front.push_back({x(point.x), y(point.y)});
  svg.path(front, "front");
  Labels labels(svg, frame);
  double line = frame.top + 8;
  for (const PlotSeries& series : plot.series) {
    draw_series(svg, series, x, y, plot.bands);
    for (const PlotPoint& point : series.points) labels.block({x(point.x), y(point.y)});
    svg.legend_entry({frame.right + 32, line}, series.style, shortened(series.name, 31),
                     series.points.size() > 1);
    line += kLegendLine;
  }
  for (const PlotSeries& series : plot.series)
    for (const PlotPoint& point : series.points)
      if (!point.label.empty()) labels.write({x(point.x), y(point.y)}, shortened(point.label, 24));
  return svg;
}

Svg draw(const HeatMap& map) {
  constexpr double kCellWidth = 50, kCellHeight = 24, kLeft = 78, kTop = 34;
  const double columns = static_cast<double>(map.columns.size());
  const double rows = static_cast<double>(map.rows.size());
  const double right = kLeft + columns * kCellWidth, bottom = kTop + rows * kCellHeight;
  const double title_width = 24 + 7.2 * static_cast<double>(shortened(map.title, 60).size());
  Svg svg(std::max(right + 84, title_width), bottom + 46, map.title);
  svg.text({12, 20}, shortened(map.title, 60), "start", "name");
  for (size_t r = 0; r < map.rows.size(); ++r) {
    const double y = kTop + static_cast<double>(r) * kCellHeight;
    svg.text({kLeft - 7, y + 16}, map.rows[r], "end", "small");
    for (size_t c = 0; c < map.columns.size(); ++c) {
      const double x = kLeft + static_cast<double>(c) * kCellWidth;
      const double value = map.values[r * map.columns.size() + c];
      if (!std::isfinite(value)) {
        svg.rect({x, y}, kCellWidth, kCellHeight, "cell", "none", "not measured");
        continue;
      }
      const Colour colour = colour_of(map, value);
      svg.rect({x, y}, kCellWidth, kCellHeight, "cell", colour.hex(),
               map.tips[r * map.columns.size() + c]);
      svg.text({x + kCellWidth / 2, y + 16},
               fmt::format(fmt::runtime(map.difference ? "{:+.2f}" : "{:.2f}"), value), "middle",
               colour.brightness() > 0.5 ? "small dark" : "small light");
    }
  }
  for (size_t c = 0; c < map.columns.size(); ++c)
    svg.text({kLeft + (static_cast<double>(c) + 0.5) * kCellWidth, bottom + 16}, map.columns[c],
             "middle", "small");
  svg.text({(kLeft + right) / 2, bottom + 36}, map.x_name, "middle");
  svg.vertical_text({16, (kTop + bottom) / 2}, map.y_name);
  draw_colour_bar(svg, map, right + 18, kTop, bottom - kTop);
  return svg;
}

}  // namespace reprise::eval
