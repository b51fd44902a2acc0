// Parts of a report; each adds what it has to a page, or nothing.
#pragma once

#include <map>
#include <string>

#include "eval/compare.h"
#include "eval/report/page.h"
#include "eval/settings.h"

namespace reprise::eval {

/// Line or colour of each name in a plot: 0 for the reference, then in order.
using Styles = std::map<std::string, size_t>;
Styles styles_of(const Settings& settings);

/// "-" for what is not a number.
std::string decimal(double value);
std::string signed_decimal(double value);
/// "[0.1200, 0.3400]"
std::string range_text(const Interval& interval);
/// A name for a figure's file: letters, digits and dashes.
std::string file_name(std::string_view text);

void add_task(const TaskComparison& task, const std::string& reference, Page& page);
void add_runs(const Settings& settings, Page& page);
void add_limits(const Settings& settings, const Comparison& comparison, Page& page);
void add_positions(const Settings& settings, Page& page);
void add_heat_maps(const Settings& settings, Page& page);
/// Curves of counters of layers ("hits_layer3"), maps of those of heads ("hits_layer3_head5").
void add_layer_maps(const Settings& settings, Page& page);
bool is_of_layer(std::string_view counter);
void add_subtasks(const Settings& settings, Page& page);
void add_costs(const Settings& settings, Page& page);
void add_failures(const Settings& settings, Page& page);

}  // namespace reprise::eval
