#include "eval/report/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/units.h"

namespace reprise::eval {
namespace {

// Okabe and Ito's palette without yellow, which is lost on white. Series 0, the reference, has the
// colour of the text.
constexpr size_t kColours = 6;
constexpr std::string_view kStyle = R"(
.plot{font:12px system-ui,"DejaVu Sans",sans-serif;color:#1b1f24;max-width:100%;height:auto}
.plot .paper{fill:#fff}
.plot text{fill:currentColor}
.plot text.small{font-size:11px}
.plot text.label{font-size:11px;paint-order:stroke;stroke:#fff;stroke-width:3px}
.plot text.name{font-weight:600}
.plot text.dark{fill:#10131a}
.plot text.light{fill:#fff}
.plot .grid{stroke:currentColor;stroke-opacity:.14}
.plot .axis{stroke:currentColor;stroke-opacity:.65}
.plot .front{fill:none;stroke:currentColor;stroke-opacity:.55;stroke-dasharray:2 4;stroke-width:1.5}
.plot .cell{stroke:currentColor;stroke-opacity:.25}
.plot .line{fill:none;stroke:currentColor;stroke-width:1.8}
.plot .bar{stroke:currentColor;stroke-width:1.2;stroke-opacity:.7}
.plot .band{fill:currentColor;fill-opacity:.1}
.plot .mark{fill:currentColor}
.plot .s1{color:#0072b2}.plot .s2{color:#d55e00}.plot .s3{color:#009e73}
.plot .s4{color:#cc79a7}.plot .s5{color:#e69f00}.plot .s6{color:#56b4e9}
.plot .d1{stroke-dasharray:7 3}.plot .d2{stroke-dasharray:2 3}
@media (prefers-color-scheme:dark){
.plot{color:#e4e7eb}.plot .paper{fill:#14171c}.plot text.label{stroke:#14171c}
.plot .s1{color:#3fa0dc}
}
)";

bool finite(Svg::Point point) { return std::isfinite(point.x) && std::isfinite(point.y); }

std::string css_attribute(std::string_view css) {
  return css.empty() ? "" : fmt::format(" class=\"{}\"", css);
}

// Colour and, from the second round of colours on, dash of a series.
std::string line_class(size_t series) {
  std::string css = "line " + Svg::series_class(series);
  if (series > kColours) css += series > 2 * kColours ? " d2" : " d1";
  return css;
}

// 1, 2 or 5 times a power of ten, so that about count steps cover the range.
double nice_step(double range, int count) {
  const double raw = range / count;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (raw <= factor * power * 1.0001) return factor * power;
  return 10 * power;
}

}  // namespace

std::string escape_markup(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
    }
  }
  return out;
}

std::string_view plot_style() { return kStyle; }

std::string number_text(double value, Unit unit) {
  if (!std::isfinite(value)) return "-";
  if (unit == Unit::kBytes && value >= 0)
    return bytes_text(static_cast<uint64_t>(std::llround(value)));
  if (unit == Unit::kTokens && value >= 1024 && std::fmod(value, 256.0) == 0)
    return fmt::format("{:.4g}K", value / 1024);
  const double size = std::abs(value);
  if (size != 0 && (size < 1e-3 || size >= 1e6)) return fmt::format("{:.3g}", value);
  return fmt::format("{:.4g}", value);
}

std::string Svg::series_class(size_t series) {
  return fmt::format("s{}", series == 0 ? 0 : (series - 1) % kColours + 1);
}

Svg::Svg(double width, double height, std::string_view title)
    : width_(width), height_(height), title_(title) {}

void Svg::line(Point from, Point to, std::string_view css) {
  if (!finite(from) || !finite(to)) return;
  body_ += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"{}/>\n",
                       from.x, from.y, to.x, to.y, css_attribute(css));
}

void Svg::rect(Point corner, double width, double height, std::string_view css,
               std::string_view fill, std::string_view tip) {
  if (!finite(corner)) return;
  body_ += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"{}",
                       corner.x, corner.y, width, height, css_attribute(css));
  if (!fill.empty()) body_ += fmt::format(" fill=\"{}\"", fill);
  body_ += tip.empty() ? "/>\n" : fmt::format("><title>{}</title></rect>\n", escape_markup(tip));
}

void Svg::path(const std::vector<Point>& points, std::string_view css, bool closed) {
  std::string moves;
  bool pen_down = false;  // a point that is not finite interrupts the line
  for (const Point& point : points) {
    if (finite(point))
      moves += fmt::format("{}{:.1f} {:.1f}", pen_down ? "L" : "M", point.x, point.y);
    pen_down = finite(point);
  }
  if (moves.empty()) return;
  body_ += fmt::format("<path d=\"{}{}\"{}/>\n", moves, closed ? "Z" : "", css_attribute(css));
}

void Svg::text(Point at, std::string_view content, std::string_view anchor, std::string_view css) {
  if (!finite(at)) return;
  body_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", at.x,
                       at.y, anchor, css_attribute(css), escape_markup(content));
}

void Svg::vertical_text(Point at, std::string_view content) {
  body_ += fmt::format(
      "<text transform=\"translate({:.1f} {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
      at.x, at.y, escape_markup(content));
}

void Svg::series_line(const std::vector<Point>& points, size_t series) {
  if (points.size() > 1) path(points, line_class(series));
}

void Svg::marker(Point at, size_t series, std::string_view tip) {
  if (!finite(at)) return;
  constexpr double kSize = 4.6;
  const auto corner = [&](double x, double y) {
    return fmt::format("{:.1f} {:.1f}", at.x + x * kSize, at.y + y * kSize);
  };
  std::string shape;
  switch (series % 5) {
    case 0:
      shape = fmt::format("M{}a{s} {s} 0 1 0 {d:.1f} 0a{s} {s} 0 1 0 -{d:.1f} 0Z", corner(-1, 0),
                          fmt::arg("s", kSize), fmt::arg("d", 2 * kSize));
      break;
    case 1:
      shape = fmt::format("M{}L{}L{}L{}Z", corner(-.9, -.9), corner(.9, -.9), corner(.9, .9),
                          corner(-.9, .9));
      break;
    case 2:
      shape = fmt::format("M{}L{}L{}Z", corner(0, -1.15), corner(1.1, .85), corner(-1.1, .85));
      break;
    case 3:
      shape = fmt::format("M{}L{}L{}L{}Z", corner(0, -1.25), corner(1.25, 0), corner(0, 1.25),
                          corner(-1.25, 0));
      break;
    default:
      shape = fmt::format("M{}L{}L{}Z", corner(0, 1.15), corner(1.1, -.85), corner(-1.1, -.85));
  }
  body_ += fmt::format("<path d=\"{}\" class=\"mark {}\"><title>{}</title></path>\n", shape,
                       series_class(series), escape_markup(tip));
}

void Svg::legend_entry(Point at, size_t series, std::string_view name, bool with_line) {
  if (with_line) series_line({{at.x - 11, at.y}, {at.x + 11, at.y}}, series);
  marker(at, series, name);
  text({at.x + 17, at.y + 4}, name);
}

std::string Svg::finish(bool standalone) const {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"plot\" role=\"img\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\">\n<title>{2}</title>\n{3}"
      "<rect class=\"paper\" width=\"{0:.0f}\" height=\"{1:.0f}\"/>\n{4}</svg>\n",
      width_, height_, escape_markup(title_),
      standalone ? fmt::format("<style>{}</style>\n", kStyle) : "", body_);
}

Scale::Scale(double low, double high, Unit unit, bool logarithmic)
    : low_(low), high_(high), unit_(unit), logarithmic_(logarithmic && low > 0) {
  if (!(high_ > low_)) high_ = low_ + std::max(std::abs(low_) * 0.1, 1e-3);
  if (logarithmic_) {
    const double margin = std::pow(high_ / low_, 0.05);
    low_ /= margin;
    high_ *= margin;
  } else {
    const double margin = 0.05 * (high_ - low_);
    // Sizes and counts start at zero, not below it.
    low_ = low_ >= 0 ? std::max(0.0, low_ - margin) : low_ - margin;
    high_ += margin;
  }
}

double Scale::operator()(double value) const {
  const double share = logarithmic_ ? std::log(value / low_) / std::log(high_ / low_)
                                    : (value - low_) / (high_ - low_);
  return pixels_.first + share * (pixels_.second - pixels_.first);
}

std::vector<double> Scale::ticks() const {
  constexpr int kCount = 6;
  std::vector<double> ticks;
  const double octaves = logarithmic_ ? std::log2(high_ / low_) : 0;
  if (octaves >= 2) {  // fewer would have hardly a tick
    const double step = std::max(1.0, std::ceil(octaves / kCount));
    for (double e = std::ceil(std::log2(low_)); e <= std::log2(high_); e += step)
      ticks.push_back(std::exp2(e));
    return ticks;
  }
  double step = nice_step(high_ - low_, kCount);
  if (unit_ != Unit::kPlain) step = std::exp2(std::ceil(std::log2((high_ - low_) / kCount)));
  const auto first = static_cast<int64_t>(std::ceil(low_ / step - 1e-9));
  for (int64_t i = first; static_cast<double>(i) * step <= high_ * (1 + 1e-12); ++i)
    ticks.push_back(static_cast<double>(i) * step);
  return ticks;
}

void Frame::draw(Svg& svg, Scale& x, Scale& y, std::string_view x_name,
                 std::string_view y_name) const {
  x.set_pixels(left, right);
  y.set_pixels(bottom, top);
  for (const double tick : x.ticks()) {
    svg.line({x(tick), top}, {x(tick), bottom}, "grid");
    svg.text({x(tick), bottom + 17}, number_text(tick, x.unit()), "middle", "small");
  }
  for (const double tick : y.ticks()) {
    svg.line({left, y(tick)}, {right, y(tick)}, "grid");
    svg.text({left - 7, y(tick) + 4}, number_text(tick, y.unit()), "end", "small");
  }
  svg.line({left, bottom}, {right, bottom}, "axis");
  svg.line({left, top}, {left, bottom}, "axis");
  svg.text({(left + right) / 2, bottom + 38}, x_name, "middle");
  svg.vertical_text({16, (top + bottom) / 2}, y_name);
}

}  // namespace reprise::eval
