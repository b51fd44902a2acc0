// Subtasks, counters, timings and what went wrong.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/percentile.h"
#include "eval/paired.h"
#include "eval/report/sections.h"

namespace reprise::eval {
namespace {

using Numbers = NamedNumbers SampleRecord::*;

double median(const TaskRecords& records, Numbers field, const std::string& name) {
  std::vector<double> values;
  for (const auto& [id, sample] : records.samples) {
    const double value = find_number(sample->*field, name);
    if (!sample->failed() && std::isfinite(value)) values.push_back(value);
  }
  return values.empty() ? std::numeric_limits<double>::quiet_NaN() : percentile(values, 0.5);
}

// "prompt tokens" of "prompt_tokens".
std::string spaced(std::string name) {
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}

std::string counter_text(const std::string& name, double value) {
  const bool bytes = name.find("bytes") != std::string::npos;
  return number_text(value, bytes ? Unit::kBytes : Unit::kPlain);
}

Table cost_table(const Settings& settings, const std::string& task) {
  std::vector<std::string> counters = settings.names(task, &SampleRecord::counters);
  std::erase_if(counters, is_of_layer);
  const std::vector<std::string> times = settings.names(task, &SampleRecord::timing);
  Table table{{"policy", "prompt tokens", "generated"}, {}, 1};
  for (const std::string& name : counters) table.head.push_back(spaced(name));
  for (const std::string& name : times) table.head.push_back(spaced(name) + " ms");
  for (const Setting& setting : settings.all) {
    const TaskRecords* records = setting.find(task);
    if (records == nullptr) continue;
    double prompt = 0, generated = 0;
    for (const auto& [id, sample] : records->samples) {
      if (sample->failed()) continue;
      prompt += static_cast<double>(sample->prompt_tokens);
      generated += static_cast<double>(sample->generated_tokens);
    }
    const auto n = std::max(1.0, static_cast<double>(records->samples.size() - records->failed()));
    std::vector<std::string> row{setting.label, fmt::format("{:.1f}", prompt / n),
                                 fmt::format("{:.1f}", generated / n)};
    for (const std::string& name : counters)
      row.push_back(counter_text(name, records->mean_counter(name)));
    for (const std::string& name : times)
      row.push_back(number_text(median(*records, &SampleRecord::timing, name)));
    table.rows.push_back(std::move(row));
  }
  return table;
}

struct Failures {
  size_t failed = 0, truncated = 0, empty = 0;
  std::map<std::string, size_t> finish;
  std::string first_error;
};

Failures failures_of(const TaskRecords& records) {
  Failures failures;
  failures.failed = records.failed();
  failures.truncated = records.truncated();
  for (const auto& [id, sample] : records.samples) {
    ++failures.finish[sample->finish];
    // Trajectories have no predictions; an answer that has references should have one.
    failures.empty += !sample->failed() && !sample->references.empty() &&
                      sample->prediction.find_first_not_of(" \t\n") == std::string::npos;
    if (failures.first_error.empty() && !sample->error.empty())
      failures.first_error = fmt::format("{}: {}", id, sample->error);
  }
  return failures;
}

}  // namespace

void add_subtasks(const Settings& settings, Page& page) {
  for (const std::string& task : settings.tasks) {
    const std::string metric = settings.metrics(task).empty() ? "" : settings.metrics(task)[0];
    Table table{{"subtask"}, {}, 1};
    std::map<std::string, std::vector<std::string>> rows;
    std::vector<std::map<std::string, Values>> columns;
    for (const Setting& setting : settings.all) {
      const TaskRecords* records = setting.find(task);
      if (records == nullptr || !records->has_subtasks()) continue;
      table.head.push_back(setting.label);
      auto& column = columns.emplace_back();
      for (const auto& [id, value] : records->values(metric)) {
        if (subtask_of(id).empty()) continue;
        const std::string subtask(subtask_of(id));
        column[subtask].emplace(id, value);
        rows.try_emplace(subtask);
      }
    }
    if (rows.size() < 2) continue;
    for (auto& [subtask, row] : rows) {
      row.push_back(subtask);
      for (auto& column : columns) {
        double sum = 0;
        for (const auto& [id, value] : column[subtask]) sum += value;
        const size_t n = column[subtask].size();
        row.push_back(
            n == 0 ? "-" : fmt::format("{} (n = {})", decimal(sum / static_cast<double>(n)), n));
      }
      table.rows.push_back(std::move(row));
    }
    page.add(Heading{fmt::format("{}: {} by subtask", task, metric)});
    page.add(std::move(table));
  }
}

void add_costs(const Settings& settings, Page& page) {
  page.add(Heading{"Counters and timings"});
  page.add(Paragraph{
      "Means of counters and medians of times over the answered samples of a task. Times are those "
      "of an evaluation, one after another; speed is measured by bench, in turns."});
  for (const std::string& task : settings.tasks) {
    page.add(Heading{task, 3});
    page.add(cost_table(settings, task));
  }
}

void add_failures(const Settings& settings, Page& page) {
  page.add(Heading{"Failures and cut samples"});
  Table table{
      {"task", "policy", "ended by", "first error", "n", "failed", "truncated", "empty"}, {}, 4};
  for (const std::string& task : settings.tasks) {
    for (const Setting& setting : settings.all) {
      const TaskRecords* records = setting.find(task);
      if (records == nullptr) continue;
      const Failures failures = failures_of(*records);
      std::string ends;
      for (const auto& [finish, n] : failures.finish)
        ends += fmt::format("{}{} {}", ends.empty() ? "" : ", ", n, finish);
      table.rows.push_back({task, setting.label, ends, failures.first_error,
                            std::to_string(records->samples.size()),
                            std::to_string(failures.failed), std::to_string(failures.truncated),
                            std::to_string(failures.empty)});
    }
  }
  page.add(std::move(table));
}

}  // namespace reprise::eval
