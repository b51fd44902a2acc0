// ROUGE-L, the two definitions that published numbers use.
#pragma once

#include <string_view>

namespace reprise::eval {

/// What PyPI's rouge 1.0.1 computes, which LongBench reports.
struct SummaryRougeL {
  double f = 0;
  /// The package recurses once per step through a pair of sentences. Beyond Python's default limit
  /// it fails and LongBench scores the item 0; f is what it would have been.
  bool recursion_fails = false;
};

/// Sentences end at "."; their words are cut at white space, case and punctuation kept, and a
/// sentence of white space alone counts as one empty word. The shared words are the union, over
/// all pairs of a reference and a predicted sentence, of the words of their longest common
/// subsequence; precision and recall are over the sets of unique words, f = 2PR / (P + R + 1e-8).
/// 0 when a side has no sentence. Among equally long subsequences the package's choice is taken.
SummaryRougeL summary_rouge_l(std::string_view prediction, std::string_view reference);

/// The classical sentence-level measure (PyPI's rouge-score, no stemming): the longest common
/// subsequence of the whole texts' lower-case runs of [a-z0-9]; f = 2PR / (P + R).
double rouge_l(std::string_view prediction, std::string_view reference);

}  // namespace reprise::eval
