#include "eval/settings.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/try.h"

namespace reprise::eval {
namespace {

// One run of one file, before it is known whether it belongs to another one as a shard.
Setting gather(const RunFile& file, const RunRecord& run) {
  Setting setting{run.policy, policy_family(run.policy), file.path, run, {}};
  for (const SampleRecord& sample : file.samples)
    if (sample.run == run.id) setting.tasks[sample.task].samples[sample.id] = &sample;
  for (const StepRecord& step : file.steps)
    if (step.run == run.id) setting.tasks[step.task].steps.push_back(&step);
  return setting;
}

bool share_samples(const Setting& a, const Setting& b) {
  for (const auto& [task, records] : a.tasks) {
    const TaskRecords* other = b.find(task);
    if (other == nullptr) continue;
    for (const auto& [id, sample] : records.samples)
      if (other->samples.contains(id)) return true;
  }
  return false;
}

void merge(Setting& into, Setting&& shard) {
  for (auto& [task, records] : shard.tasks) {
    TaskRecords& target = into.tasks[task];
    target.samples.merge(records.samples);
    target.steps.insert(target.steps.end(), records.steps.begin(), records.steps.end());
  }
  for (auto& data : shard.run.data) {
    if (std::find(into.run.data.begin(), into.run.data.end(), data) == into.run.data.end())
      into.run.data.push_back(std::move(data));
  }
}

void make_labels_unique(std::vector<Setting>& settings) {
  const auto count = [&](const std::string& label) {
    return std::count_if(settings.begin(), settings.end(),
                         [&](const Setting& s) { return s.label == label; });
  };
  std::vector<size_t> repeated;
  for (size_t i = 0; i < settings.size(); ++i)
    if (count(settings[i].label) > 1) repeated.push_back(i);
  for (const size_t i : repeated) settings[i].label += fmt::format(" ({})", settings[i].path);
  for (size_t i = settings.size(); i-- > 0;)
    for (int n = 2; count(settings[i].label) > 1; ++n)
      settings[i].label = fmt::format("{} ({}) #{}", settings[i].run.policy, settings[i].path, n);
}

std::string where(const Setting& setting) {
  return fmt::format("{} ({})", setting.run.policy, setting.path);
}

// A sample whose prompt differs, in words: another context cuts another middle out of a long one.
std::string other_prompt(const Setting& a, const Setting& b) {
  for (const auto& [task, records] : a.tasks) {
    const TaskRecords* others = b.find(task);
    if (others == nullptr) continue;
    for (const auto& [id, sample] : records.samples) {
      const auto other = others->samples.find(id);
      if (other == others->samples.end() || sample->failed() || other->second->failed()) continue;
      if (sample->prompt_tokens != other->second->prompt_tokens)
        return fmt::format("prompts of {} {}: {} and {} tokens, as with another --ctx", task, id,
                           sample->prompt_tokens, other->second->prompt_tokens);
    }
  }
  return {};
}

// What makes two runs incomparable, in words; empty when nothing does.
std::string difference(const Setting& a, const Setting& b) {
  if (a.run.model_sha256 != b.run.model_sha256)
    return fmt::format("models {} ({}) and {} ({})", a.run.model, a.run.model_sha256, b.run.model,
                       b.run.model_sha256);
  if (a.run.kv_type != b.run.kv_type)
    return fmt::format("KV types {} and {}", a.run.kv_type, b.run.kv_type);
  if (a.run.scope != b.run.scope) return fmt::format("scopes {} and {}", a.run.scope, b.run.scope);
  for (const auto& [task, hash] : a.run.data) {
    for (const auto& [other_task, other_hash] : b.run.data)
      if (task == other_task && hash != other_hash)
        return fmt::format("data of {}: {} and {}", task, hash, other_hash);
  }
  return other_prompt(a, b);
}

// A policy whose tasks were run one by one, each into a file of its own.
bool is_of_other_tasks(const Setting& a, const Setting& b) {
  const auto shared = [&](const auto& task) { return b.find(task.first) != nullptr; };
  return a.run.policy == b.run.policy && !a.tasks.empty() && !b.tasks.empty() &&
         std::none_of(a.tasks.begin(), a.tasks.end(), shared) && difference(a, b).empty();
}

std::vector<Setting> gather_all(std::span<const RunFile> files) {
  std::vector<Setting> settings;
  for (const RunFile& file : files) {
    std::vector<std::string> seen;  // a resumed run is declared again
    for (const RunRecord& run : file.runs) {
      if (std::find(seen.begin(), seen.end(), run.id) != seen.end()) continue;
      seen.push_back(run.id);
      Setting setting = gather(file, run);
      const auto same = std::find_if(settings.begin(), settings.end(), [&](const Setting& other) {
        return other.run.id == run.id ? !share_samples(other, setting)
                                      : is_of_other_tasks(other, setting);
      });
      if (same == settings.end())
        settings.push_back(std::move(setting));
      else
        merge(*same, std::move(setting));
    }
  }
  return settings;
}

Status check_comparable(Settings& settings, bool allow_different) {
  for (size_t i = 0; i < settings.all.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const std::string what = difference(settings.all[j], settings.all[i]);
      if (what.empty()) continue;
      const std::string both = fmt::format("{} and {} have different {}", where(settings.all[j]),
                                           where(settings.all[i]), what);
      if (!allow_different)
        return fail(ErrorCode::kInvalidArgument,
                    "{}; compare runs of the same, or say --allow-different", both);
      settings.notes.push_back(both);
      break;
    }
  }
  return {};
}

Result<size_t> find_reference(const std::vector<Setting>& settings, const std::string& reference) {
  for (size_t i = 0; i < settings.size(); ++i)
    if (settings[i].run.policy == reference || settings[i].label == reference) return i;
  for (size_t i = 0; i < settings.size(); ++i)
    if (settings[i].family == reference) return i;
  std::string known;
  for (const Setting& setting : settings) known += (known.empty() ? "" : ", ") + setting.label;
  return fail(ErrorCode::kInvalidArgument,
              "no run of policy \"{}\" to compare with; there are {}; choose one with --ref",
              reference, known);
}

}  // namespace

double find_number(const NamedNumbers& numbers, std::string_view name) {
  for (const auto& [key, value] : numbers)
    if (key == name) return value;
  return std::numeric_limits<double>::quiet_NaN();
}

bool lower_is_better(std::string_view metric) {
  constexpr std::string_view kParts[] = {"nll",   "kl",   "ppl",           "perplexity", "bits",
                                         "error", "rank", "contradiction", "no_match",   "capped"};
  return std::any_of(std::begin(kParts), std::end(kParts), [&](std::string_view part) {
    return metric.find(part) != std::string_view::npos;
  });
}

std::string policy_family(std::string_view spec) {
  std::string family;
  while (true) {
    const size_t plus = spec.find('+');
    const std::string_view one = spec.substr(0, plus);
    family += one.substr(0, one.find(':'));
    if (plus == std::string_view::npos) return family;
    family += '+';
    spec.remove_prefix(plus + 1);
  }
}

std::string_view subtask_of(std::string_view id) {
  const size_t slash = id.find('/');
  return slash == std::string_view::npos ? std::string_view() : id.substr(0, slash);
}

std::string_view text_of(std::string_view id) {
  constexpr std::string_view kDigits = "0123456789";
  const size_t at = id.rfind('@');
  if (at == std::string_view::npos) return id;
  const size_t end = id.find_first_not_of(kDigits, at + 1);
  // Behind the length a pooled reading has its seed; a text is the same whatever seed chose it.
  const bool reading =
      end == std::string_view::npos ||
      (id[end] == '#' && id.find_first_not_of(kDigits, end + 1) == std::string_view::npos);
  return reading ? id.substr(0, at) : id;
}

Values TaskRecords::values(std::string_view metric) const {
  Values values;
  for (const auto& [id, sample] : samples) {
    const double value = find_number(sample->scores, metric);
    if (!sample->failed() && std::isfinite(value)) values.emplace(id, value);
  }
  return values;
}

StepValues TaskRecords::step_values(std::string_view metric) const {
  StepValues values;
  for (const StepRecord* step : steps) {
    const double value = find_number(step->values, metric);
    if (std::isfinite(value)) values[step->id][step->position] = value;
  }
  return values;
}

double TaskRecords::mean_counter(std::string_view name, std::string_view metric) const {
  const Values measured = metric.empty() ? Values() : values(metric);
  double sum = 0;
  size_t n = 0;
  for (const auto& [id, sample] : samples) {
    const double value = find_number(sample->counters, name);
    if (sample->failed() || !std::isfinite(value)) continue;
    if (!measured.empty() && !measured.contains(id)) continue;
    sum += value;
    ++n;
  }
  return n == 0 ? std::numeric_limits<double>::quiet_NaN() : sum / static_cast<double>(n);
}

size_t TaskRecords::failed() const {
  return static_cast<size_t>(std::count_if(
      samples.begin(), samples.end(), [](const auto& entry) { return entry.second->failed(); }));
}

size_t TaskRecords::truncated() const {
  return static_cast<size_t>(std::count_if(
      samples.begin(), samples.end(), [](const auto& entry) { return entry.second->truncated; }));
}

const TaskRecords* Setting::find(const std::string& task) const {
  const auto at = tasks.find(task);
  return at == tasks.end() ? nullptr : &at->second;
}

std::vector<std::string> Settings::names(const std::string& task,
                                         NamedNumbers SampleRecord::*field) const {
  std::vector<std::string> found;
  for (const Setting& setting : all) {
    const TaskRecords* records = setting.find(task);
    if (records == nullptr) continue;
    for (const auto& [id, sample] : records->samples)
      for (const auto& [name, value] : sample->*field)
        if (std::find(found.begin(), found.end(), name) == found.end()) found.push_back(name);
  }
  return found;
}

Result<Settings> join_runs(std::span<const RunFile> files, const JoinOptions& options) {
  Settings settings;
  settings.all = gather_all(files);
  if (settings.all.empty())
    return fail(ErrorCode::kInvalidArgument, "no runs to compare: the files declare none");
  make_labels_unique(settings.all);
  REPRISE_CHECK(check_comparable(settings, options.allow_different));
  REPRISE_TRY(settings.reference, find_reference(settings.all, options.reference));
  for (const RunFile& file : files)
    for (const SampleRecord& sample : file.samples)
      if (std::find(settings.tasks.begin(), settings.tasks.end(), sample.task) ==
          settings.tasks.end())
        settings.tasks.push_back(sample.task);
  if (settings.tasks.empty())
    return fail(
        ErrorCode::kInvalidArgument,
        "nothing to compare: the runs have no samples yet; `reprise eval --resume` goes on");
  return settings;
}

}  // namespace reprise::eval
