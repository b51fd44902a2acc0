// Metrics that look for the expected answer inside the predicted text.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace reprise::eval {

/// Of the classes that occur in the prediction (case matters), those that are proper parts of the
/// reference are dropped; 1 / n when the reference is among the n that stay, else 0.
/// quirk: as LongBench's code does it, which drops from the list it walks and so may skip one.
double classification(std::string_view prediction, std::string_view reference,
                      std::span<const std::string> classes, bool quirk);

/// Share of the prediction's runs of digits that equal the reference; 0 without any.
double count_score(std::string_view prediction, std::string_view reference);

/// count_score against the number in the reference's first "Paragraph N"; 0 when it has none.
double retrieval(std::string_view prediction, std::string_view reference);

/// RULER: the prediction without white space at its ends, control characters as newlines.
std::string ruler_cleaned(std::string_view prediction);

/// RULER's score of every task but question answering: the share of references that occur in the
/// cleaned prediction, in any case; 0 without references.
double ruler_all(std::string_view prediction, std::span<const std::string> references);

/// RULER's score of question answering: 1 when any reference occurs, else 0.
double ruler_part(std::string_view prediction, std::span<const std::string> references);

/// Whether the value occurs in the prediction, both in lower case, with runs of white space as one
/// space and without commas between digits ("1,234,567" holds 1234567). False for an empty value.
bool needle_hit(std::string_view prediction, std::string_view value);

}  // namespace reprise::eval
