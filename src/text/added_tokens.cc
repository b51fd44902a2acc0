#include "text/added_tokens.h"

#include <utf8proc.h>

#include <algorithm>

#include "text/utf8.h"

namespace reprise {
namespace {

// Symbols that Unicode calls alphabetic.
bool is_circled_letter(uint32_t c) {
  return (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) ||
         (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189);
}

bool is_word_character(uint32_t code_point) {
  if (code_point == 0x200c || code_point == 0x200d) return true;  // the joiners
  if (is_circled_letter(code_point)) return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

uint32_t last_character(std::string_view text) {
  return utf8_unit(text.substr(text.size() - last_character_bytes(text))).code_point;
}

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  if (begin > 0 && is_word_character(last_character(text.substr(0, begin)))) return false;
  return end == text.size() || !is_word_character(utf8_unit(text.substr(end)).code_point);
}

size_t white_space_before(std::string_view text) {
  size_t bytes = 0;
  while (bytes < text.size()) {
    const std::string_view rest = text.substr(0, text.size() - bytes);
    if (!is_white_space(last_character(rest))) break;
    bytes += last_character_bytes(rest);
  }
  return bytes;
}

size_t white_space_after(std::string_view text) {
  size_t bytes = 0;
  while (bytes < text.size()) {
    const Utf8Unit unit = utf8_unit(text.substr(bytes));
    if (!is_white_space(unit.code_point)) break;
    bytes += unit.bytes;
  }
  return bytes;
}

}  // namespace

bool touches(std::span<const TextRange> ranges, size_t begin, size_t end) {
  const auto first = std::ranges::upper_bound(ranges, begin, {}, &TextRange::end);
  return first != ranges.end() && first->begin < end;
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, const std::vector<std::string>& texts)
    : tokens_(std::move(tokens)) {
  std::vector<ByteTrie::Entry> entries;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    entries.emplace_back(texts[i], static_cast<int32_t>(i));
  }
  trie_ = ByteTrie(std::move(entries));
}

bool AddedTokens::allowed(std::string_view text, const Match& match, const Filter& filter) const {
  if (match.token->special) {
    const size_t begin = filter.offset + match.begin, end = filter.offset + match.end;
    if (!filter.special || touches(filter.literal, begin, end)) return false;
  }
  return !match.token->single_word || stands_alone(text, match.begin, match.end);
}

AddedTokens::Match AddedTokens::match_at(std::string_view text, size_t at, size_t done,
                                         const Filter& filter) const {
  Match best;
  trie_.prefixes(text.substr(at), [&](size_t bytes, int32_t index) {
    const Match match{&tokens_[static_cast<size_t>(index)], at, at + bytes};
    if (allowed(text, match, filter)) best = match;
  });
  if (best.token == nullptr) return best;
  if (best.token->lstrip) best.begin -= white_space_before(text.substr(done, at - done));
  if (best.token->rstrip) best.end += white_space_after(text.substr(best.end));
  return best;
}

void AddedTokens::split(std::string_view text, const Filter& filter, Visit visit) const {
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    if (!trie_.may_start(static_cast<uint8_t>(text[at]))) {
      ++at;
      continue;
    }
    const Match match = match_at(text, at, done, filter);
    if (match.token == nullptr) {
      ++at;
      continue;
    }
    if (match.begin > done) visit(text.substr(done, match.begin - done), nullptr);
    visit(text.substr(match.begin, match.end - match.begin), match.token);
    at = done = match.end;
  }
  if (done < text.size()) visit(text.substr(done), nullptr);
}

}  // namespace reprise
