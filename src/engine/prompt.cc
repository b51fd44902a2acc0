#include "engine/prompt.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <set>

#include "base/try.h"

namespace reprise {
namespace {

constexpr std::string_view kNonCharacter = "\uFDD0", kMarkEnd = "\uFDD1";

// Text that no message contains: a number between noncharacters. Linear in the messages.
std::string unused_mark(std::span<const Message> messages) {
  std::set<std::string, std::less<>> used;
  const auto note = [&](std::string_view text) {
    constexpr size_t kMaxDigits = 20;
    for (size_t at = text.find(kNonCharacter); at != std::string_view::npos;
         at = text.find(kNonCharacter, at + 1)) {
      const std::string_view rest = text.substr(at + kNonCharacter.size(), kMaxDigits);
      used.emplace(rest.substr(0, rest.find_first_not_of("0123456789")));
    }
  };
  for (const Message& message : messages) {
    note(message.role);
    note(message.content);
  }
  size_t number = 0;
  while (used.contains(std::to_string(number))) ++number;
  return fmt::format("{}{}{}", kNonCharacter, number, kMarkEnd);
}

// Puts the mark before every special token spelled in text.
std::string mark_special(std::string_view text, const std::vector<std::string>& special,
                         std::string_view mark) {
  std::array<bool, 256> starts = {};
  for (const std::string& token : special) starts[static_cast<uint8_t>(token[0])] = true;
  std::string marked;
  for (size_t at = 0; at < text.size(); ++at) {
    if (starts[static_cast<uint8_t>(text[at])] &&
        std::any_of(special.begin(), special.end(),
                    [&](const std::string& token) { return text.substr(at).starts_with(token); })) {
      marked += mark;
    }
    marked += text[at];
  }
  return marked;
}

std::string token_text(const Tokenizer& tokenizer, std::optional<int32_t> id) {
  if (!id) return {};
  return tokenizer.decode({&*id, 1}, true);
}

}  // namespace

PromptBuilder::PromptBuilder(const Tokenizer& tokenizer, std::string_view source)
    : tokenizer_(&tokenizer), template_(ChatTemplate::parse(source)) {
  for (size_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const auto token = static_cast<int32_t>(id);
    if (!tokenizer.is_special(token)) continue;
    std::string text = token_text(tokenizer, token);
    if (!text.empty()) special_.push_back(std::move(text));
  }
}

Result<std::string> PromptBuilder::render(std::span<const Message> messages, std::string_view mark,
                                          std::string_view before_last) const {
  if (messages.empty()) return fail(ErrorCode::kEmptyPrompt, "there is no message to answer");
  if (!template_) return tl::unexpected<Error>(template_.error());
  size_t bytes = 0;
  for (const Message& message : messages) bytes += message.content.size();
  if (constexpr size_t kMost = TemplateLimits().max_output; bytes > kMost) {
    return fail(
        ErrorCode::kTemplateLimit,
        "the prompt has {} bytes of text, and a chat template takes {} at most; shorten it, "
        "or leave the template out with --raw",
        bytes, kMost);
  }
  nlohmann::ordered_json context;
  for (const Message& message : messages) {
    std::string content = mark_special(message.content, special_, mark);
    if (&message == &messages.back()) content.insert(0, before_last);
    std::string role = mark_special(message.role, special_, mark);
    context["messages"].push_back({{"role", std::move(role)}, {"content", std::move(content)}});
  }
  context["add_generation_prompt"] = true;
  context["bos_token"] = token_text(*tokenizer_, tokenizer_->data().bos);
  context["eos_token"] = token_text(*tokenizer_, tokenizer_->data().eos);
  return template_->render(context, std::time(nullptr));
}

Result<std::vector<int32_t>> PromptBuilder::build(std::span<const Message> messages) const {
  const std::string mark = unused_mark(messages);
  REPRISE_TRY(const std::string rendered, render(messages, mark, ""));
  auto tokens = encode_rendered(rendered, mark);
  begin_with_bos(tokens);
  return tokens;
}

Result<std::pair<std::vector<int32_t>, std::vector<int32_t>>> PromptBuilder::build_around(
    std::span<const Message> messages) const {
  const std::string mark = unused_mark(messages);
  const std::string hole = mark + mark;
  REPRISE_TRY(const std::string rendered, render(messages, mark, hole));
  const size_t at = rendered.find(hole);
  if (at == std::string::npos || rendered.find(hole, at + 1) != std::string::npos) {
    return fail(ErrorCode::kUnsupported,
                "the model's chat template does not show the last message once as it is");
  }
  auto head = encode_rendered(std::string_view(rendered).substr(0, at), mark);
  begin_with_bos(head);
  return std::pair(std::move(head),
                   encode_rendered(std::string_view(rendered).substr(at + hole.size()), mark));
}

std::vector<int32_t> PromptBuilder::encode_rendered(std::string_view rendered,
                                                    std::string_view mark) const {
  std::string text;
  std::vector<TextRange> literal;  // what messages spelled; ordinary text
  size_t start = 0;
  for (size_t found; (found = rendered.find(mark, start)) != std::string_view::npos;) {
    text += rendered.substr(start, found - start);
    start = found + mark.size();
    // Without its first byte, what follows spells no special token any more.
    literal.push_back({text.size(), text.size() + 1});
  }
  text += rendered.substr(start);
  EncodeOptions options = {.add_special = false, .parse_special = true};
  options.literal = literal;
  return tokenizer_->encode(text, options);
}

void PromptBuilder::begin_with_bos(std::vector<int32_t>& tokens) const {
  // Templates spell BOS themselves; a model that wants it gets it once.
  const auto& data = tokenizer_->data();
  if (data.add_bos && data.bos && (tokens.empty() || tokens.front() != *data.bos)) {
    tokens.insert(tokens.begin(), *data.bos);
  }
}

}  // namespace reprise
