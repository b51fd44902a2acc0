#include "text/normalizer.h"

#include <memory>

#include "base/try.h"
#include "formats/printable.h"
#include "text/character_map.h"
#include "text/regex.h"
#include "text/unicode_forms.h"
#include "text/utf8.h"

namespace reprise {
namespace {

using Step = std::function<std::string(std::string_view, const TextPosition&, RegexState&)>;

// Bytes that one match is replaced by; more would let a hostile file multiply a text.
constexpr size_t kMaxReplacement = 256;

Result<Step> replace_step(const TokenizerStep& step) {
  if (!step.pattern_is_regex && !step.pattern.empty()) {
    return [step](std::string_view text, const TextPosition&, RegexState&) {
      return replace_all(text, step.pattern, step.content);
    };
  }
  REPRISE_TRY(auto compiled, Regex::compile(step.pattern));
  return [regex = std::make_shared<Regex>(std::move(compiled)), content = step.content](
             std::string_view text, const TextPosition&, RegexState& state) {
    return regex->replace(text, content, state);
  };
}

// A step that looks at nothing but the text.
template <class Function>
Step plain_step(Function function) {
  return [function = std::move(function)](std::string_view text, const TextPosition&, RegexState&) {
    return std::string(function(text));
  };
}

Step form_step(UnicodeForm form) {
  return plain_step([form](std::string_view text) { return to_unicode_form(text, form); });
}

Result<Step> make_step(const TokenizerStep& step) {
  const std::string& kind = step.kind;
  if (kind != "Precompiled" && step.content.size() > kMaxReplacement) {
    return fail(ErrorCode::kBadValue, "the {} normalizer inserts {} bytes; at most {} are allowed",
                printable(kind), step.content.size(), kMaxReplacement);
  }
  if (kind == "NFC") return form_step(UnicodeForm::kNfc);
  if (kind == "NFD") return form_step(UnicodeForm::kNfd);
  if (kind == "NFKC") return form_step(UnicodeForm::kNfkc);
  if (kind == "NFKD") return form_step(UnicodeForm::kNfkd);
  if (kind == "Replace") return replace_step(step);
  if (kind == "Lowercase") return plain_step(to_lowercase);
  if (kind == "StripAccents") return plain_step(strip_accents);
  if (kind == "Strip") {
    return [left = step.start > 0, right = step.stop > 0](
               std::string_view text, const TextPosition& position, RegexState&) {
      return strip_white_space(text, left && !position.continues, right && !position.continued);
    };
  }
  if (kind == "Prepend") {
    return
        [prefix = step.content](std::string_view text, const TextPosition& position, RegexState&) {
          const bool wanted = !text.empty() && !position.continues;
          return wanted ? std::string(prefix).append(text) : std::string(text);
        };
  }
  if (kind == "Precompiled") {
    REPRISE_TRY(auto map, CharacterMap::parse(step.content));
    return plain_step([map = std::make_shared<CharacterMap>(std::move(map))](
                          std::string_view text) { return map->apply(text); });
  }
  return fail(ErrorCode::kUnsupportedTokenizer, "normalizer {} is not known", printable(kind));
}

// Runs of spaces become one; those at the start of the input go.
std::string collapse_spaces(std::string_view text, const TextPosition& position) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    const bool repeated = out.empty() ? position.at_start : out.back() == ' ';
    if (c != ' ' || !repeated) out += c;
  }
  return out;
}

// SentencePiece's own last steps: U+2581 for spaces, and one before the text.
Step escape_step(bool add_prefix, bool remove_extra) {
  return [=](std::string_view text, const TextPosition& position, RegexState&) {
    std::string collapsed;
    if (remove_extra) text = collapsed = collapse_spaces(text, position);
    if (text.empty()) return std::string();
    std::string out = replace_all(text, " ", kMetaspace);
    if (add_prefix && position.after_special) out.insert(0, kMetaspace);
    while (remove_extra && position.at_end && out.ends_with(kMetaspace)) {
      out.resize(out.size() - kMetaspace.size());
    }
    return out;
  };
}

}  // namespace

Result<Normalizer> Normalizer::create(const TokenizerData& data, bool sentencepiece) {
  Normalizer result;
  for (const TokenizerStep& step : data.normalizers) {
    REPRISE_TRY(auto made, make_step(step));
    result.steps_.push_back(std::move(made));
  }
  if (sentencepiece) {
    result.steps_.push_back(escape_step(data.add_space_prefix, data.remove_extra_whitespaces));
  }
  return result;
}

std::string Normalizer::apply(std::string_view text, const TextPosition& position,
                              RegexState& regex) const {
  std::string out(text);
  for (const Step& step : steps_) out = step(out, position, regex);
  return out;
}

}  // namespace reprise
