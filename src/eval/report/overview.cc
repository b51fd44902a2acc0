// What was run, and what its numbers do not show.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/units.h"
#include "eval/report/sections.h"

namespace reprise::eval {
namespace {

constexpr uint64_t kSmallWeights = uint64_t{2} << 30;  // bytes: about a billion parameters
constexpr size_t kFewSamples = 50;

struct Field {
  const char* name;
  std::string (*text)(const RunRecord&);
};

const Field kFields[] = {
    {"model", [](const RunRecord& run) { return run.model; }},
    {"weights", [](const RunRecord& run) { return run.model_sha256; }},
    {"quantization", [](const RunRecord& run) { return run.quantization; }},
    {"weight bytes",
     [](const RunRecord& run) {
       return run.weight_bytes == 0 ? std::string() : bytes_text(run.weight_bytes);
     }},
    {"KV type", [](const RunRecord& run) { return run.kv_type; }},
    {"scope", [](const RunRecord& run) { return run.scope; }},
    {"seed", [](const RunRecord& run) { return std::to_string(run.seed); }},
    {"version", [](const RunRecord& run) { return run.version; }},
    {"machine", [](const RunRecord& run) { return run.machine; }},
    {"time", [](const RunRecord& run) { return run.time; }},
    {"run", [](const RunRecord& run) { return run.id; }},
};

// Empty and known values of a field over all runs.
std::set<std::string> values_of(const Settings& settings, const Field& field) {
  std::set<std::string> values;
  for (const Setting& setting : settings.all) values.insert(field.text(setting.run));
  return values;
}

bool any_run(const Settings& settings, bool (*holds)(const RunRecord&)) {
  return std::any_of(settings.all.begin(), settings.all.end(),
                     [&](const Setting& setting) { return holds(setting.run); });
}

std::vector<std::string> model_limits(const Settings& settings) {
  std::vector<std::string> limits;
  if (any_run(settings, [](const RunRecord& run) {
        return run.weight_bytes > 0 && run.weight_bytes < kSmallWeights;
      }))
    limits.emplace_back(
        "The model is small. It answers questions about distributions (likelihood, divergence, "
        "recovery) and about cost; its task scores show at most that a policy is the same as full "
        "attention, not how well larger models do.");
  if (any_run(settings, [](const RunRecord& run) {
        return run.quantization.find("Q4") != std::string::npos ||
               run.quantization.find("q4") != std::string::npos;
      }))
    limits.emplace_back(
        "The weights have 4 bits. Differences between policies are on the same weights and hold; "
        "absolute scores are not those of published tables.");
  if (any_run(settings, [](const RunRecord& run) { return run.scope == "decode"; }))
    limits.emplace_back(
        "Scope decode: prompts were read by full attention, and the first token of every answer "
        "comes from there. Short answers hardly test a policy; see also tail:N and teacher.");
  return limits;
}

// Which tasks have too few samples to say much, and what they could have shown.
std::vector<std::string> size_limits(const Comparison& comparison) {
  std::vector<std::string> limits;
  for (const TaskComparison& task : comparison.tasks) {
    size_t n = 0;
    double widest = 0;
    for (const Row& row : task.rows) {
      n = std::max(n, row.n);
      const Interval& value = row.difference.value;
      if (row.difference.n > 0) widest = std::max(widest, (value.high - value.low) / 2);
    }
    if (n < kFewSamples)
      limits.push_back(fmt::format(
          "{} ({}) has {} samples; claims need {}. The widest interval of a difference is "
          "+-{:.4f}: smaller effects cannot be seen.",
          task.task, task.metric, n, kFewSamples, widest));
  }
  return limits;
}

}  // namespace

void add_runs(const Settings& settings, Page& page) {
  page.add(Heading{"Runs"});
  Table common{{"of all runs", "value"}, {}, 2};
  Table each{{"policy"}, {}, 100};
  std::vector<const Field*> different;
  for (const Field& field : kFields) {
    const std::set<std::string> values = values_of(settings, field);
    if (values.size() > 1) {
      different.push_back(&field);
      each.head.emplace_back(field.name);
    } else if (!values.begin()->empty()) {
      common.rows.push_back({field.name, *values.begin()});
    }
  }
  each.head.emplace_back("file");
  std::set<std::pair<std::string, std::string>> data;
  for (const Setting& setting : settings.all) {
    std::vector<std::string> row{setting.label};
    for (const Field* field : different) row.push_back(field->text(setting.run));
    row.push_back(setting.path);
    each.rows.push_back(std::move(row));
    data.insert(setting.run.data.begin(), setting.run.data.end());
  }
  for (const auto& [task, hash] : data) common.rows.push_back({"data of " + task, hash});
  page.add(std::move(common));
  page.add(std::move(each));
}

void add_limits(const Settings& settings, const Comparison& comparison, Page& page) {
  std::vector<std::string> limits = model_limits(settings);
  for (std::string& limit : size_limits(comparison)) limits.push_back(std::move(limit));
  const auto has = [&](const std::string& family) {
    return std::any_of(settings.all.begin(), settings.all.end(), [&](const Setting& setting) {
      return setting.family == family || setting.family.ends_with("+" + family);
    });
  };
  for (const char* control : {"full", "random", "streaming"}) {
    if (!has(control)) limits.push_back(fmt::format("The control policy {} was not run.", control));
  }
  if (limits.empty()) return;
  page.add(Heading{"What these numbers do not show"});
  page.add(Bullets{std::move(limits)});
}

}  // namespace reprise::eval
