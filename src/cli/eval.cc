// `reprise eval`: what policies answer to the samples of tasks, and how far they are from full
// attention.
#include <algorithm>

#include "base/try.h"
#include "cli/command.h"
#include "cli/lists.h"
#include "eval/runner.h"

namespace reprise::cli {
namespace {

class EvalCommand : public Command {
 public:
  std::string_view name() const override { return "eval"; }
  std::string_view summary() const override { return "measure what policies do to answers"; }
  std::string_view examples() const override {
    return R"(  reprise eval --tasks needle --policy full --policy quest --data data --out run.jsonl
  reprise eval --tasks ppl --lengths 1K,2K,4K,8K --limit 4 --data data --out ppl.jsonl
  reprise eval --tasks longbench --scope tail:64 --policy full --policy quest --data data \
               --out tail.jsonl
  reprise eval ... --out run.jsonl --resume         goes on where Ctrl-C or a crash stopped it
  reprise compare run.jsonl                         what the differences mean)";
  }
  void declare(FlagSet& flags) override {
    flags.add({"tasks", task_help_, "names"}, tasks_);
    flags.add_list({"policy", "attention policy; repeatable, the default is full"}, policies_);
    flags.add({"lengths", "lengths of prompts and texts, separated by commas", "tokens"}, lengths_);
    visit_options(plan_.eval, flags);
    visit_options(plan_.engine, flags);
  }
  Status run(Console& console) override {
    plan_.version = REPRISE_VERSION;
    plan_.tasks = split_list(tasks_);
    REPRISE_TRY(plan_.lengths, parse_list({"lengths", "", "tokens", 1, 1 << 24}, lengths_));
    if (!policies_.empty()) plan_.policies = policies_;
    REPRISE_TRY(const eval::EvalReport report, eval::run_eval(plan_, console.progress()));
    console.end_progress();
    for (const std::string& note : report.notes) console.note(note);
    REPRISE_CHECK(console.json() ? console.print_json(eval_json(report))
                                 : console.print(eval_markdown(report)));
    if (report.failed > 0) {
      console.partly_failed(fmt::format("{} failed, the first: {}{}", report.failed,
                                        report.first_failure, where_errors_are(report)));
    }
    return {};
  }

 private:
  // Failures of samples are in the file; tasks without data left nothing there.
  static std::string where_errors_are(const eval::EvalReport& report) {
    const bool written = std::ranges::any_of(
        report.rows, [](const eval::EvalRow& row) { return row.summary.failed > 0; });
    return written ? fmt::format("; see \"error\" in {}", report.out) : std::string();
  }
  static std::string task_help() {
    std::string names;
    for (const eval::TaskEntry& task : eval::task_entries())
      names += fmt::format("{}{}", names.empty() ? "" : ", ", task.name);
    return "tasks, separated by commas: " + names;
  }

  std::string task_help_ = task_help();
  std::string tasks_, lengths_;
  std::vector<std::string> policies_;
  eval::EvalPlan plan_;
};

}  // namespace

std::unique_ptr<Command> make_eval_command() { return std::make_unique<EvalCommand>(); }

}  // namespace reprise::cli
