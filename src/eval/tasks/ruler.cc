#include "eval/tasks/ruler.h"

#include "base/try.h"
#include "eval/metrics/matching.h"
#include "eval/tasks/prompt_size.h"
#include "eval/tasks/tasks.h"

namespace reprise::eval {
namespace {

constexpr uint32_t kLengths[] = {4096, 8192};
constexpr size_t kTrials = 100;  // of a task at a length

std::vector<RulerTask> all_tasks(const RulerMaterial& material) {
  std::vector<RulerTask> tasks = niah_tasks(material);
  tasks.push_back(variable_tracking_task(material));
  tasks.push_back(common_words_task(material));
  tasks.push_back(frequent_words_task(material));
  for (RulerTask& task : passage_tasks(material)) tasks.push_back(std::move(task));
  return tasks;
}

/// A task at a length; remembers how many units its last sample had, where the next search begins.
struct Cell {
  const RulerTask* task = nullptr;
  uint32_t length = 0;
  size_t units = 0;
};

Result<Sample> make_sample(const TaskContext& context, Cell& cell, size_t trial) {
  const RulerTask& task = *cell.task;
  const std::string name = fmt::format("ruler {}", task.name);
  Sample sample;
  sample.id = fmt::format("{}/{}-{}", task.name, cell.length, trial);
  const Rng rng(context.seed, "ruler/" + sample.id);
  REPRISE_TRY(UnitSearch search, text_budget(name, context, cell.length, task.max_tokens));
  search.least = task.least_units;
  search.most = task.most_units;
  search.guess = cell.units > 0 ? cell.units : search.limit / 25;
  const auto whole = [&](size_t units) {
    const RulerDraft draft = task.draft(rng, cell.length, units);
    return draft.prompt + draft.answer_prefix;
  };
  REPRISE_TRY(const Fitted fitted, fit_units(name, search, context.count_tokens, whole));
  cell.units = fitted.units;

  RulerDraft draft = task.draft(rng, cell.length, cell.units);
  sample.axes = {{"length", cell.length}};
  if (draft.gold_at != std::string::npos) {
    const std::string_view before = std::string_view(draft.prompt).substr(0, draft.gold_at);
    const auto tokens = static_cast<double>(context.count_tokens(before));
    sample.axes.emplace_back("depth", tokens / static_cast<double>(fitted.tokens));
  }
  sample.messages = {{"user", std::move(draft.prompt)}};
  sample.answer_prefix = std::move(draft.answer_prefix);
  sample.max_tokens = task.max_tokens;
  sample.references = std::move(draft.references);
  sample.gold = std::move(draft.gold);
  sample.score = [any = task.any_reference,
                  references = sample.references](std::string_view answer) {
    const double match = any ? ruler_part(answer, references) : ruler_all(answer, references);
    return Scores{{"match", match}};
  };
  return sample;
}

}  // namespace

Result<TaskData> load_ruler(const TaskContext& context) {
  REPRISE_TRY(const RulerMaterial material,
              load_ruler_material(context.data, context.count_tokens));
  REPRISE_TRY(const auto lengths, prompt_lengths(context, kLengths));
  const std::vector<RulerTask> tasks = all_tasks(material);
  std::vector<Cell> cells;
  for (const uint32_t length : lengths) {
    for (const RulerTask& task : tasks) cells.push_back({&task, length, 0});
  }
  const size_t count = context.limit > 0 ? context.limit : cells.size() * kTrials;
  TaskData data;
  data.notes = {
      "made here (ruler-native): not comparable digit by digit with published RULER results; "
      "qa_1 asks NaturalQuestions-Open instead of SQuAD, qa_2 MuSiQue instead of HotpotQA"};
  for (size_t i = 0; i < count; ++i) {
    REPRISE_TRY(Sample sample, make_sample(context, cells[i % cells.size()], i / cells.size()));
    data.samples.push_back(std::move(sample));
  }
  return data;
}

}  // namespace reprise::eval
