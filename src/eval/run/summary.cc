#include "eval/run/summary.h"

#include <algorithm>
#include <cmath>

#include "base/try.h"
#include "eval/paired.h"
#include "eval/settings.h"

namespace reprise::eval {
namespace {

double mean_score(const TaskRecords& records, std::string_view metric) {
  double sum = 0;
  const Values values = records.values(metric);
  for (const auto& [id, value] : values) sum += value;
  return sum / static_cast<double>(values.size());  // NaN of none
}

std::string metric_of(const TaskRecords& records, const std::string& headline) {
  if (!records.values(headline).empty()) return headline;
  for (const auto& [id, sample] : records.samples)
    if (!sample->scores.empty()) return sample->scores.front().first;
  return headline;
}

// Means of everything that was counted, then of the scores that every task may have.
NamedNumbers means(const TaskRecords& records) {
  NamedNumbers means;
  const auto add = [&](const std::string& name, double value) {
    if (std::isfinite(value) && std::isnan(find_number(means, name)))
      means.emplace_back(name, value);
  };
  for (const auto& [id, sample] : records.samples)
    for (const auto& [name, value] : sample->counters) add(name, records.mean_counter(name));
  for (const char* metric : {"nll", "kl"}) add(metric, mean_score(records, metric));
  return means;
}

EvalRow row_of(const Setting& setting, const TaskRecords& records, const SummaryTask& task) {
  EvalRow row;
  row.policy = setting.run.policy;
  SummaryRecord& summary = row.summary;
  summary.run = setting.run.id;
  summary.task = task.name;
  summary.metric = metric_of(records, task.headline);
  summary.n = records.values(summary.metric).size();
  summary.failed = records.failed();
  const Interval score = score_of(records.scored(summary.metric), setting.run.seed);
  summary.score = score.mean;
  summary.low = score.low;
  summary.high = score.high;
  summary.counters = means(records);
  return row;
}

std::string cell(double value, int digits) {
  return std::isfinite(value) ? fmt::format("{:.{}f}", value, digits) : "-";
}

}  // namespace

Result<std::vector<EvalRow>> summarize_runs(const RunFile& file, std::span<const RunRecord> runs,
                                            std::span<const SummaryTask> tasks) {
  JoinOptions join;
  join.reference = runs.front().policy;
  join.allow_different = true;  // the file may hold other runs, which are left alone
  REPRISE_TRY(const Settings settings, join_runs({&file, 1}, join));
  std::vector<EvalRow> rows;
  for (const SummaryTask& task : tasks) {
    for (const RunRecord& run : runs) {
      const auto setting =
          std::find_if(settings.all.begin(), settings.all.end(),
                       [&](const Setting& candidate) { return candidate.run.id == run.id; });
      const TaskRecords* records =
          setting == settings.all.end() ? nullptr : setting->find(task.name);
      if (records != nullptr) rows.push_back(row_of(*setting, *records, task));
    }
  }
  return rows;
}

nlohmann::ordered_json eval_json(const EvalReport& report) {
  nlohmann::ordered_json json = {{"model", report.model.name}, {"out", report.out}};
  auto& rows = json["rows"] = nlohmann::ordered_json::array();
  for (const EvalRow& row : report.rows) {
    auto summary = nlohmann::ordered_json::parse(to_line(row.summary));
    summary.erase("type");
    summary["policy"] = row.policy;
    rows.push_back(std::move(summary));
  }
  json["notes"] = report.notes;
  json["failed"] = report.failed;
  if (report.failed > 0) json["first_failure"] = report.first_failure;
  return json;
}

std::string eval_markdown(const EvalReport& report) {
  std::string text =
      "| task | policy | n | failed | metric | score | 95 % interval | NLL | KL | KiB per token |"
      " of full |\n|---|---|---|---|---|---|---|---|---|---|---|\n";
  for (const EvalRow& row : report.rows) {
    const SummaryRecord& s = row.summary;
    const double index = find_number(s.counters, "index_bytes_read_per_token");
    const double bytes =
        find_number(s.counters, "kv_bytes_per_token") + (std::isfinite(index) ? index : 0);
    const double full = find_number(s.counters, "full_kv_bytes_per_token");
    const double nll = find_number(s.counters, "nll"), kl = find_number(s.counters, "kl");
    text += fmt::format("| {} | {} | {} | {} | {} | {} | {} .. {} | {} | {} | {} | {} |\n", s.task,
                        row.policy, s.n, s.failed, s.metric, cell(s.score, 4), cell(s.low, 4),
                        cell(s.high, 4), cell(nll, 4), cell(kl, 5), cell(bytes / 1024, 1),
                        cell(bytes / full, 3));
  }
  return text;
}

}  // namespace reprise::eval
