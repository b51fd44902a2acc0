// Drawing SVG by hand: shapes, scales and axes. Colours come from classes, so that a plot follows
// the reader's light or dark theme; series are told apart by colour, marker and dash.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace reprise::eval {

/// Text for element content and attribute values of HTML and SVG; control characters become spaces.
std::string escape_markup(std::string_view text);

/// The style sheet that every plot needs once per document.
std::string_view plot_style();

/// How numbers along an axis are written.
enum class Unit { kPlain, kTokens, kBytes };
std::string number_text(double value, Unit unit = Unit::kPlain);

/// One image in pixels; y grows downwards. Coordinates that are not finite draw nothing.
class Svg {
 public:
  struct Point {
    double x, y;
  };
  /// Class of a series: "s0" for the reference, then the colours in turn.
  static std::string series_class(size_t series);

  Svg(double width, double height, std::string_view title);

  void line(Point from, Point to, std::string_view css);
  void rect(Point corner, double width, double height, std::string_view css,
            std::string_view fill = {}, std::string_view tip = {});
  void path(const std::vector<Point>& points, std::string_view css, bool closed = false);
  /// anchor: start, middle or end.
  void text(Point at, std::string_view content, std::string_view anchor = "start",
            std::string_view css = {});
  /// Reads from bottom to top, centred at a point.
  void vertical_text(Point at, std::string_view content);
  /// The line of a series, in its colour and dash; a point that is not finite interrupts it.
  void series_line(const std::vector<Point>& points, size_t series);
  /// The shape of a series; tip is shown by a browser when pointed at.
  void marker(Point at, size_t series, std::string_view tip);
  /// A line of the legend: marker, stroke and name.
  void legend_entry(Point at, size_t series, std::string_view name, bool with_line);

  /// The image; standalone: as a file of its own, with style sheet.
  std::string finish(bool standalone) const;

 private:
  double width_, height_;
  std::string title_, body_;
};

/// Maps values to pixels, linear or logarithmic, and knows where ticks belong.
class Scale {
 public:
  /// The range is widened so that the ends do not touch the frame.
  Scale(double low, double high, Unit unit, bool logarithmic);
  void set_pixels(double at_low, double at_high) { pixels_ = {at_low, at_high}; }

  double operator()(double value) const;
  std::vector<double> ticks() const;
  Unit unit() const { return unit_; }
  double low() const { return low_; }
  double high() const { return high_; }

 private:
  double low_, high_;
  Unit unit_;
  bool logarithmic_;
  std::pair<double, double> pixels_{0, 1};
};

/// The frame of a plot: grid, ticks, axis names. Sets the scales' pixels.
struct Frame {
  double left, top, right, bottom;
  void draw(Svg& svg, Scale& x, Scale& y, std::string_view x_name, std::string_view y_name) const;
};

}  // namespace reprise::eval
