#include "eval/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "eval/report/sections.h"

namespace reprise::eval {
namespace {

constexpr const char* kHowToRead =
    "Differences are paired: score minus the reference's on the same samples, with 95 % bootstrap "
    "intervals; p values are adjusted by Holm over the policies of a task. Verdicts: better or "
    "worse are significant; equal means no difference at all; non-inferior means a loss beyond the "
    "margin is excluded; inconclusive means that these samples do not tell. Bytes are measured: "
    "keys, values and index read per generated token.";

void add_tasks(const Comparison& comparison, Page& page) {
  page.add(Paragraph{fmt::format("Reference: {}. Margin: {}. {}", comparison.reference,
                                 comparison.options.margin, kHowToRead)});
  if (!comparison.notes.empty()) page.add(Bullets{comparison.notes});
  for (const TaskComparison& task : comparison.tasks) add_task(task, comparison.reference, page);
}

}  // namespace

Styles styles_of(const Settings& settings) {
  Styles styles;
  size_t next = 1;
  for (const Setting& setting : settings.all)
    styles[setting.label] = &setting == &settings.ref() ? 0 : next++;
  return styles;
}

std::string decimal(double value) {
  return std::isfinite(value) ? fmt::format("{:.4f}", value) : "-";
}

std::string signed_decimal(double value) {
  return std::isfinite(value) ? fmt::format("{:+.4f}", value) : "-";
}

std::string range_text(const Interval& interval) {
  return fmt::format("[{}, {}]", decimal(interval.low), decimal(interval.high));
}

std::string file_name(std::string_view text) {
  std::string name;
  for (const char c : text) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (plain)
      name += c;
    else if (!name.empty() && name.back() != '-')
      name += '-';
  }
  while (name.ends_with('-')) name.pop_back();
  return name;
}

void Page::add(Figure figure) {
  constexpr size_t kLongest = 160;  // with what follows within the 255 bytes of file systems
  const std::string name = figure.name.substr(0, kLongest);
  const auto is_taken = [&](const Block& block) {
    const auto* other = std::get_if<Figure>(&block);
    return other != nullptr && other->name == figure.name;
  };
  figure.name = name;
  for (int n = 2; std::ranges::any_of(blocks, is_taken); ++n)
    figure.name = fmt::format("{}-{}", name, n);
  blocks.emplace_back(std::move(figure));
}

Page comparison_page(const Comparison& comparison) {
  Page page{"Comparison of policies", {}};
  add_tasks(comparison, page);
  return page;
}

Page report_page(const Settings& settings, const Comparison& comparison) {
  Page page{"Evaluation report", {}};
  add_runs(settings, page);
  add_limits(settings, comparison, page);
  page.add(Heading{"Verdicts"});
  add_tasks(comparison, page);
  add_subtasks(settings, page);
  add_positions(settings, page);
  add_heat_maps(settings, page);
  add_layer_maps(settings, page);
  add_costs(settings, page);
  add_failures(settings, page);
  return page;
}

}  // namespace reprise::eval
