#include "eval/metrics/rouge.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "eval/metrics/lcs.h"
#include "eval/metrics/words.h"
#include "text/jinja/unicode.h"

namespace reprise::eval {
namespace {

using Words = std::vector<uint32_t>;  // one number per different word

// Steps from the end of both sentences that Python's limit of 1000 frames leaves room for, below
// the frames of LongBench's eval.py and of the package.
constexpr size_t kRecursionSteps = 990;

class Vocabulary {
 public:
  uint32_t id(std::string_view word) {
    return ids_.try_emplace(word, static_cast<uint32_t>(ids_.size())).first->second;
  }
  size_t size() const { return ids_.size(); }

 private:
  std::unordered_map<std::string_view, uint32_t> ids_;
};

std::vector<Words> sentences_of(std::string_view text, Vocabulary& vocabulary) {
  std::vector<Words> sentences;
  for (const std::string_view sentence : split_at(text, '.')) {
    if (sentence.empty()) continue;
    Words& words = sentences.emplace_back();
    for (const std::string_view word : split_words(sentence)) words.push_back(vocabulary.id(word));
    if (words.empty()) words.push_back(vocabulary.id(""));
  }
  return sentences;
}

size_t unique_words(const std::vector<Words>& sentences, size_t vocabulary) {
  std::vector<bool> seen(vocabulary, false);
  size_t count = 0;
  for (const Words& words : sentences) {
    for (const uint32_t word : words) {
      count += !seen[word];
      seen[word] = true;
    }
  }
  return count;
}

// Marks the words of the longest common subsequence of x and y; returns the steps of the way back
// from both ends. Ties go to the shorter y, as in the package.
size_t mark_common(const Words& x, const Words& y, std::vector<bool>& marked) {
  const size_t columns = y.size() + 1;
  std::vector<uint32_t> lengths((x.size() + 1) * columns, 0);  // [i][j] for the first i, j words
  for (size_t i = 1; i <= x.size(); ++i) {
    const uint32_t* above = lengths.data() + (i - 1) * columns;
    uint32_t* row = lengths.data() + i * columns;
    for (size_t j = 1; j <= y.size(); ++j) {
      row[j] = x[i - 1] == y[j - 1] ? above[j - 1] + 1 : std::max(above[j], row[j - 1]);
    }
  }
  size_t steps = 0;
  for (size_t i = x.size(), j = y.size(); i > 0 && j > 0; ++steps) {
    if (x[i - 1] == y[j - 1]) {
      marked[x[i - 1]] = true;
      --i;
      --j;
    } else if (lengths[(i - 1) * columns + j] > lengths[i * columns + j - 1]) {
      --i;
    } else {
      --j;
    }
  }
  return steps;
}

// Lower-case runs of [a-z0-9] as numbers of the words.
Words plain_words(const std::string& lower, Vocabulary& vocabulary) {
  Words words;
  const std::string_view text = lower;
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789";
  for (size_t at = 0; (at = text.find_first_of(kLetters, at)) != text.npos;) {
    const size_t end = std::min(text.find_first_not_of(kLetters, at), text.size());
    words.push_back(vocabulary.id(text.substr(at, end - at)));
    at = end;
  }
  return words;
}

}  // namespace

SummaryRougeL summary_rouge_l(std::string_view prediction, std::string_view reference) {
  Vocabulary vocabulary;
  const std::vector<Words> predicted = sentences_of(prediction, vocabulary);
  const std::vector<Words> expected = sentences_of(reference, vocabulary);
  if (predicted.empty() || expected.empty()) return {};
  SummaryRougeL result;
  std::vector<bool> marked(vocabulary.size(), false);
  for (const Words& x : expected) {
    for (const Words& y : predicted) {
      result.recursion_fails |= mark_common(x, y, marked) > kRecursionSteps;
    }
  }
  const auto shared = static_cast<double>(std::count(marked.begin(), marked.end(), true));
  const double precision = shared / static_cast<double>(unique_words(predicted, marked.size()));
  const double recall = shared / static_cast<double>(unique_words(expected, marked.size()));
  result.f = 2 * (precision * recall / (precision + recall + 1e-8));
  return result;
}

double rouge_l(std::string_view prediction, std::string_view reference) {
  const std::string lower_prediction = jinja::to_lower(prediction);
  const std::string lower_reference = jinja::to_lower(reference);
  Vocabulary vocabulary;
  const Words predicted = plain_words(lower_prediction, vocabulary);
  const Words expected = plain_words(lower_reference, vocabulary);
  const auto shared = static_cast<double>(lcs_length(expected, predicted));
  if (shared == 0) return 0.0;
  const double precision = shared / static_cast<double>(predicted.size());
  const double recall = shared / static_cast<double>(expected.size());
  return 2 * precision * recall / (precision + recall);
}

}  // namespace reprise::eval
