// RULER's tasks over words: variable tracking, common words, frequent words.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>

#include "eval/tasks/ruler.h"

namespace reprise::eval {
namespace {

// --- Variable tracking ---

constexpr size_t kVariables = 5;  // of the chain: 4 hops
constexpr size_t kNameLetters = 5, kExampleNameLetters = 3, kExampleNoise = 10;

std::vector<std::string> variable_names(Rng& rng, size_t letters) {
  std::vector<std::string> names;
  std::set<std::string> seen;
  while (names.size() < kVariables) {
    std::string name;
    while (name.size() < letters) name += static_cast<char>('A' + rng.below(26));
    if (seen.insert(name).second) names.push_back(std::move(name));
  }
  return names;
}

// A value, then variable after variable, in order among lines of noise.
RulerDraft tracking(const RulerMaterial& material, Rng& rng, size_t letters, size_t noise) {
  RulerDraft draft;
  draft.references = variable_names(rng, letters);
  const std::string value = rng.digits(5);
  std::vector<size_t> places(kVariables);
  for (size_t& place : places) place = rng.below(noise + 1);
  std::sort(places.begin(), places.end());

  std::string context;
  size_t next = 0;
  for (size_t line = 0; line <= noise; ++line) {
    for (; next < kVariables && places[next] == line; ++next) {
      if (next == 0) draft.gold_at = context.size();
      context += next == 0 ? fmt::format("VAR {} = {}\n", draft.references[0], value)
                           : fmt::format("VAR {} = VAR {} \n", draft.references[next],
                                         draft.references[next - 1]);
    }
    if (line < noise) context += material.noise + "\n";
  }
  context.pop_back();
  const RulerTemplate& form = material.variable_tracking;
  draft.prompt = fill(form.prompt, {{"context", context}, {"query", value}});
  draft.gold_at += draft.prompt.find(context);
  draft.answer_prefix =
      fill(form.answer_prefix, {{"query", value}, {"num_v", std::to_string(kVariables)}});
  draft.gold = join(draft.references, " ");
  return draft;
}

RulerDraft tracking_with_example(const RulerMaterial& material, Rng rng, size_t noise) {
  const RulerDraft example = tracking(material, rng, kExampleNameLetters, kExampleNoise);
  const std::string solved = example.prompt + example.answer_prefix + " " + example.gold + "\n\n";
  RulerDraft draft = tracking(material, rng, kNameLetters, noise);
  draft.prompt = solved + draft.prompt;
  draft.gold_at += solved.size();
  return draft;
}

// --- Common words ---

constexpr size_t kCommonWords = 10;
constexpr uint32_t kShortLength = 4096;  // below, lists repeat words less often

struct Repeats {
  size_t words = 0;  // different ones
  size_t common = 0, others = 0;
};

// A numbered list in which the first kCommonWords drawn words come more often than the others.
RulerDraft word_list(const RulerMaterial& material, Rng& rng, const Repeats& repeats) {
  RulerDraft draft;
  std::vector<std::string_view> list;
  const std::vector<size_t> drawn = rng.distinct(repeats.words, material.words.size());
  for (size_t i = 0; i < drawn.size(); ++i) {
    const std::string& word = material.words[drawn[i]];
    const bool common = i < kCommonWords;
    if (common) draft.references.push_back(word);
    list.insert(list.end(), common ? repeats.common : repeats.others, word);
  }
  rng.shuffle(list);
  std::string context;
  for (size_t i = 0; i < list.size(); ++i) {
    context += fmt::format("{}{}. {}", i == 0 ? "" : " ", i + 1, list[i]);
  }
  draft.prompt = fill(material.common_words.prompt, {{"context", context}});
  draft.answer_prefix = material.common_words.answer_prefix;
  for (size_t i = 0; i < kCommonWords; ++i) {
    draft.gold += fmt::format(" {}. {}", i + 1, draft.references[i]);
  }
  return draft;
}

RulerDraft common_words(const RulerMaterial& material, Rng rng, uint32_t length, size_t words) {
  const bool brief = length < kShortLength;
  const RulerDraft example =
      word_list(material, rng, brief ? Repeats{20, 3, 1} : Repeats{40, 10, 3});
  RulerDraft draft = word_list(material, rng, brief ? Repeats{words, 6, 1} : Repeats{words, 30, 3});
  draft.prompt = example.prompt + example.answer_prefix + example.gold + "\n" + draft.prompt;
  return draft;
}

// --- Frequent words ---

constexpr size_t kCodedLetters = 6, kAsked = 3;
constexpr size_t kLeastFrequent = 100;  // from there on the first ranks have different counts
constexpr uint32_t kTokensPerCodedWord = 50;
constexpr uint32_t kLeastVocabulary = 20;

// Coded words whose counts fall with the square of their rank; rank 1 is dots, to be ignored.
RulerDraft frequent_words(const RulerMaterial& material, Rng rng, uint32_t length, size_t words) {
  constexpr double kZeta = std::numbers::pi * std::numbers::pi / 6;  // zeta(2)
  const size_t vocabulary = std::max(kLeastVocabulary, length / kTokensPerCodedWord);
  std::vector<std::string> coded = {"..."};
  std::set<std::string> seen;
  while (coded.size() < vocabulary) {
    std::string word;
    while (word.size() < kCodedLetters) word += static_cast<char>('a' + rng.below(26));
    if (seen.insert(word).second) coded.push_back(std::move(word));
  }
  std::vector<std::string_view> text;
  for (size_t i = 0; i < coded.size(); ++i) {
    const auto rank = static_cast<double>(i + 1);
    text.insert(text.end(), static_cast<size_t>(static_cast<double>(words) / (rank * rank * kZeta)),
                coded[i]);
  }
  rng.shuffle(text);
  std::string context;
  for (const std::string_view word : text) {
    if (!context.empty()) context += ' ';
    context += word;
  }
  RulerDraft draft;
  draft.prompt = fill(material.frequent_words.prompt, {{"context", context}});
  draft.answer_prefix = material.frequent_words.answer_prefix;
  draft.references.assign(coded.begin() + 1, coded.begin() + 1 + kAsked);
  draft.gold = " " + join(draft.references, ", ");
  return draft;
}

constexpr size_t kNoLimit = size_t{1} << 24;

}  // namespace

RulerTask variable_tracking_task(const RulerMaterial& material) {
  return {"vt",
          material.variable_tracking.max_tokens,
          false,
          1,
          kNoLimit,
          [&material](Rng rng, uint32_t, size_t units) {
            return tracking_with_example(material, rng, units);
          }};
}

RulerTask common_words_task(const RulerMaterial& material) {
  return {"cwe",
          material.common_words.max_tokens,
          false,
          kCommonWords + 1,
          material.words.size(),
          [&material](Rng rng, uint32_t length, size_t units) {
            return common_words(material, rng, length, units);
          }};
}

RulerTask frequent_words_task(const RulerMaterial& material) {
  return {"fwe",
          material.frequent_words.max_tokens,
          false,
          kLeastFrequent,
          kNoLimit,
          [&material](Rng rng, uint32_t length, size_t units) {
            return frequent_words(material, rng, length, units);
          }};
}

}  // namespace reprise::eval
