#include "text/jinja/lexer.h"

#include <algorithm>

#include "base/try.h"
#include "text/jinja/unicode.h"

namespace reprise::jinja {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}
  Result<std::vector<Token>> run();

 private:
  struct Tag {
    size_t at;    // of the opening brace
    char type;    // % { or #
    char sign;    // - + or 0
    size_t body;  // behind brace and sign
  };
  Tag next_tag() const;
  void push_data(const Tag& tag);
  Status lex_comment(size_t body);
  Result<bool> lex_raw(const Tag& tag);
  Status lex_inside(bool block);
  bool at_end(bool block, size_t& behind) const;
  Status lex_token();
  bool lex_number();
  Status lex_operator();
  size_t skip_space(size_t at) const;
  size_t digits(size_t at, bool (*allowed)(char)) const;
  // Moves behind a tag's end; its last character decides whether a line starts there.
  void finish_tag(size_t behind) {
    position_ = behind;
    line_starts_ = source_[behind - 1] == '\n';
  }
  bool has(size_t at, std::string_view text) const { return source_.substr(at).starts_with(text); }
  void push(TokenKind kind, size_t at, size_t end) {
    tokens_.push_back({kind, static_cast<uint32_t>(at), source_.substr(at, end - at)});
  }
  tl::unexpected<Error> error(size_t at, std::string_view problem) const {
    return syntax_error(source_, at, problem);
  }

  std::string_view source_;
  size_t position_ = 0;
  bool line_starts_ = true;
  std::string open_;  // closing brackets awaited, innermost last
  std::vector<Token> tokens_;
};

size_t Lexer::skip_space(size_t at) const {
  while (at < source_.size()) {
    size_t next = at;
    if (!is_space(next_character(source_, next))) break;
    at = next;
  }
  return at;
}

Lexer::Tag Lexer::next_tag() const {
  for (size_t at = position_; (at = source_.find('{', at)) < source_.size(); ++at) {
    const char type = at + 1 < source_.size() ? source_[at + 1] : '\0';
    if (type != '%' && type != '{' && type != '#') continue;
    const char sign = at + 2 < source_.size() ? source_[at + 2] : '\0';
    const bool has_sign = sign == '-' || sign == '+';
    return {at, type, has_sign ? sign : '\0', at + (has_sign ? 3 : 2)};
  }
  return {source_.size(), '\0', '\0', source_.size()};
}

// The text before a tag, less the white space that the tag takes.
void Lexer::push_data(const Tag& tag) {
  std::string_view text = source_.substr(position_, tag.at - position_);
  if (tag.sign == '-') {
    text = strip(text, nullptr, Side::kRight);
  } else if (tag.sign != '+' && tag.type != '{' && tag.type != '\0') {
    const size_t newline = text.rfind('\n');
    const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
    if ((line > 0 || line_starts_) && strip(text.substr(line), nullptr, Side::kLeft).empty()) {
      text = text.substr(0, line);
    }
  }
  if (!text.empty()) push(TokenKind::kData, position_, position_ + text.size());
}

Status Lexer::lex_comment(size_t body) {
  const size_t end = source_.find("#}", body);
  if (end == std::string_view::npos) return error(body, "the comment does not end");
  const char sign = end > body ? source_[end - 1] : '\0';
  size_t behind = end + 2;
  if (sign == '-') {
    behind = skip_space(behind);
  } else if (sign != '+' && has(behind, "\n")) {
    ++behind;
  }
  finish_tag(behind);
  return {};
}

// {% raw %} and what it encloses; false when the tag is another one.
Result<bool> Lexer::lex_raw(const Tag& tag) {
  size_t at = skip_space(tag.body);
  if (!has(at, "raw")) return false;
  at = skip_space(at + 3);
  const bool strips = has(at, "-%}");
  if (!strips && !has(at, "%}")) return false;
  finish_tag(strips ? skip_space(at + 3) : at + 2);
  for (size_t end = position_; (end = source_.find("{%", end)) != source_.npos; end += 2) {
    const char sign = end + 2 < source_.size() ? source_[end + 2] : '\0';
    const bool has_sign = sign == '-' || sign == '+';
    size_t behind = skip_space(end + (has_sign ? 3 : 2));
    if (!has(behind, "endraw")) continue;
    behind = skip_space(behind + 6);
    if (!at_end(true, behind)) continue;
    push_data({end, '%', has_sign ? sign : '\0', end});
    finish_tag(behind);
    return true;
  }
  return error(tag.at, "the raw block does not end");
}

// True when a tag ends at behind, which is then moved past the end and the white space it takes.
bool Lexer::at_end(bool block, size_t& behind) const {
  const std::string_view end = block ? "%}" : "}}";
  const char sign = behind < source_.size() ? source_[behind] : '\0';
  if (sign == '-' && has(behind + 1, end)) {
    behind = skip_space(behind + 3);
  } else if (block && sign == '+' && has(behind + 1, end)) {
    behind += 3;
  } else if (has(behind, end)) {
    behind += 2;
    if (block && has(behind, "\n")) ++behind;
  } else {
    return false;
  }
  return true;
}

Status Lexer::lex_inside(bool block) {
  open_.clear();
  while (position_ < source_.size()) {
    size_t behind = position_;
    if (open_.empty() && at_end(block, behind)) {
      push(block ? TokenKind::kBlockEnd : TokenKind::kPrintEnd, position_, behind);
      finish_tag(behind);
      return {};
    }
    const size_t next = skip_space(position_);
    if (next != position_) {
      position_ = next;
      continue;
    }
    REPRISE_CHECK(lex_token());
  }
  return {};
}

// End of a run of digits; single underscores may stand between them.
size_t Lexer::digits(size_t at, bool (*allowed)(char)) const {
  while (at < source_.size() && allowed(source_[at])) {
    ++at;
    if (at + 1 < source_.size() && source_[at] == '_' && allowed(source_[at + 1])) ++at;
  }
  return at;
}

bool Lexer::lex_number() {
  const size_t start = position_;
  if (!is_digit(source_[start])) return false;
  size_t end = digits(start, is_digit);
  bool real = false;
  if (start == 0 || source_[start - 1] != '.') {
    if (has(end, ".") && end + 1 < source_.size() && is_digit(source_[end + 1])) {
      end = digits(end + 1, is_digit);
      real = true;
    }
    if (has(end, "e") || has(end, "E")) {
      size_t exponent = end + 1;
      if (has(exponent, "+") || has(exponent, "-")) ++exponent;
      const size_t behind = digits(exponent, is_digit);
      real = real || behind > exponent;
      if (behind > exponent) end = behind;
    }
  }
  if (!real && source_[start] == '0') {
    const char base = start + 1 < source_.size() ? static_cast<char>(source_[start + 1] | 32) : 0;
    bool (*allowed)(char) = [](char c) { return c == '0'; };
    size_t first = start;
    if (base == 'x')
      allowed = [](char c) { return is_digit(c) || ((c | 32) >= 'a' && (c | 32) <= 'f'); };
    if (base == 'o') allowed = [](char c) { return c >= '0' && c <= '7'; };
    if (base == 'b') allowed = [](char c) { return c == '0' || c == '1'; };
    if (base == 'x' || base == 'o' || base == 'b') first += has(start + 2, "_") ? 3 : 2;
    end = digits(first, allowed);
    if (end == first) end = start + 1;
  }
  push(real ? TokenKind::kFloat : TokenKind::kInteger, start, end);
  position_ = end;
  return true;
}

Status Lexer::lex_operator() {
  static constexpr std::string_view kOperators[] = {
      "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
      "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
  const auto found = std::find_if(std::begin(kOperators), std::end(kOperators),
                                  [&](std::string_view text) { return has(position_, text); });
  if (found == std::end(kOperators)) {
    return error(position_,
                 fmt::format("unexpected character {:?}",
                             source_.substr(position_, character_size(source_, position_))));
  }
  static constexpr std::string_view kOpening = "([{", kClosing = ")]}";
  const char first = (*found)[0];
  if (kOpening.find(first) != kOpening.npos) open_ += kClosing[kOpening.find(first)];
  if (kClosing.find(first) != kClosing.npos) {
    if (open_.empty() || open_.back() != first) {
      return error(position_, fmt::format("unexpected '{}'", first));
    }
    open_.pop_back();
  }
  push(TokenKind::kOperator, position_, position_ + found->size());
  position_ += found->size();
  return {};
}

Status Lexer::lex_token() {
  if (lex_number()) return {};
  const size_t start = position_;
  size_t end = start;
  while (end < source_.size()) {
    size_t next = end;
    if (!is_identifier(next_character(source_, next))) break;
    end = next;
  }
  if (end > start) {
    push(TokenKind::kName, start, end);
    position_ = end;
    return {};
  }
  const char quote = source_[start];
  if (quote != '"' && quote != '\'') return lex_operator();
  for (end = start + 1; end < source_.size() && source_[end] != quote; ++end) {
    if (source_[end] == '\\') ++end;
  }
  if (end >= source_.size()) return error(start, "the string does not end");
  push(TokenKind::kString, start, end + 1);
  position_ = end + 1;
  return {};
}

Result<std::vector<Token>> Lexer::run() {
  while (position_ < source_.size()) {
    const Tag tag = next_tag();
    const bool is_raw = tag.type == '%' && has(skip_space(tag.body), "raw");
    push_data(tag);
    if (tag.at == source_.size()) break;
    if (is_raw) {
      REPRISE_TRY(const bool done, lex_raw(tag));
      if (done) continue;
    }
    if (tag.type == '#') {
      REPRISE_CHECK(lex_comment(tag.body));
      continue;
    }
    const bool block = tag.type == '%';
    push(block ? TokenKind::kBlockBegin : TokenKind::kPrintBegin, tag.at, tag.body);
    position_ = tag.body;
    REPRISE_CHECK(lex_inside(block));
  }
  tokens_.push_back({TokenKind::kEnd, static_cast<uint32_t>(source_.size()), {}});
  return std::move(tokens_);
}

}  // namespace

std::string normalize_newlines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t at = 0; at < source.size(); ++at) {
    if (source[at] == '\r' && at + 1 < source.size() && source[at + 1] == '\n') ++at;
    text += source[at] == '\r' ? '\n' : source[at];
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

Result<std::vector<Token>> tokenize(std::string_view source) { return Lexer(source).run(); }

std::string describe_position(std::string_view source, size_t at) {
  const std::string_view before = source.substr(0, at);
  const size_t newline = before.rfind('\n');
  const size_t line_start = newline == std::string_view::npos ? 0 : newline + 1;
  return fmt::format("line {}, column {}", std::count(before.begin(), before.end(), '\n') + 1,
                     character_count(before.substr(line_start)) + 1);
}

tl::unexpected<Error> syntax_error(std::string_view source, size_t at, std::string_view problem) {
  return fail(ErrorCode::kTemplateSyntax, "chat template, {}: {}", describe_position(source, at),
              problem);
}

}  // namespace reprise::jinja
