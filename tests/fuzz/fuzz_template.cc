// A hostile model's chat template over an ordinary conversation.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "text/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto* context = new nlohmann::ordered_json(nlohmann::ordered_json::parse(R"({
    "messages": [{"role": "system", "content": "S"},
                 {"role": "user", "content": "  Grüße 日本 🎉\n"},
                 {"role": "assistant", "content": null, "tool_calls": [{"id": 1, "x": [1.5]}]}],
    "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>", "n": 3,
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": {}}}}]})"));
  const reprise::TemplateLimits limits = {.max_output = size_t{1} << 20, .max_steps = 100'000};
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  const auto parsed = reprise::ChatTemplate::parse(source, limits);
  if (parsed) (void)parsed->render(*context, 1700000000);
  return 0;
}
