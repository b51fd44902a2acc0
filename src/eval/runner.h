// Runs tasks under policies on one engine and writes what comes out, sample by sample.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "eval/records.h"
#include "eval/task.h"
#include "reprise/engine.h"

namespace reprise::eval {

struct EvalOptions {
  std::string data;
  std::string out;
  std::string prompts;
  std::string scope = "decode";
  uint32_t limit = 0;
  uint32_t steps = 128;
  uint64_t seed = 1234;
  bool resume = false;
};

template <class Visitor>
void visit_options(EvalOptions& o, Visitor&& visit) {
  visit(OptionSpec{"data", "folder of the tasks' files; see docs/evaluation.md", "folder"}, o.data);
  visit(OptionSpec{"out", "run file to write, one JSON object per line", "file"}, o.out);
  visit(OptionSpec{"prompts", "write every prompt's token ids too, for other engines", "file"},
        o.prompts);
  visit(
      OptionSpec{"scope",
                 "what the policy decodes: the answer (decode), only the gold answer (teacher), or "
                 "the prompt's last N tokens and either (tail:N, teacher:N)",
                 "scope"},
      o.scope);
  visit(OptionSpec{"limit", "samples of a task at most; 0 = the task's own number", "samples"},
        o.limit);
  visit(OptionSpec{"steps", "tokens that are decoded at the end of a text (ppl, fidelity)",
                   "tokens", 1, 1 << 20},
        o.steps);
  visit(OptionSpec{"seed", "seed of samples and of intervals", "", 0, 0x1p63}, o.seed);
  visit(OptionSpec{"resume", "go on with the run file"}, o.resume);
}

struct EvalPlan {
  EngineOptions engine;
  EvalOptions eval;
  std::vector<std::string> tasks;
  std::vector<std::string> policies = {"full"};
  std::vector<uint32_t> lengths;  ///< tokens of prompts and texts; empty = each task's own
  std::string version;            ///< of the program
  std::span<const TaskEntry> known_tasks = task_entries();
};

/// One policy in one task.
struct EvalRow {
  std::string policy;
  SummaryRecord summary;  ///< counters: means of what was counted, and of nll and kl
};

struct EvalReport {
  ModelInfo model;
  std::string out;
  std::vector<EvalRow> rows;       ///< task by task
  std::vector<std::string> notes;  ///< what was left out or replaced, and why
  size_t failed = 0;               ///< samples, each counted once per policy, and tasks
  std::string first_failure;       ///< what and why
};

/// Writes plan.eval.out as it goes; a stopped run keeps every finished sample. progress: stage
/// "eval", unit "samples", asked after every step of the engine. What fails for a sample or for one
/// task's data is counted in the report. Errors: kInvalidArgument (no task, no file to write, a
/// wrong scope), kUnknownOption for an unknown task, kUnknownPolicy; those of Engine::load and of
/// the run file; the first task's when no task could be loaded; kCancelled.
Result<EvalReport> run_eval(const EvalPlan& plan, const ProgressFn& progress = {});

nlohmann::ordered_json eval_json(const EvalReport& report);
/// A Markdown table with a row per task and policy.
std::string eval_markdown(const EvalReport& report);

}  // namespace reprise::eval
