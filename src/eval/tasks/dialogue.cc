// Multi-turn conversations: is what was said turns ago still known?
#include <algorithm>
#include <cmath>

#include "base/try.h"
#include "eval/metrics/matching.h"
#include "eval/tasks/dialogue_script.h"
#include "eval/tasks/documents.h"
#include "eval/tasks/prompt_size.h"
#include "eval/tasks/tasks.h"

namespace reprise::eval {
namespace {

constexpr uint32_t kLengths[] = {1024, 2048, 4096, 8192};
constexpr size_t kTrials = 10;  // of a kind at a length
constexpr uint32_t kMaxTokens = 48;
constexpr uint32_t kMessageTokens = 8;  // of the chat template around each message
constexpr size_t kSmallTalk = 4000;     // sentences that stand in for books

// Sentences [begin, end) as one paragraph.
std::string passage(const Haystack& hay, size_t begin, size_t end) {
  std::string text;
  for (size_t i = begin; i < end; ++i) {
    if (i > begin) text += ' ';
    text += hay.sentence(i);
  }
  return text;
}

// The conversation with units sentences of running text in its reading turns.
std::vector<Message> conversation(const Script& script, const Haystack& hay, size_t start,
                                  size_t units) {
  std::vector<Message> messages = script.messages;
  const size_t readings = script.readings.size();
  for (size_t i = 0; i < readings; ++i) {
    const size_t begin = start + units * i / readings, end = start + units * (i + 1) / readings;
    std::string text = passage(hay, begin, end);
    if (!script.planted.empty()) {
      const double share = std::round(script.planted_at * static_cast<double>(units));
      const size_t cut = begin + static_cast<size_t>(share);
      text = passage(hay, begin, cut) + " " + script.planted + " " + passage(hay, cut, end);
    }
    std::string& content = messages[script.readings[i]].content;
    if (!content.empty()) content += ' ';
    content += "Please read this:\n\n" + text;
  }
  return messages;
}

std::string all_text(const std::vector<Message>& messages) {
  std::string text;
  for (const Message& message : messages) text += message.content + "\n";
  return text;
}

// recall: the share of what is expected that the answer holds; contradiction: 1 when it holds
// anything that is wrong.
Scores recall_scores(std::string_view answer, const std::vector<std::string>& expected,
                     const std::vector<std::string>& wrong) {
  const auto held = [&](const std::string& value) { return needle_hit(answer, value); };
  const auto found = std::count_if(expected.begin(), expected.end(), held);
  const bool contradicts = std::any_of(wrong.begin(), wrong.end(), held);
  return {{"recall", static_cast<double>(found) / static_cast<double>(expected.size())},
          {"contradiction", contradicts ? 1.0 : 0.0}};
}

Result<Sample> make_sample(const TaskContext& context, const Haystack& hay, std::string_view kind,
                           uint32_t length, size_t trial) {
  Sample sample;
  sample.id = fmt::format("{}/{}-{}", kind, length, trial);
  Rng rng(context.seed, "dialogue/" + sample.id);
  const Script script = write_script(kind, rng);
  const size_t start = rng.below(hay.size());
  const auto around = static_cast<uint32_t>(kMessageTokens * script.messages.size());
  REPRISE_TRY(UnitSearch search, text_budget("dialogue", context, length, kMaxTokens + around));
  search.most = size_t{1} << 24;
  search.guess = search.limit / 25;
  const auto text = [&](size_t units) {
    return all_text(conversation(script, hay, start, units)) + script.answer_prefix;
  };
  REPRISE_TRY(const Fitted fitted, fit_units("dialogue", search, context.count_tokens, text));

  sample.messages = conversation(script, hay, start, fitted.units);
  sample.answer_prefix = script.answer_prefix;
  sample.max_tokens = kMaxTokens;
  sample.references = script.expected;
  sample.gold = " " + join(script.expected, ", ");
  sample.axes = {{"length", length},
                 {"lag", static_cast<double>(script.lag)},
                 {"turns", static_cast<double>(script.turns)}};
  sample.score = [expected = script.expected, wrong = script.wrong](std::string_view answer) {
    return recall_scores(answer, expected, wrong);
  };
  return sample;
}

// What the reading turns hold: the books, or sentences made for it.
Result<std::string> running_text(const TaskContext& context, std::vector<std::string>& notes) {
  std::string text;
  auto books = load_books(context.data);
  if (books) {
    for (const TextSource& book : *books) text += book.text + "\n\n";
  } else if (books.error().code != ErrorCode::kFileNotFound) {
    return tl::unexpected<Error>(std::move(books.error()));
  }
  if (one_line(text).empty()) {
    notes.emplace_back("no books below --data: the turns between are made of template sentences");
    Rng rng(context.seed, "dialogue/small talk");
    text = small_talk(rng, kSmallTalk);
  }
  return text;
}

}  // namespace

Result<TaskData> load_dialogue(const TaskContext& context) {
  TaskData data;
  REPRISE_TRY(const std::string text, running_text(context, data.notes));
  const Haystack hay(text, context.count_tokens);
  REPRISE_TRY(const auto lengths, prompt_lengths(context, kLengths));
  const size_t cells = kDialogueKinds.size() * lengths.size();
  const size_t count = context.limit > 0 ? context.limit : cells * kTrials;
  for (size_t i = 0; i < count; ++i) {
    const std::string_view kind = kDialogueKinds[i % kDialogueKinds.size()];
    const uint32_t length = lengths[i / kDialogueKinds.size() % lengths.size()];
    REPRISE_TRY(Sample sample, make_sample(context, hay, kind, length, i / cells));
    data.samples.push_back(std::move(sample));
  }
  return data;
}

}  // namespace reprise::eval
