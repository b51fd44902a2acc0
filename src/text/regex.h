// The regular expressions of tokenizers: Unicode, bounded, safe to share between threads.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "reprise/error.h"
#include "text/function_ref.h"

namespace reprise {

/// What matching needs besides the pattern; one for each thread, usable with any Regex.
class RegexState {
 public:
  RegexState();
  RegexState(RegexState&&) noexcept;
  RegexState& operator=(RegexState&&) noexcept;
  ~RegexState();

 private:
  friend class Regex;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class Regex {
 public:
  /// A pattern as tokenizers write them (Oniguruma's syntax, as far as PCRE2 has it).
  /// kUnsupportedTokenizer when it does not compile or means something else in PCRE2.
  static Result<Regex> compile(std::string_view pattern);
  /// Matches the text as it is.
  static Result<Regex> literal(std::string_view text);

  using Visit = FunctionRef<void(std::string_view part, bool matched)>;
  /// Cuts valid UTF-8 into matches and what lies between them, left to right; an empty match is
  /// visited as an empty part. A match that exceeds the limits ends the search: the rest of the
  /// text counts as unmatched.
  void scan(std::string_view text, RegexState& state, Visit visit) const;
  /// The text with every match replaced.
  std::string replace(std::string_view text, std::string_view content, RegexState& state) const;

 private:
  struct Free {
    void operator()(void* code) const;
  };
  static Result<Regex> build(std::string_view pattern, uint32_t options);

  std::unique_ptr<void, Free> code_;  // pcre2_code_8
};

}  // namespace reprise
