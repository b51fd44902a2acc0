#include "text/token_texts.h"

#include <functional>
#include <memory>

#include "base/try.h"
#include "formats/printable.h"
#include "formats/tokenizer_check.h"
#include "text/byte_level.h"
#include "text/regex.h"
#include "text/utf8.h"

namespace reprise {
namespace {

// One decoder step: rewrites a token's text; true ends the chain (the text is final bytes).
using Step = std::function<bool(std::string& text)>;

bool byte_step(std::string& text) {
  const auto byte = byte_of_piece(text);
  if (byte) text.assign(1, static_cast<char>(*byte));
  return byte.has_value();
}

bool byte_level_step(std::string& text) {
  if (auto bytes = from_byte_level(text)) text = std::move(*bytes);
  return false;
}

Step replace_step(std::string from, std::string to) {
  return [from = std::move(from), to = std::move(to)](std::string& text) {
    text = replace_all(text, from, to);
    return false;
  };
}

Result<Step> regex_step(const TokenizerStep& step) {
  REPRISE_TRY(auto regex, Regex::compile(step.pattern));
  return [regex = std::make_shared<Regex>(std::move(regex)),
          content = step.content](std::string& text) {
    RegexState state;
    text = regex->replace(text, content, state);
    return false;
  };
}

// A Strip that follows Fuse takes characters from the ends of the whole text; before it, from each
// token.
Step strip_step(const TokenizerStep& step) {
  return [step](std::string& text) {
    for (uint32_t i = 0; i < step.start && text.starts_with(step.content); ++i) {
      text.erase(0, step.content.size());
    }
    for (uint32_t i = 0; i < step.stop && text.ends_with(step.content); ++i) {
      text.resize(text.size() - step.content.size());
    }
    return false;
  };
}

struct Decoders {
  std::vector<Step> steps;
  bool fused = false;
  bool drops_first_space = false;

  Status add(const TokenizerStep& step) {
    const std::string& kind = step.kind;
    if (kind == "ByteLevel") {
      steps.emplace_back(byte_level_step);
    } else if (kind == "ByteFallback") {
      steps.emplace_back(byte_step);
    } else if (kind == "Fuse") {
      fused = true;
    } else if (kind == "Metaspace") {
      steps.push_back(
          replace_step(step.content.empty() ? std::string(kMetaspace) : step.content, " "));
      drops_first_space |= step.prepend_scheme != "never";
    } else if (kind == "Replace" && step.pattern_is_regex) {
      REPRISE_TRY(auto made, regex_step(step));
      steps.push_back(std::move(made));
    } else if (kind == "Replace" && !step.pattern.empty()) {
      steps.push_back(replace_step(step.pattern, step.content));
    } else if (kind == "Strip" && fused && step.content == " " && step.stop == 0) {
      drops_first_space |= step.start > 0;
    } else if (kind == "Strip" && !fused && !step.content.empty()) {
      steps.push_back(strip_step(step));
    } else {
      return fail(ErrorCode::kUnsupportedTokenizer, "decoder {} is not known", printable(kind));
    }
    return {};
  }
};

Result<Decoders> decoders_of(const TokenizerData& data, bool byte_level, bool sentencepiece) {
  Decoders decoders;
  for (const TokenizerStep& step : data.decoders) REPRISE_CHECK(decoders.add(step));
  if (!data.decoders.empty()) return decoders;
  if (byte_level) decoders.steps.emplace_back(byte_level_step);
  if (sentencepiece) {
    decoders.steps.push_back(replace_step(std::string(kMetaspace), " "));
    decoders.drops_first_space = data.add_space_prefix;
  }
  return decoders;
}

}  // namespace

Result<TokenTexts> TokenTexts::create(const TokenizerData& data, bool byte_level,
                                      bool sentencepiece) {
  REPRISE_TRY(const auto decoders, decoders_of(data, byte_level, sentencepiece));
  std::vector<bool> verbatim(data.tokens.size());
  for (const AddedToken& token : data.added) verbatim[static_cast<size_t>(token.id)] = true;
  TokenTexts texts;
  texts.drops_first_space_ = decoders.drops_first_space;
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    std::string text = data.tokens[id];
    const TokenKind kind = data.kinds[id];
    const bool is_byte = kind == TokenKind::kByte && byte_step(text);
    // Added tokens are written as they are where others are written in characters for bytes.
    const bool as_stored = is_byte || (verbatim[id] && byte_level) || kind == TokenKind::kControl;
    for (const Step& step : decoders.steps) {
      if (as_stored || step(text)) break;
    }
    texts.bytes_ += text;
    texts.ends_.push_back(texts.bytes_.size());
  }
  return texts;
}

std::string_view TokenTexts::of(int32_t token) const {
  const auto id = static_cast<size_t>(token);
  if (token < 0 || id >= ends_.size()) return {};
  const size_t begin = id == 0 ? 0 : ends_[id - 1];
  return std::string_view(bytes_).substr(begin, ends_[id] - begin);
}

}  // namespace reprise
