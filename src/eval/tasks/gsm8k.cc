// GSM8K: grade-school problems, eight worked examples, chain of thought.
#include "base/try.h"
#include "eval/metrics/gsm8k_metrics.h"
#include "eval/tasks/data_files.h"
#include "eval/tasks/gsm8k_examples.h"
#include "eval/tasks/prose.h"
#include "eval/tasks/tasks.h"

namespace reprise::eval {
namespace {

constexpr uint32_t kMaxTokens = 512;

std::string shots() {
  std::string text;
  for (const WorkedExample& example : kGsm8kExamples) {
    text += fmt::format("Q: {}\nA: {}\n\n", example.question, example.answer);
  }
  return text;
}

// The data set's worked answer in the form of the examples: without the "<<16-3=13>>" of its
// calculator, "#### N" as a sentence.
std::string worked(std::string_view answer, std::string_view number) {
  std::string text;
  std::string_view rest = answer.substr(0, answer.rfind("####"));
  for (size_t open = 0; (open = rest.find("<<")) != std::string_view::npos;) {
    const size_t close = rest.find(">>", open);
    if (close == std::string_view::npos) break;
    text += rest.substr(0, open);
    rest.remove_prefix(close + 2);
  }
  text += rest;
  return fmt::format(" {} The answer is {}.", one_line(text), number);
}

Result<Sample> make_sample(const Record& record, size_t number, const std::string& examples) {
  Sample sample;
  REPRISE_TRY(const std::string question, record.text("question"));
  REPRISE_TRY(const std::string answer, record.text("answer"));
  const std::string result = gold_number(answer);
  if (result.empty() || answer.find("####") == std::string::npos) {
    return fail(ErrorCode::kBadValue, "{}: field 'answer' must end in '#### ' and a number",
                record.where);
  }
  sample.id = fmt::format("{}", number);
  sample.messages = {{"user", fmt::format("{}Q: {}\nA:", examples, question)}};
  sample.plain = true;
  sample.max_tokens = kMaxTokens;
  sample.stop = {"Q:"};
  sample.references = {result};
  sample.gold = worked(answer, result);
  sample.score = [answer](std::string_view prediction) { return gsm8k_scores(prediction, answer); };
  return sample;
}

}  // namespace

Result<TaskData> load_gsm8k(const TaskContext& context) {
  REPRISE_TRY(const auto records, read_json_lines(context.data / "gsm8k" / "test.jsonl"));
  const std::string examples = shots();
  TaskData data;
  for (const Record& record : records) {
    if (context.limit > 0 && data.samples.size() == context.limit) break;
    REPRISE_TRY(Sample sample, make_sample(record, data.samples.size() + 1, examples));
    data.samples.push_back(std::move(sample));
  }
  return data;
}

}  // namespace reprise::eval
