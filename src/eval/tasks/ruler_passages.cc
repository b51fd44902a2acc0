// RULER's question answering: the passage with the answer among others, at a random place.
//
// SQuAD and HotpotQA give way to sets that are at hand: single-hop questions of
// NaturalQuestions-Open (qa_1), multi-hop questions of MuSiQue (qa_2).
#include <algorithm>
#include <numeric>
#include <unordered_set>

#include "eval/tasks/ruler.h"

namespace reprise::eval {
namespace {

// The first words of a text; all of it when it has no more.
std::string_view first_words(std::string_view text, size_t words) {
  size_t end = 0;
  for (; words > 0 && end < text.size(); --words) {
    end = std::min(text.find(' ', end == 0 ? 0 : end + 1), text.size());
  }
  return text.substr(0, end);
}

// Every passage but the gold one: the question's own first, then the others in random order.
std::vector<size_t> distractors(const PassageSet& set, const PassageQuestion& question, Rng& rng) {
  std::vector<size_t> rest(set.passages.size());
  std::iota(rest.begin(), rest.end(), size_t{0});
  rng.shuffle(rest);
  std::unordered_set<size_t> own(question.others.begin(), question.others.end());
  own.insert(question.gold);
  std::erase_if(rest, [&](size_t passage) { return own.contains(passage); });
  rest.insert(rest.begin(), question.others.begin(), question.others.end());
  return rest;
}

struct Placed {
  std::string_view text;
  uint64_t place = 0;  // documents stand in this order
};

RulerDraft draft(const RulerMaterial& material, const PassageSet& set, Rng rng, size_t words) {
  const PassageQuestion& question = rng.pick(set.questions);
  const std::string_view gold = set.passages[question.gold].text;
  std::vector<Placed> documents = {{gold, rng.bits()}};
  for (const size_t index : distractors(set, question, rng)) {
    if (words == 0) break;
    const Passage& passage = set.passages[index];
    // The last one is cut, so that every length can be met.
    documents.push_back({first_words(passage.text, words), rng.bits()});
    words -= std::min(words, passage.words);
  }
  std::stable_sort(documents.begin(), documents.end(),
                   [](const Placed& a, const Placed& b) { return a.place < b.place; });

  std::string context;
  size_t gold_at = 0;
  for (size_t i = 0; i < documents.size(); ++i) {
    context += fmt::format("{}Document {}:\n", i == 0 ? "" : "\n\n", i + 1);
    if (documents[i].text.data() == gold.data()) gold_at = context.size();
    context += documents[i].text;
  }
  RulerDraft result;
  result.prompt = fill(material.qa.prompt, {{"context", context}, {"query", question.question}});
  result.answer_prefix = material.qa.answer_prefix;
  result.gold_at = result.prompt.find(context) + gold_at;
  result.references = question.answers;
  result.gold = " " + question.answers.front();
  return result;
}

RulerTask passage_task(std::string_view name, const RulerMaterial& material,
                       const PassageSet& set) {
  size_t words = 0;
  for (const Passage& passage : set.passages) words += passage.words;
  return {name,
          material.qa.max_tokens,
          true,
          0,
          words,
          [&material, &set](Rng rng, uint32_t, size_t units) {
            return draft(material, set, rng, units);
          }};
}

}  // namespace

std::vector<RulerTask> passage_tasks(const RulerMaterial& material) {
  return {passage_task("qa_1", material, material.single_hop),
          passage_task("qa_2", material, material.multi_hop)};
}

}  // namespace reprise::eval
