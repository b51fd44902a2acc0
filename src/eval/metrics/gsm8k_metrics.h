// Numbers in worked answers to grade-school problems (GSM8K), compared as exact decimals.
#pragma once

#include <string>
#include <string_view>

#include "eval/sample.h"

namespace reprise::eval {

/// A number: optional sign and "$" in either order, digits with or without thousands commas,
/// optional decimals. A "-" behind a letter, digit or ")" is a subtraction and no sign.
struct ExtractedNumber {
  /// As an exact decimal: no "$", commas, leading zeros or zeros that end the decimals ("-0.5",
  /// "1234"). Two numbers are equal when these are. Empty when nothing was found.
  std::string value;
  bool fraction = false;  // is part of a fraction or mixed number, so value is not what is meant
};

/// The number behind the first "The answer is" that only spaces and signs separate from one.
ExtractedNumber strict_number(std::string_view answer);

/// The last number of the text.
ExtractedNumber flexible_number(std::string_view answer);

/// The number that a data set's worked answer ends in: behind its last "####", else the last one.
std::string gold_number(std::string_view answer);

/// strict and flexible (1 when that number equals the gold answer's), no_match (1 when there is no
/// strict number) and fraction (1 when either number is part of one).
Scores gsm8k_scores(std::string_view prediction, std::string_view gold_answer);

}  // namespace reprise::eval
