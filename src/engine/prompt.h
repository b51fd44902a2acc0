// From a conversation to the tokens of a prompt.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "reprise/request.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace reprise {

/// Renders conversations with a chat template.
class PromptBuilder {
 public:
  /// source: of the template, see choose_template; one that does not parse fails each prompt.
  /// tokenizer must outlive the builder.
  PromptBuilder(const Tokenizer& tokenizer, std::string_view source);

  /// Special tokens come from the template alone: those spelled inside a message stay text. Errors:
  /// those of ChatTemplate::parse and render; kEmptyPrompt without messages.
  Result<std::vector<int32_t>> build(std::span<const Message> messages) const;
  /// The same in two parts, between which other tokens belong: they stand at the beginning of the
  /// last message. Each part is encoded by itself.
  Result<std::pair<std::vector<int32_t>, std::vector<int32_t>>> build_around(
      std::span<const Message> messages) const;

 private:
  Result<std::string> render(std::span<const Message> messages, std::string_view mark,
                             std::string_view before_last) const;
  std::vector<int32_t> encode_rendered(std::string_view rendered, std::string_view mark) const;
  void begin_with_bos(std::vector<int32_t>& tokens) const;

  const Tokenizer* tokenizer_;
  Result<ChatTemplate> template_;
  std::vector<std::string> special_;  // texts of special tokens
};

}  // namespace reprise
