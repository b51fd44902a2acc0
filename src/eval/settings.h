// Runs side by side: what each policy setting answered to the same samples.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "eval/records.h"

namespace reprise::eval {

/// A sample's value by its id.
using Values = std::map<std::string, double>;
/// A value by position, by sample's id.
using StepValues = std::map<std::string, std::map<uint64_t, double>>;

/// One metric of a setting in a task.
struct Scored {
  Values samples;
  StepValues steps;          // empty where the run holds none
  bool has_subtasks = true;  // that ids name
};

/// What one setting did in one task.
struct TaskRecords {
  std::map<std::string, const SampleRecord*> samples;  // by id; the last record of an id counts
  std::vector<const StepRecord*> steps;

  /// The metric of every sample that has one; failed samples have none.
  Values values(std::string_view metric) const;
  /// The metric at every position that has one.
  StepValues step_values(std::string_view metric) const;
  /// Texts, which have steps, are named after their books: those are no subtasks.
  bool has_subtasks() const { return steps.empty(); }
  Scored scored(std::string_view metric) const {
    return {values(metric), step_values(metric), has_subtasks()};
  }
  /// Mean of a counter over the answered samples that have it, and the metric where one is named
  /// and any has it; NaN when none has.
  double mean_counter(std::string_view name, std::string_view metric = {}) const;
  size_t failed() const;
  size_t truncated() const;
};

/// One policy with its options. Records belong to the RunFiles it was joined from.
struct Setting {
  std::string label;   // the policy's spec, with file or number where specs alone are not unique
  std::string family;  // the spec without options: "quest", "mac+csattention"
  std::string path;    // of its (first) file
  RunRecord run;
  std::map<std::string, TaskRecords> tasks;

  const TaskRecords* find(const std::string& task) const;
};

struct JoinOptions {
  std::string reference = "full";  // policy spec or family
  bool allow_different = false;    // models, KV types, scopes, data and prompts may; it is noted
};

/// All settings; the one that the others are compared with is named by reference.
struct Settings {
  std::vector<Setting> all;
  size_t reference = 0;
  std::vector<std::string> tasks;  // in order of their first sample
  std::vector<std::string> notes;  // what a reader of the comparison must know

  const Setting& ref() const { return all[reference]; }
  /// Names in scores, counters or timing of a task's samples, in order of their first appearance;
  /// of scores, the headline is the first.
  std::vector<std::string> names(const std::string& task, NamedNumbers SampleRecord::*field) const;
  std::vector<std::string> metrics(const std::string& task) const {
    return names(task, &SampleRecord::scores);
  }
};

/// Runs with the same id and other samples (shards) become one setting, and so do runs of a policy
/// that have no task in common, of the same model, KV type and scope. kInvalidArgument: no run,
/// no run of the reference policy, or two runs whose models, KV types, scopes, data or prompts
/// differ.
Result<Settings> join_runs(std::span<const RunFile> files, const JoinOptions& options);

/// The value of a number by name; NaN when there is none.
double find_number(const NamedNumbers& numbers, std::string_view name);
/// Whether a score is better when it is smaller (nll, kl, rank, ...).
bool lower_is_better(std::string_view metric);
/// "quest" of "quest:block=16,budget=1024".
std::string policy_family(std::string_view spec);
/// "hotpotqa" of "hotpotqa/17", a sample of a task with subtasks; empty for others.
std::string_view subtask_of(std::string_view id);
/// "book/3" of "book/3@4096" and "book/3@4096#7", readings of a text; others are their own.
std::string_view text_of(std::string_view id);

}  // namespace reprise::eval
