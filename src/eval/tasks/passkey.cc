// Pass-key retrieval (Mohtashami and Jaggi 2023, arXiv 2305.16300; Retrieve.PassKey of
// InfiniteBench): a number among sentences that repeat, over lengths and depths.
#include <cmath>

#include "base/try.h"
#include "eval/metrics/matching.h"
#include "eval/tasks/depth_grid.h"
#include "eval/tasks/prompt_size.h"
#include "eval/tasks/prose.h"
#include "eval/tasks/rng.h"
#include "eval/tasks/tasks.h"

namespace reprise::eval {
namespace {

constexpr uint32_t kMaxTokens = 16;

constexpr std::string_view kIntroduction =
    "There is important info hidden inside a lot of irrelevant text. Find it and memorize it. "
    "I will quiz you about the important information.\n\n";
constexpr std::string_view kFiller =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. ";
constexpr std::string_view kPassKey = "The pass key is {key}. Remember it. {key} is the pass key. ";
constexpr std::string_view kQuestion = "\n\nWhat is the pass key that the text mentions?";
// The published tasks go on from "The pass key is", after which a small model in a chat explains
// what a pass key is: SmolLM2 with all of 2K tokens before it tells 20 % of the keys so, 93 % after
// "The pass key is the number", and all at 1K and 4K after this.
constexpr std::string_view kAnswer = "The pass key that the text mentions is the number";

std::string repeated(std::string_view text, size_t count) {
  std::string out;
  out.reserve(text.size() * count);
  for (size_t i = 0; i < count; ++i) out += text;
  return out;
}

Result<Sample> make_sample(const TaskContext& context, const GridCell& cell) {
  Sample sample;
  sample.id = cell.id();
  Rng rng(context.seed, "passkey/" + sample.id);
  const std::string key = rng.digits(5);
  const auto before = [&](size_t units) {
    return static_cast<size_t>(std::lround(cell.depth() * static_cast<double>(units)));
  };
  const auto prompt = [&](size_t units) {
    return std::string(kIntroduction) + repeated(kFiller, before(units)) +
           fill(kPassKey, {{"key", key}}) + repeated(kFiller, units - before(units)) +
           std::string(kQuestion);
  };
  REPRISE_TRY(UnitSearch search, text_budget("passkey", context, cell.length, kMaxTokens));
  const size_t unit = context.count_tokens(kFiller);
  search.most = 2 * search.limit / unit + 16;
  search.guess = search.limit / unit;
  const auto whole = [&](size_t units) { return prompt(units) + std::string(kAnswer); };
  REPRISE_TRY(const Fitted fitted, fit_units("passkey", search, context.count_tokens, whole));

  sample.messages = {{"user", prompt(fitted.units)}};
  sample.answer_prefix = kAnswer;
  sample.max_tokens = kMaxTokens;
  sample.references = {key};
  sample.gold = " " + key;
  sample.axes = {{"length", cell.length}, {"depth", cell.depth()}};
  sample.score = [key](std::string_view answer) {
    return Scores{{"hit", needle_hit(answer, key) ? 1.0 : 0.0}};
  };
  return sample;
}

}  // namespace

Result<TaskData> load_passkey(const TaskContext& context) {
  REPRISE_TRY(const auto lengths, prompt_lengths(context, kGridLengths));
  TaskData data;
  for (const GridCell& cell : grid_cells(lengths, context.limit)) {
    REPRISE_TRY(Sample sample, make_sample(context, cell));
    data.samples.push_back(std::move(sample));
  }
  return data;
}

}  // namespace reprise::eval
