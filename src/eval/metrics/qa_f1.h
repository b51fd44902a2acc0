// Token F1 of question answering (SQuAD's, as LongBench uses it for English).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace reprise::eval {

/// Lower case, without ASCII punctuation, without the words a, an and the, cut at white space.
/// Differs from Python only where one letter's lower case is two (U+0130) or depends on its place
/// (final sigma); both sides of a comparison are treated alike.
std::vector<std::string> qa_tokens(std::string_view text);

/// Harmonic mean of precision and recall over the multisets of qa_tokens; 0 when none is shared.
double qa_f1(std::string_view prediction, std::string_view reference);

}  // namespace reprise::eval
