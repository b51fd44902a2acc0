// Pre-tokenisation: cutting text into the pieces that the subword model never merges across.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "formats/tokenizer_data.h"
#include "reprise/error.h"
#include "text/function_ref.h"
#include "text/regex.h"

namespace reprise {

/// Working memory of one encode() call.
struct SplitContext {
  RegexState regex;
  std::deque<std::string> texts;  ///< rewritten text; pieces point into it until the call ends
  bool at_start = true;           ///< the text that is split starts the input
  bool continues = false;         ///< it follows bytes that are no text
};

using PieceFn = FunctionRef<void(std::string_view)>;

/// One step: cuts a piece further, or rewrites it.
class Splitter {
 public:
  virtual ~Splitter() = default;
  virtual void split(std::string_view piece, SplitContext& context, PieceFn next) const = 0;
};

class PreTokenizer {
 public:
  /// Of a GGUF's tokenizer.ggml.pre. kUnsupportedTokenizer when the name is not known.
  static Result<PreTokenizer> from_gguf(std::string_view name);
  /// Of tokenizer.json's steps. kUnsupportedTokenizer names the kind.
  static Result<PreTokenizer> from_steps(const std::vector<TokenizerStep>& steps);

  /// Calls next for each piece, in order; none is empty.
  void split(std::string_view text, SplitContext& context, PieceFn next) const;

 private:
  void run(size_t step, std::string_view piece, SplitContext& context, PieceFn next) const;

  std::vector<std::unique_ptr<Splitter>> steps_;
};

/// Regular expressions of a tokenizer.ggml.pre, applied one after the other; empty when the name is
/// not known.
std::vector<std::string_view> gguf_split_patterns(std::string_view name);
/// GPT-2's own, which ByteLevel uses.
extern const std::string_view kGpt2Pattern;

}  // namespace reprise
