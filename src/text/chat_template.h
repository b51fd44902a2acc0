// Chat templates: the model's own Jinja source, run in a bounded interpreter.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "reprise/error.h"

namespace reprise {

struct TemplateLimits {
  int max_depth = 256;                   ///< nesting of source, expressions and macro calls
  size_t max_source = size_t{1} << 20;   ///< bytes of template source
  size_t max_output = size_t{64} << 20;  ///< bytes rendered
  uint64_t max_steps = 10'000'000;       ///< evaluated nodes
};

/// A parsed template. Rendering has no access to files, the environment or the engine.
class ChatTemplate {
 public:
  /// Errors: kTemplateSyntax (line and column), kTemplateLimit.
  static Result<ChatTemplate> parse(std::string_view source, const TemplateLimits& limits = {});
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  /// context: an object with messages, add_generation_prompt, bos_token, eos_token, tools, ... (key
  /// order kept). strftime_now uses now (seconds since the epoch, UTC). Errors: kTemplateRuntime
  /// (undefined operation, raise_exception), kTemplateLimit.
  Result<std::string> render(const nlohmann::ordered_json& context, int64_t now = 0) const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Template source of a well-known family, by name ("chatml", "llama2", "llama3", "gemma", "phi3",
/// "mistral", "granite", ...); empty when the name is unknown. Used when a model carries none.
std::string_view builtin_template(std::string_view family);
/// In alphabetical order.
std::vector<std::string_view> builtin_template_names();

}  // namespace reprise
