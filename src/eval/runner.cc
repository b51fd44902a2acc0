#include "eval/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/nearest.h"
#include "base/system.h"
#include "base/thread_pool.h"
#include "base/try.h"
#include "eval/run/answers.h"
#include "eval/run/identity.h"
#include "eval/run/measures.h"
#include "eval/run/prompt_log.h"
#include "eval/run/run_log.h"
#include "eval/run/scope.h"
#include "eval/run/summary.h"
#include "eval/tasks/prompt_size.h"
#include "eval/trajectory.h"

namespace reprise::eval {
namespace {

constexpr std::string_view kReference = "full";

struct LoadedTask {
  const TaskEntry* entry = nullptr;
  TaskData data;
};

// One trajectory: a text's first tokens.
struct Reading {
  std::string id;
  std::vector<int32_t> tokens;  // of the whole text
  uint32_t length = 0;
};

class Runner {
 public:
  Runner(const EvalPlan& plan, const ProgressFn& progress) : plan_(plan), progress_(progress) {}
  Result<EvalReport> run();

 private:
  Status check_plan();
  Status load_tasks();
  Status load_task(const TaskEntry& entry, const TaskContext& context);
  TaskContext task_context() const;
  Status declare_runs();
  Status run_task(const LoadedTask& task);
  Status run_sample(std::string_view task, const Sample& sample);
  Status run_document(const TaskEntry& task, const Document& document);
  Status run_reading(const TaskEntry& task, const Reading& reading);
  SampleRecord trajectory_record(const TaskEntry& task, const Reading& reading,
                                 const TrajectoryPlan& plan, const Trajectory& trajectory) const;
  std::vector<size_t> open_policies(std::string_view task, const std::string& id) const;
  Status finish(std::string_view task, size_t policy, SampleRecord record,
                const std::string& steps = {});
  void count_failure(std::string what, const std::string& why);
  Status summarize();
  bool go_on() const { return !progress_ || progress_({"eval", done_, total_, "samples"}); }

  const EvalPlan& plan_;
  const ProgressFn& progress_;
  EvalReport report_;
  Scope scope_;
  std::vector<std::string> policies_;
  std::unique_ptr<Engine> engine_;
  std::vector<LoadedTask> tasks_;
  // Of texts. Shorter ones first: what was read for one is the beginning of the next.
  std::vector<uint32_t> reading_lengths_;
  std::vector<RunRecord> runs_;  // of policies_
  std::unique_ptr<RunLog> log_;
  std::unique_ptr<PromptLog> prompts_;
  uint64_t done_ = 0, total_ = 0;
  bool wrote_samples_ = false;
};

Result<EvalReport> Runner::run() {
  REPRISE_CHECK(check_plan());
  REPRISE_TRY(engine_, Engine::load(plan_.engine, progress_));
  report_.model = engine_->info();
  for (const std::string& policy : policies_)  // a wrong spec is told at once
    REPRISE_CHECK(engine_->open(policy).map([](auto&&) {}));
  REPRISE_CHECK(load_tasks());
  REPRISE_CHECK(declare_runs());
  for (const LoadedTask& task : tasks_) REPRISE_CHECK(run_task(task));
  REPRISE_CHECK(summarize());
  return std::move(report_);
}

Status Runner::check_plan() {
  REPRISE_TRY(scope_, Scope::parse(plan_.eval.scope));
  if (plan_.eval.out.empty())
    return fail(ErrorCode::kInvalidArgument, "--out FILE is missing: where to write the run");
  if (!plan_.eval.prompts.empty() && is_one_file(plan_.eval.prompts, plan_.eval.out)) {
    return fail(ErrorCode::kInvalidArgument, "--prompts and --out are one file, {}",
                plan_.eval.out);
  }
  if (plan_.tasks.empty())
    return fail(ErrorCode::kInvalidArgument, "--tasks is missing: which tasks, as ppl,needle");
  std::vector<std::string_view> names;
  for (const TaskEntry& entry : plan_.known_tasks) names.push_back(entry.name);
  for (const std::string& task : plan_.tasks) {
    if (std::find(names.begin(), names.end(), task) == names.end())
      return fail(ErrorCode::kInvalidArgument, "--tasks: no task is called \"{}\"{}; there are {}",
                  task, suggestion(task, names), fmt::join(names, ", "));
  }
  for (const std::string& policy : plan_.policies)
    if (std::find(policies_.begin(), policies_.end(), policy) == policies_.end())
      policies_.push_back(policy);
  return {};
}

TaskContext Runner::task_context() const {
  constexpr size_t kMargin = 8;  // a template may join a text with tokens of its own
  TaskContext context;
  context.data = plan_.eval.data;
  context.seed = plan_.eval.seed;
  context.limit = plan_.eval.limit;
  context.lengths = plan_.lengths;
  context.context = engine_->info().context;
  const Message message = {"user", "x"};
  if (const auto prompt = engine_->chat_prompt({&message, 1}))
    context.template_tokens = static_cast<uint32_t>(prompt->size() + kMargin);
  context.count_tokens = [engine = engine_.get()](std::string_view text) {
    return engine->tokenize(text, false, false).size();
  };
  return context;
}

Status Runner::load_tasks() {
  const TaskContext context = task_context();
  Status first;
  for (const TaskEntry& entry : plan_.known_tasks) {
    if (std::find(plan_.tasks.begin(), plan_.tasks.end(), entry.name) == plan_.tasks.end())
      continue;
    Status status = load_task(entry, context);
    if (status) continue;
    count_failure(std::string(entry.name), status.error().message);
    if (first) first = std::move(status);
  }
  return tasks_.empty() ? first : Status();
}

Status Runner::load_task(const TaskEntry& entry, const TaskContext& context) {
  REPRISE_TRY(TaskData data, entry.load(context));
  for (const std::string& note : data.notes)
    report_.notes.push_back(fmt::format("{}: {}", entry.name, note));
  if (!entry.takes_lengths && !plan_.lengths.empty())
    report_.notes.push_back(
        fmt::format("{}: prompts have lengths of their own, --lengths is not used", entry.name));
  if (!data.documents.empty()) {
    REPRISE_TRY(reading_lengths_, prompt_lengths(context, {}));
  }
  const size_t readings = data.documents.size() * reading_lengths_.size();
  total_ += (data.samples.size() + readings) * policies_.size();
  tasks_.push_back({&entry, std::move(data)});
  return {};
}

Status Runner::declare_runs() {
  RunRecord run;
  run.time = utc_time();
  run.version = plan_.version;
  run.model = report_.model.name;
  REPRISE_TRY(run.model_sha256, weights_identity(report_.model.path));
  run.quantization = report_.model.quantization;
  run.kv_type = report_.model.kv_type;
  run.weight_bytes = report_.model.weight_bytes;
  run.machine = machine_name(
      static_cast<uint32_t>(ThreadPool(static_cast<int>(plan_.engine.threads)).size()));
  run.scope = plan_.eval.scope;
  run.context = engine_->info().context;
  run.seed = plan_.eval.seed;
  for (const LoadedTask& task : tasks_) {
    std::string hash = task_identity(task.data);
    if (!task.data.documents.empty())
      hash += fmt::format("-{}x{}", fmt::join(reading_lengths_, ","), plan_.eval.steps);
    run.data.emplace_back(task.entry->name, std::move(hash));
  }
  for (const std::string& policy : policies_) {
    run.policy = policy;
    set_run_id(run);
    runs_.push_back(run);
  }
  report_.out = plan_.eval.out;
  REPRISE_TRY(PromptLog prompts, PromptLog::open(plan_.eval.prompts, plan_.eval.resume));
  REPRISE_TRY(RunLog log, RunLog::open(plan_.eval.out, runs_, plan_.eval.resume));
  log_ = std::make_unique<RunLog>(std::move(log));
  prompts_ = std::make_unique<PromptLog>(std::move(prompts));
  return prompts_->begin();
}

Status Runner::run_task(const LoadedTask& task) {
  for (const Sample& sample : task.data.samples)
    REPRISE_CHECK(run_sample(task.entry->name, sample));
  for (const Document& document : task.data.documents)
    REPRISE_CHECK(run_document(*task.entry, document));
  return {};
}

// Policies under which a sample is still to be run.
std::vector<size_t> Runner::open_policies(std::string_view task, const std::string& id) const {
  std::vector<size_t> open;
  for (size_t i = 0; i < policies_.size(); ++i)
    if (!log_->has(runs_[i].id, std::string(task), id)) open.push_back(i);
  return open;
}

Status Runner::run_sample(std::string_view task, const Sample& sample) {
  REPRISE_CHECK(prompts_->write(task, *engine_, sample));  // also of what a resumed run has
  const std::vector<size_t> open = open_policies(task, sample.id);
  done_ += policies_.size() - open.size();
  if (open.empty()) return {};
  std::vector<std::string> policies;
  policies.reserve(open.size());
  for (const size_t policy : open) policies.push_back(policies_[policy]);
  const bool alone = plan_.engine.batch == 1;
  REPRISE_TRY(std::vector<SampleRecord> records,
              answer_sample(*engine_, sample, policies, scope_, alone, [&] { return go_on(); }));
  for (size_t i = 0; i < open.size(); ++i)
    REPRISE_CHECK(finish(task, open[i], std::move(records[i])));
  return {};
}

Status Runner::run_document(const TaskEntry& task, const Document& document) {
  const std::vector<uint32_t>& lengths = reading_lengths_;
  Reading reading;
  reading.tokens = engine_->tokenize(document.text);
  size_t read = 0;  // a length that the text does not have adds nothing to the one before
  for (const uint32_t length : lengths) {
    const size_t before = std::exchange(read, std::min<size_t>(length, reading.tokens.size()));
    if (read == before && length > lengths.front()) {
      done_ += policies_.size();
      continue;
    }
    reading.length = length;
    reading.id = lengths.size() == 1 ? document.id : fmt::format("{}@{}", document.id, length);
    REPRISE_CHECK(run_reading(task, reading));
  }
  return {};
}

Status Runner::run_reading(const TaskEntry& task, const Reading& reading) {
  const auto plan = TrajectoryPlan::of(reading.tokens, reading.length, plan_.eval.steps);
  if (plan) REPRISE_CHECK(prompts_->write(task.name, reading.id, *plan));
  const std::vector<size_t> open = open_policies(task.name, reading.id);
  done_ += policies_.size() - open.size();
  if (open.empty()) return {};
  if (!plan) {
    for (const size_t policy : open)
      REPRISE_CHECK(finish(task.name, policy, failed_record(reading.id, plan.error())));
    return {};
  }
  std::vector<std::string> policies = {std::string(kReference)};
  std::vector<size_t> at;  // of the open policies
  for (const size_t policy : open) {
    at.push_back(policies_[policy] == kReference ? 0 : policies.size());
    if (at.back() > 0) policies.push_back(policies_[policy]);
  }
  REPRISE_TRY(const std::vector<Trajectory> trajectories,
              read_trajectories(*engine_, *plan, policies, [&] { return go_on(); }));
  for (size_t i = 0; i < open.size(); ++i) {
    const Trajectory& trajectory = trajectories[at[i]];
    SampleRecord record = trajectory_record(task, reading, *plan, trajectory);
    std::string steps;
    if (trajectory.answer) {
      for (const TrajectoryStep& step : trajectory.steps)
        steps += to_line(StepRecord{runs_[open[i]].id, std::string(task.name), reading.id,
                                    step.position, step_values(step, trajectory.compared)}) +
                 "\n";
    }
    REPRISE_CHECK(finish(task.name, open[i], std::move(record), steps));
  }
  return {};
}

SampleRecord Runner::trajectory_record(const TaskEntry& task, const Reading& reading,
                                       const TrajectoryPlan& plan,
                                       const Trajectory& trajectory) const {
  if (!trajectory.answer) return failed_record(reading.id, trajectory.answer.error());
  SampleRecord record;
  record.id = reading.id;
  record.prompt_tokens = plan.first;
  record.generated_tokens = plan.steps;
  record.finish = finish_reason_name(trajectory.answer->finish);
  record.axes = {{"length", static_cast<double>(plan.tokens.size())}};
  const size_t bytes = engine_->detokenize(plan.tokens.last(plan.steps)).size();
  record.scores = trajectory_scores(trajectory, task.headline, bytes);
  record.counters = counters_of(*trajectory.answer);
  record.timing = timing_of(*trajectory.answer, false);
  return record;
}

Status Runner::finish(std::string_view task, size_t policy, SampleRecord record,
                      const std::string& steps) {
  record.run = runs_[policy].id;
  record.task = task;
  if (record.failed())
    count_failure(fmt::format("{} {} under {}", task, record.id, policies_[policy]), record.error);
  ++done_;
  wrote_samples_ = true;
  return log_->write(steps + to_line(record) + "\n");
}

void Runner::count_failure(std::string what, const std::string& why) {
  if (report_.failed++ == 0) report_.first_failure = fmt::format("{}: {}", what, why);
}

Status Runner::summarize() {
  std::vector<SummaryTask> tasks;
  for (const LoadedTask& task : tasks_)
    tasks.push_back({std::string(task.entry->name), std::string(task.entry->headline)});
  RunFile file;
  REPRISE_CHECK(read_run_file(log_->path(), file));
  REPRISE_TRY(report_.rows, summarize_runs(file, runs_, tasks));
  if (!wrote_samples_ && !file.summaries.empty()) return {};
  std::string lines;
  for (const EvalRow& row : report_.rows) lines += to_line(row.summary) + "\n";
  return log_->write(lines);
}

}  // namespace

Result<EvalReport> run_eval(const EvalPlan& plan, const ProgressFn& progress) {
  return Runner(plan, progress).run();
}

}  // namespace reprise::eval
