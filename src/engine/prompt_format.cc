#include "engine/prompt_format.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/nearest.h"
#include "base/try.h"
#include "formats/printable.h"
#include "formats/safetensors.h"
#include "text/chat_template.h"

namespace reprise {
namespace {

using Names = std::pair<std::string_view, std::string_view>;

// The first of these tokens that a vocabulary has.
constexpr Names kByToken[] = {{"<|start_header_id|>", "llama3"},
                              {"<start_of_turn>", "gemma"},
                              {"<|start_of_role|>", "granite"},
                              {"<|im_start|>", "chatml"},
                              {"<|end|>", "phi3"},
                              {"[INST]", "mistral"}};
constexpr Names kByArchitecture[] = {
    {"gemma", "gemma"},     {"Gemma", "gemma"},     {"phi3", "phi3"},      {"Phi3", "phi3"},
    {"granite", "granite"}, {"Granite", "granite"}, {"Mistral", "mistral"}};

std::string_view family(const TokenizerData& tokenizer, std::string_view architecture) {
  for (const auto& [token, name] : kByToken) {
    if (std::ranges::find(tokenizer.tokens, token) == tokenizer.tokens.end()) continue;
    const bool qwen = architecture.starts_with("qwen") || architecture.starts_with("Qwen");
    return name == "chatml" && qwen ? "qwen" : name;
  }
  for (const auto& [prefix, name] : kByArchitecture) {
    if (architecture.starts_with(prefix)) return name;
  }
  const bool llama = architecture.starts_with("llama") || architecture.starts_with("Llama");
  const bool sentencepiece = tokenizer.model == TokenizerModel::kSentencePieceBpe;
  return llama && sentencepiece ? "llama2" : "chatml";
}

Result<std::string> read_template(const std::string& path) {
  REPRISE_TRY(std::string source, read_text_file(path));
  if (!is_utf8(source)) return fail(ErrorCode::kBadString, "{}: not valid UTF-8", path);
  if (source.find_first_not_of(" \t\r\n") == std::string::npos) {
    return fail(
        ErrorCode::kTemplateSyntax,
        "{}: an empty template makes empty prompts of all messages; built-in formats are {}", path,
        fmt::join(builtin_template_names(), ", "));
  }
  if (const auto parsed = ChatTemplate::parse(source); !parsed) {
    return fail(parsed.error().code, "{}: {}", path, parsed.error().message);
  }
  return source;
}

}  // namespace

Result<std::string> choose_template(const std::string& asked, const TokenizerData& tokenizer,
                                    std::string_view architecture) {
  if (asked.empty()) {
    if (!tokenizer.chat_template.empty()) return tokenizer.chat_template;
    return std::string(builtin_template(family(tokenizer, architecture)));
  }
  if (const std::string_view source = builtin_template(asked); !source.empty()) {
    return std::string(source);
  }
  std::error_code ignored;
  if (std::filesystem::exists(asked, ignored)) return read_template(asked);
  const std::vector<std::string_view> names = builtin_template_names();
  return fail(ErrorCode::kFileNotFound,
              "--chat-template: {} is neither a file nor a built-in format{}; those are {}",
              printable(asked), suggestion(asked, names), fmt::join(names, ", "));
}

}  // namespace reprise
