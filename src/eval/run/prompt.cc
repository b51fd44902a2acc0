#include "eval/run/prompt.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <string>

#include "base/try.h"

namespace reprise::eval {
namespace {

using Tokens = std::vector<int32_t>;

void append(Tokens& tokens, const Tokens& more) {
  tokens.insert(tokens.end(), more.begin(), more.end());
}

Tokens without_middle(const Tokens& tokens, size_t keep) {
  const auto head = static_cast<std::ptrdiff_t>(keep / 2 + keep % 2);
  const auto tail = static_cast<std::ptrdiff_t>(keep / 2);
  Tokens kept(tokens.begin(), tokens.begin() + head);
  kept.insert(kept.end(), tokens.end() - tail, tokens.end());
  return kept;
}

class SamplePrompt {
 public:
  SamplePrompt(const Engine& engine, const Sample& sample)
      : engine_(engine),
        messages_(sample.messages),
        prefix_(engine.tokenize(sample.answer_prefix, false, false)) {}

  Result<Tokens> chat() const {
    REPRISE_TRY(Tokens tokens, engine_.chat_prompt(messages_));
    append(tokens, prefix_);
    return tokens;
  }

  Result<Prompt> plain(size_t limit) const {
    Prompt prompt{engine_.tokenize(messages_.front().content), false};
    const size_t room = limit - std::min(limit, prefix_.size());
    if (room == 0)
      return fail(ErrorCode::kContextExceeded,
                  "the longest answer leaves no room for the prompt; raise --ctx");
    prompt.truncated = prompt.tokens.size() > room;
    if (prompt.truncated) prompt.tokens = without_middle(prompt.tokens, room);
    append(prompt.tokens, prefix_);
    return prompt;
  }

  // Joining both ends and the template may merge or split a few tokens: tried again with less.
  Result<Tokens> chat_within(size_t limit, Tokens whole) {
    constexpr int kTries = 8;
    const auto longest = std::max_element(
        messages_.begin(), messages_.end(),
        [](const Message& a, const Message& b) { return a.content.size() < b.content.size(); });
    const Tokens content = engine_.tokenize(longest->content, false, false);
    size_t keep = content.size();
    for (int i = 0; i < kTries && whole.size() > limit; ++i) {
      const size_t excess = whole.size() - limit;
      if (excess > keep) break;
      keep -= excess;
      const std::span<const int32_t> ends(content);
      longest->content = engine_.detokenize(ends.first(keep / 2 + keep % 2)) +
                         engine_.detokenize(ends.last(keep / 2));
      REPRISE_TRY(whole, chat());
    }
    if (whole.size() > limit)
      return fail(ErrorCode::kContextExceeded,
                  "the prompt has {} tokens beside its longest message, {} fit; raise --ctx",
                  whole.size() - keep, limit);
    return whole;
  }

 private:
  const Engine& engine_;
  std::vector<Message> messages_;
  Tokens prefix_;
};

}  // namespace

Result<Prompt> build_prompt(const Engine& engine, const Sample& sample) {
  if (sample.messages.empty()) return fail(ErrorCode::kEmptyPrompt, "the sample has no messages");
  const size_t context = engine.info().context;
  const size_t answer = std::max<size_t>(sample.max_tokens, gold_tokens(engine, sample).size());
  const size_t limit = sample.cut_middle ? context - std::min(context, answer) : SIZE_MAX;
  SamplePrompt builder(engine, sample);
  if (sample.plain) return builder.plain(limit);
  REPRISE_TRY(Tokens tokens, builder.chat());
  if (tokens.size() <= limit) return Prompt{std::move(tokens), false};
  REPRISE_TRY(tokens, builder.chat_within(limit, std::move(tokens)));
  return Prompt{std::move(tokens), true};
}

std::vector<int32_t> gold_tokens(const Engine& engine, const Sample& sample) {
  if (sample.gold.empty()) return {};
  return engine.tokenize(sample.gold, false, false);
}

}  // namespace reprise::eval
