// Needle in a haystack: one sentence with a number among essays, over lengths and depths.
#include <algorithm>
#include <cmath>

#include "base/try.h"
#include "eval/metrics/matching.h"
#include "eval/tasks/data_files.h"
#include "eval/tasks/depth_grid.h"
#include "eval/tasks/documents.h"
#include "eval/tasks/prompt_size.h"
#include "eval/tasks/rng.h"
#include "eval/tasks/tasks.h"
#include "eval/tasks/words.h"

namespace reprise::eval {
namespace {

constexpr uint32_t kMaxTokens = 32;

constexpr std::string_view kPrompt =
    "A special magic number is hidden in the following text. Memorize it: I will ask for it "
    "afterwards.\n\n{context}\n\nWhat is the special magic number for {key} that the text "
    "mentions?";
constexpr std::string_view kNeedle = "The special magic number for {key} is {value}.";
constexpr std::string_view kAnswer = "The special magic number for {key} is";

// A haystack of units sentences from start on, in which one more may stand.
struct Hay {
  const Haystack& sentences;
  size_t start = 0;

  // The sentences [begin, end) with spaces between them.
  std::string text(size_t begin, size_t end) const {
    std::string out;
    for (size_t i = begin; i < end; ++i) {
      if (i > begin) out += ' ';
      out += sentences.sentence(start + i);
    }
    return out;
  }
  size_t tokens(size_t begin, size_t end) const {
    size_t sum = 0;
    for (size_t i = begin; i < end; ++i) sum += sentences.tokens(start + i);
    return sum;
  }
  // How many sentences have about that many tokens.
  size_t units(size_t wanted) const {
    size_t count = 0;
    for (size_t sum = 0; sum < wanted; ++count) sum += sentences.tokens(start + count);
    return count;
  }
  // The sentence end nearest to a share of the tokens of units sentences, and its true share.
  std::pair<size_t, double> at_depth(double depth, size_t units) const {
    const auto total = static_cast<double>(tokens(0, units));
    if (units == 0 || total == 0) return {0, 0.0};
    std::pair<size_t, double> best = {0, 0.0};
    double before = 0;
    for (size_t i = 0; i < units; ++i) {
      before += static_cast<double>(sentences.tokens(start + i));
      const double share = before / total;
      if (std::abs(share - depth) < std::abs(best.second - depth)) best = {i + 1, share};
    }
    return best;
  }
};

std::string with_needle(const Hay& hay, size_t units, size_t at, std::string_view needle) {
  std::string out = hay.text(0, at);
  if (at > 0) out += ' ';
  out += needle;
  if (at < units) out += ' ' + hay.text(at, units);
  return out;
}

Result<Sample> make_sample(const TaskContext& context, const Haystack& sentences,
                           const GridCell& cell) {
  const double depth = cell.depth();
  Sample sample;
  sample.id = cell.id();
  Rng rng(context.seed, "needle/" + sample.id);
  const std::string key = adjective_noun(rng), value = rng.digits(7);
  const std::string needle = fill(kNeedle, {{"key", key}, {"value", value}});
  const Hay hay{sentences, rng.below(sentences.size())};
  sample.answer_prefix = fill(kAnswer, {{"key", key}});

  REPRISE_TRY(UnitSearch search, text_budget("needle", context, cell.length, kMaxTokens));
  search.most = 2 * hay.units(search.limit) + 16;  // counted singly, sentences may add up to more
  search.guess = hay.units(search.limit - std::min(search.limit, cell.length / size_t{50} + 90));
  const auto prompt = [&](size_t units) {
    const size_t at = hay.at_depth(depth, units).first;
    return fill(kPrompt, {{"context", with_needle(hay, units, at, needle)}, {"key", key}});
  };
  const auto whole = [&](size_t units) { return prompt(units) + sample.answer_prefix; };
  REPRISE_TRY(const Fitted fitted, fit_units("needle", search, context.count_tokens, whole));

  sample.messages = {{"user", prompt(fitted.units)}};
  sample.max_tokens = kMaxTokens;
  sample.references = {value};
  sample.gold = " " + value;
  sample.axes = {{"length", cell.length},
                 {"depth", depth},
                 {"true_depth", hay.at_depth(depth, fitted.units).second}};
  sample.score = [value](std::string_view answer) {
    return Scores{{"hit", needle_hit(answer, value) ? 1.0 : 0.0}};
  };
  return sample;
}

// The essays, or the books where there are none.
Result<std::string> haystack_text(const std::filesystem::path& data) {
  auto essays = load_essays(data);
  if (essays) return std::move(essays->text);
  if (essays.error().code != ErrorCode::kFileNotFound) return tl::unexpected<Error>(essays.error());
  auto books = load_books(data);
  if (!books) return tl::unexpected<Error>(std::move(essays.error()));
  std::string text;
  for (const TextSource& book : *books) text += book.text + "\n\n";
  return text;
}

}  // namespace

Result<TaskData> load_needle(const TaskContext& context) {
  REPRISE_TRY(const std::string text, haystack_text(context.data));
  const Haystack sentences(text, context.count_tokens);
  if (sentences.size() == 0) {
    return fail(ErrorCode::kBadValue, "needle: the essays below {} hold no text",
                context.data.string());
  }
  REPRISE_TRY(const auto lengths, prompt_lengths(context, kGridLengths));
  TaskData data;
  for (const GridCell& cell : grid_cells(lengths, context.limit)) {
    REPRISE_TRY(Sample sample, make_sample(context, sentences, cell));
    data.samples.push_back(std::move(sample));
  }
  return data;
}

}  // namespace reprise::eval
