#include "text/pre_tokenizer.h"

#include <optional>

#include "base/try.h"
#include "formats/printable.h"
#include "text/byte_level.h"
#include "text/utf8.h"

namespace reprise {
namespace {

enum class Behavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

Result<Behavior> behavior_of(std::string_view name) {
  if (name.empty() || name == "Isolated") return Behavior::kIsolated;
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  return fail(ErrorCode::kUnsupportedTokenizer, "split behavior {} is not known", printable(name));
}

// Joins neighbouring parts as a behavior asks; parts follow each other without gaps.
class Joiner {
 public:
  Joiner(Behavior behavior, PieceFn next) : behavior_(behavior), next_(next) {}

  void add(std::string_view part, bool matched) {
    if (behavior_ == Behavior::kIsolated || (behavior_ == Behavior::kRemoved && !matched)) {
      next_(part);
    }
    if (behavior_ == Behavior::kIsolated || behavior_ == Behavior::kRemoved) return;
    if (held_.data() != nullptr && joins(matched)) {
      held_ = {held_.data(), held_.size() + part.size()};
    } else {
      flush();
      held_ = part;
    }
    matched_ = matched;
  }

  void flush() {
    if (!held_.empty()) next_(held_);
    held_ = {};
  }

 private:
  bool joins(bool matched) const {
    switch (behavior_) {
      case Behavior::kMergedWithPrevious:
        return matched && !matched_;
      case Behavior::kMergedWithNext:
        return !matched && matched_;
      default:
        return matched == matched_;
    }
  }

  Behavior behavior_;
  PieceFn next_;
  std::string_view held_;
  bool matched_ = false;
};

class SplitStep : public Splitter {
 public:
  SplitStep(Regex regex, Behavior behavior, bool invert)
      : regex_(std::move(regex)), behavior_(behavior), invert_(invert) {}

  void split(std::string_view piece, SplitContext& context, PieceFn next) const override {
    Joiner joiner(behavior_, next);
    regex_.scan(piece, context.regex, [&](std::string_view part, bool matched) {
      if (!part.empty()) joiner.add(part, matched != invert_);
    });
    joiner.flush();
  }

 private:
  Regex regex_;
  Behavior behavior_;
  bool invert_;
};

class PrefixSpaceStep : public Splitter {
 public:
  void split(std::string_view piece, SplitContext& context, PieceFn next) const override {
    next(piece[0] == ' ' ? piece : context.texts.emplace_back(" ").append(piece));
  }
};

// Bytes as printable characters, for steps that come after ByteLevel; and back before the model.
class ToByteLevelStep : public Splitter {
 public:
  void split(std::string_view piece, SplitContext& context, PieceFn next) const override {
    next(context.texts.emplace_back(to_byte_level(piece)));
  }
};

class FromByteLevelStep : public Splitter {
 public:
  void split(std::string_view piece, SplitContext& context, PieceFn next) const override {
    next(context.texts.emplace_back(from_byte_level(piece).value_or(std::string(piece))));
  }
};

class MetaspaceStep : public Splitter {
 public:
  enum class Prepend { kAlways, kFirst, kNever };
  MetaspaceStep(std::string mark, Prepend prepend) : mark_(std::move(mark)), prepend_(prepend) {}

  void split(std::string_view piece, SplitContext& context, PieceFn next) const override {
    std::string& text = context.texts.emplace_back(replace_all(piece, " ", mark_));
    const bool wanted = (prepend_ == Prepend::kAlways && !context.continues) ||
                        (prepend_ == Prepend::kFirst && context.at_start);
    if (wanted && !text.starts_with(mark_)) text.insert(0, mark_);
    next(text);
  }

 private:
  std::string mark_;
  Prepend prepend_;
};

using Steps = std::vector<std::unique_ptr<Splitter>>;

Status add_split(Steps& steps, Result<Regex> regex, Behavior behavior, bool invert = false) {
  REPRISE_TRY(auto compiled, std::move(regex));
  steps.push_back(std::make_unique<SplitStep>(std::move(compiled), behavior, invert));
  return {};
}

Status add_metaspace(Steps& steps, const TokenizerStep& step) {
  using Prepend = MetaspaceStep::Prepend;
  Prepend prepend = Prepend::kNever;
  if (step.prepend_scheme == "always") {
    prepend = Prepend::kAlways;
  } else if (step.prepend_scheme == "first") {
    prepend = Prepend::kFirst;
  } else if (step.prepend_scheme != "never") {
    return fail(ErrorCode::kUnsupportedTokenizer, "prepend scheme {} is not known",
                printable(step.prepend_scheme));
  }
  const std::string mark = step.content.empty() ? std::string(kMetaspace) : step.content;
  steps.push_back(std::make_unique<MetaspaceStep>(mark, prepend));
  return step.split ? add_split(steps, Regex::literal(mark), Behavior::kMergedWithNext) : Status();
}

Status add_byte_level(Steps& steps, const TokenizerStep& step, bool last) {
  if (step.add_prefix_space) steps.push_back(std::make_unique<PrefixSpaceStep>());
  if (step.use_regex) {
    REPRISE_CHECK(add_split(steps, Regex::compile(kGpt2Pattern), Behavior::kIsolated));
  }
  if (!last) steps.push_back(std::make_unique<ToByteLevelStep>());
  return {};
}

Status add_step(Steps& steps, const TokenizerStep& step, bool last) {
  const std::string& kind = step.kind;
  if (kind == "ByteLevel") return add_byte_level(steps, step, last);
  if (kind == "Metaspace") return add_metaspace(steps, step);
  REPRISE_TRY(const auto behavior, behavior_of(step.behavior));
  if (kind == "Split") {
    auto regex =
        step.pattern_is_regex ? Regex::compile(step.pattern) : Regex::literal(step.pattern);
    return add_split(steps, std::move(regex), behavior, step.invert);
  }
  if (kind == "Digits") {
    const auto* pattern = step.individual_digits ? R"(\p{N})" : R"(\p{N}+)";
    return add_split(steps, Regex::compile(pattern), Behavior::kIsolated);
  }
  if (kind == "Punctuation") {
    return add_split(steps, Regex::compile(R"([!-\/:-@\[-`{-~\p{P}])"), behavior);
  }
  if (kind == "Whitespace") {
    // This one's word characters include the joiners U+200C and U+200D.
    constexpr std::string_view kWords = R"([\w\x{200C}\x{200D}]+|[^\w\x{200C}\x{200D}\s]+)";
    return add_split(steps, Regex::compile(kWords), Behavior::kRemoved, true);
  }
  if (kind == "WhitespaceSplit") {
    return add_split(steps, Regex::compile(R"(\s)"), Behavior::kRemoved);
  }
  if (kind == "CharDelimiterSplit") {
    return add_split(steps, Regex::literal(step.content), Behavior::kRemoved);
  }
  return fail(ErrorCode::kUnsupportedTokenizer, "pre-tokenizer {} is not known", printable(kind));
}

}  // namespace

Result<PreTokenizer> PreTokenizer::from_gguf(std::string_view name) {
  PreTokenizer result;
  const auto patterns = gguf_split_patterns(name);
  if (patterns.empty()) {
    return fail(ErrorCode::kUnsupportedTokenizer, "pre-tokenizer {} is not known", printable(name));
  }
  for (const std::string_view pattern : patterns) {
    REPRISE_CHECK(add_split(result.steps_, Regex::compile(pattern), Behavior::kIsolated));
  }
  return result;
}

Result<PreTokenizer> PreTokenizer::from_steps(const std::vector<TokenizerStep>& steps) {
  PreTokenizer result;
  bool written_as_characters = false;
  for (const TokenizerStep& step : steps) {
    const bool last = &step == &steps.back();
    if (step.kind == "ByteLevel" && written_as_characters) {
      return fail(ErrorCode::kUnsupportedTokenizer, "two ByteLevel steps follow each other");
    }
    written_as_characters |= step.kind == "ByteLevel" && !last;
    REPRISE_CHECK(add_step(result.steps_, step, last));
  }
  if (written_as_characters) result.steps_.push_back(std::make_unique<FromByteLevelStep>());
  return result;
}

void PreTokenizer::split(std::string_view text, SplitContext& context, PieceFn next) const {
  if (!text.empty()) run(0, text, context, next);
}

void PreTokenizer::run(size_t step, std::string_view piece, SplitContext& context,
                       PieceFn next) const {
  if (step == steps_.size()) {
    next(piece);
    return;
  }
  steps_[step]->split(piece, context, [&](std::string_view part) {
    if (!part.empty()) run(step + 1, part, context, next);
  });
}

}  // namespace reprise
