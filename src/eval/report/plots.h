// The kinds of plots in reports.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "eval/report/svg.h"

namespace reprise::eval {

struct PlotPoint {
  double x = 0, y = 0;
  double low = 0, high = 0;  // interval of y; drawn as bar or band unless it is empty
  std::string label;         // written beside the point where there is room
  std::string tip;
};

struct PlotSeries {
  std::string name;
  size_t style = 0;  // colour, marker and dash; 0 is the reference's
  std::vector<PlotPoint> points;
};

struct XyPlot {
  std::string title, x_name, y_name;
  Unit x_unit = Unit::kPlain;
  bool logarithmic_x = false;
  bool bands = false;  // intervals as bands along the line, else as a bar at each point
  std::vector<PlotSeries> series;
  std::vector<Svg::Point> front;  // data coordinates; a dotted line; empty: none
};

Svg draw(const XyPlot& plot);

/// Values on a grid, row by row; NaN where there is none.
struct HeatMap {
  std::string title, x_name, y_name;
  std::vector<std::string> columns, rows;
  std::vector<double> values;     // [rows, columns]
  std::vector<std::string> tips;  // as values
  double low = 0, high = 1;       // of the colour scale
  bool lower_is_better = false;   // bright, or blue, is the better end
  bool difference = false;        // colours that part at zero
};

Svg draw(const HeatMap& map);

}  // namespace reprise::eval
