#include "eval/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "eval/equal_bytes.h"
#include "eval/paired.h"

namespace reprise::eval {
namespace {

using nlohmann::ordered_json;

double recovery_of(const TaskRecords& records) {
  const double counted = records.mean_counter("recovery");
  if (std::isfinite(counted)) return counted;
  const Values values = records.values("recovery");
  double sum = 0;
  for (const auto& [id, value] : values) sum += value;
  return values.empty() ? std::numeric_limits<double>::quiet_NaN()
                        : sum / static_cast<double>(values.size());
}

Row row_of(const Setting& setting, const TaskRecords& records, const TaskRecords* reference,
           const std::string& metric, const CompareOptions& options) {
  Row row;
  row.policy = setting.label;
  row.family = setting.family;
  const Scored scored = records.scored(metric);
  row.n = scored.samples.size();
  row.failed = records.failed();
  row.truncated = records.truncated();
  row.score = score_of(scored, options.seed);
  if (reference != nullptr)
    row.difference =
        paired_difference(scored, reference->scored(metric), lower_is_better(metric), options);
  row.cost = cost_of(records, metric);
  row.recovery = recovery_of(records);
  return row;
}

// Holm's correction over the policies that are compared with the reference.
void adjust(std::vector<Row>& rows, const std::string& reference, bool lower,
            const CompareOptions& options) {
  std::vector<Row*> tested;
  std::vector<double> p;
  for (Row& row : rows) {
    if (row.policy == reference) continue;
    tested.push_back(&row);
    p.push_back(row.difference.p);
  }
  const std::vector<double> adjusted = holm_adjusted(p);
  for (size_t i = 0; i < tested.size(); ++i) {
    tested[i]->difference.p_holm = adjusted[i];
    conclude(tested[i]->difference, lower, options);
  }
}

void find_pareto(std::vector<Row>& rows, bool lower) {
  const auto has_point = [](const Row& row) {
    return row.n > 0 && std::isfinite(row.cost.bytes());
  };
  for (Row& row : rows) {
    if (!has_point(row)) continue;
    for (const Row& other : rows) {
      if (!has_point(other)) continue;
      const double gain = (other.score.mean - row.score.mean) * (lower ? -1 : 1);
      const double saving = row.cost.bytes() - other.cost.bytes();
      if (gain >= 0 && saving >= 0 && (gain > 0 || saving > 0))
        row.dominated_by.push_back(other.policy);
    }
    row.pareto = row.dominated_by.empty();
  }
}

void note_gaps(const Settings& settings, TaskComparison& comparison) {
  const TaskRecords* reference = settings.ref().find(comparison.task);
  if (reference == nullptr) {
    comparison.notes.push_back(
        fmt::format("{} did not run this task: there are no differences", settings.ref().label));
    return;
  }
  const size_t expected = reference->values(comparison.metric).size();
  for (const Row& row : comparison.rows) {
    if (row.difference.n < expected)
      comparison.notes.push_back(fmt::format("{}: {} of the reference's {} samples are missing",
                                             row.policy, expected - row.difference.n, expected));
    if (row.failed > 0)
      comparison.notes.push_back(
          fmt::format("{}: {} samples failed and are in no mean", row.policy, row.failed));
  }
}

TaskComparison compare_task(const Settings& settings, const std::string& task,
                            const std::string& metric, const CompareOptions& options) {
  TaskComparison comparison{task, metric, lower_is_better(metric), {}, {}, {}};
  const TaskRecords* reference = settings.ref().find(task);
  for (const Setting& setting : settings.all)
    if (const TaskRecords* records = setting.find(task); records != nullptr)
      comparison.rows.push_back(row_of(setting, *records, reference, metric, options));
  adjust(comparison.rows, settings.ref().label, comparison.lower_is_better, options);
  find_pareto(comparison.rows, comparison.lower_is_better);
  note_gaps(settings, comparison);
  for (std::string& note : control_notes(settings, task, metric, options))
    comparison.notes.push_back(std::move(note));
  if (options.equal_bytes) comparison.groups = equal_bytes_groups(settings, task, metric, options);
  return comparison;
}

ordered_json difference_json(const Difference& difference) {
  return {{"n", difference.n},
          {"mean", difference.value.mean},
          {"low", difference.value.low},
          {"high", difference.value.high},
          {"p", difference.p},
          {"p_holm", difference.p_holm},
          {"verdict", verdict_name(difference.verdict)}};
}

ordered_json row_json(const Row& row) {
  return {{"policy", row.policy},
          {"n", row.n},
          {"failed", row.failed},
          {"truncated", row.truncated},
          {"score", row.score.mean},
          {"low", row.score.low},
          {"high", row.score.high},
          {"difference", difference_json(row.difference)},
          {"bytes_per_token", row.cost.bytes()},
          {"kv_bytes_per_token", row.cost.kv_bytes},
          {"index_bytes_read_per_token", row.cost.index_bytes},
          {"full_kv_bytes_per_token", row.cost.full_bytes},
          {"reduction", row.cost.reduction()},
          {"index_bytes", row.cost.state_bytes},
          {"recovery", row.recovery},
          {"dominated_by", row.dominated_by},
          {"pareto", row.pareto}};
}

ordered_json group_json(const EqualBytesGroup& group) {
  ordered_json json = {{"point", group.point},
                       {"bytes_per_token", group.bytes},
                       {"rows", ordered_json::array()},
                       {"absent", group.absent}};
  for (const EqualBytesRow& row : group.rows) {
    json["rows"].push_back({{"family", row.family},
                            {"setting", row.setting},
                            {"interpolated", row.interpolated},
                            {"bytes_per_token", row.bytes},
                            {"score", row.score},
                            {"difference", difference_json(row.to_reference)}});
    if (row.to_random)
      json["rows"].back()["difference_to_random"] = difference_json(*row.to_random);
  }
  return json;
}

ordered_json task_json(const TaskComparison& task) {
  ordered_json json = {{"task", task.task},
                       {"metric", task.metric},
                       {"lower_is_better", task.lower_is_better},
                       {"rows", ordered_json::array()}};
  for (const Row& row : task.rows) json["rows"].push_back(row_json(row));
  json["equal_bytes"] = ordered_json::array();
  for (const EqualBytesGroup& group : task.groups) json["equal_bytes"].push_back(group_json(group));
  json["notes"] = task.notes;
  return json;
}

}  // namespace

Result<Comparison> compare(const Settings& settings, const CompareOptions& options,
                           const ProgressFn& progress) {
  Comparison comparison{settings.ref().label, options, {}, {}, settings.notes};
  for (const Setting& setting : settings.all) comparison.runs.push_back(setting.run);
  std::vector<std::pair<std::string, std::string>> planned;
  for (const std::string& task : settings.tasks) {
    const std::vector<std::string> metrics = settings.metrics(task);
    for (size_t i = 0; i < metrics.size(); ++i)
      if (options.all_metrics || i == 0 || metrics[i] == "nll")
        planned.emplace_back(task, metrics[i]);
  }
  for (const auto& [task, metric] : planned) {
    if (progress && !progress({"compare", comparison.tasks.size(), planned.size(), "tables"}))
      return fail(ErrorCode::kCancelled, "stopped while comparing {}", task);
    comparison.tasks.push_back(compare_task(settings, task, metric, options));
  }
  return comparison;
}

ordered_json comparison_json(const Comparison& comparison) {
  ordered_json json = {
      {"reference", comparison.reference}, {"margin", comparison.options.margin},
      {"floor", comparison.options.floor}, {"tolerance", comparison.options.tolerance},
      {"seed", comparison.options.seed},   {"runs", ordered_json::array()},
      {"tasks", ordered_json::array()}};
  for (const RunRecord& run : comparison.runs)
    json["runs"].push_back({{"id", run.id}, {"policy", run.policy}, {"scope", run.scope}});
  for (const TaskComparison& task : comparison.tasks) json["tasks"].push_back(task_json(task));
  json["notes"] = comparison.notes;
  return json;
}

}  // namespace reprise::eval
