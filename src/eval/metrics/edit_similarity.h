// How alike a predicted line of code is to the expected one (LongBench's lcc, repobench-p).
#pragma once

#include <string_view>

namespace reprise::eval {

/// Which of its two back ends fuzzywuzzy's ratio used: difflib, or python-Levenshtein where that
/// happens to be installed. LongBench's requirements lack the latter.
enum class EditRatio {
  kRatcliffObershelp,  // 2M / T over matching blocks, popular characters of long texts left out
  kIndel,              // 1 - (insertions + deletions) / T
};

/// fuzzywuzzy 0.18's ratio / 100 over code points: rounded to hundredths, halves to even; 1 for
/// equal texts (even empty ones), 0 when one alone is empty.
double edit_similarity(std::string_view prediction, std::string_view reference, EditRatio ratio);

/// The first line of a prediction with no "`", "#" or "//" in it, empty when there is none.
std::string_view code_line(std::string_view prediction);

}  // namespace reprise::eval
