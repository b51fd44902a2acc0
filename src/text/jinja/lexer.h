// Jinja source to tokens, with trim_blocks and lstrip_blocks on.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "reprise/error.h"

namespace reprise::jinja {

enum class TokenKind : uint8_t {
  kData,  ///< text between tags, white space already taken off
  kPrintBegin,
  kPrintEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,  ///< with its quotes
  kInteger,
  kFloat,
  kOperator,
  kEnd
};

struct Token {
  TokenKind kind;
  uint32_t at;  ///< byte offset in the source
  std::string_view text;
};

/// The source as Jinja reads it: every line end is \n, one at the end is dropped.
std::string normalize_newlines(std::string_view source);

/// The last token is kEnd. source must outlive the tokens. Errors: kTemplateSyntax.
Result<std::vector<Token>> tokenize(std::string_view source);

/// "line L, column C" of a byte offset, both counted from 1 in characters.
std::string describe_position(std::string_view source, size_t at);

/// Error at a byte offset.
tl::unexpected<Error> syntax_error(std::string_view source, size_t at, std::string_view problem);

/// The text that a quoted literal means. Errors: kTemplateSyntax; at is its offset.
Result<std::string> unquote(std::string_view source, const Token& token);

}  // namespace reprise::jinja
