// Prompt formats of well-known model families, for models that carry no template of their own.
#include <algorithm>
#include <array>
#include <utility>

#include "text/chat_template.h"

namespace reprise {
namespace {

// Each message between markers that name its role; Qwen, SmolLM and many fine-tuned models.
constexpr std::string_view kChatml =
    R"({% for message in messages %}
{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})";

// Qwen: ChatML that always has a system message.
constexpr std::string_view kQwen =
    R"({% if messages[0].role != 'system' %}
{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}
{%- endif %}
{% for message in messages %}
{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})";

// Llama 2: the system message stands inside the first user message.
constexpr std::string_view kLlama2 =
    R"({% set start = 1 if messages[0].role == 'system' else 0 %}
{% for message in messages[start:] %}
{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Roles must alternate user/assistant/user/assistant/...') }}
{% endif %}
{% if message.role == 'user' %}
{% set system = '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' %}
{% set system = system if loop.first and start else '' %}
{{ bos_token + '[INST] ' + system + message.content | trim + ' [/INST]' }}
{%- else %}
{{ ' ' + message.content | trim + ' ' + eos_token }}
{%- endif %}
{% endfor %})";

// Llama 3, 3.1, 3.2 and 3.3 without tools.
constexpr std::string_view kLlama3 =
    R"({{ bos_token }}
{%- for message in messages %}
{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' }}
{{- message.content | trim + '<|eot_id|>' }}
{%- endfor %}
{% if add_generation_prompt %}
{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %})";

// Gemma knows no system role: the system message stands before the first user message.
constexpr std::string_view kGemma =
    R"({{ bos_token }}
{%- set start = 1 if messages[0].role == 'system' else 0 %}
{% for message in messages[start:] %}
{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Roles must alternate user/assistant/user/assistant/...') }}
{% endif %}
{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\n' }}
{%- if loop.first and start %}{{ messages[0].content | trim + '\n\n' }}{% endif %}
{{ message.content | trim + '<end_of_turn>\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %})";

constexpr std::string_view kPhi3 =
    R"({% for message in messages %}
{{ '<|' + message.role + '|>\n' + message.content + '<|end|>\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %})";

// Mistral 7B Instruct: the system message stands before the first user message.
constexpr std::string_view kMistral =
    R"({{ bos_token }}
{%- set start = 1 if messages[0].role == 'system' else 0 %}
{% for message in messages[start:] %}
{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Roles must alternate user/assistant/user/assistant/...') }}
{% endif %}
{% if message.role == 'user' %}
{{ '[INST] ' }}
{%- if loop.first and start %}{{ messages[0].content + '\n\n' }}{% endif %}
{{ message.content + ' [/INST]' }}
{%- else %}
{{ ' ' + message.content + eos_token }}
{%- endif %}
{% endfor %})";

constexpr std::string_view kGranite =
    R"({% for message in messages %}
{{ '<|start_of_role|>' + message.role + '<|end_of_role|>' + message.content }}
{{- '<|end_of_text|>\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|start_of_role|>assistant<|end_of_role|>' }}{% endif %})";

constexpr std::string_view kZephyr =
    R"({% for message in messages %}
{{ '<|' + message.role + '|>\n' + message.content + eos_token + '\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %})";

constexpr std::string_view kVicuna =
    R"({{ bos_token }}
{%- for message in messages %}
{% if message.role == 'system' %}{{ message.content + '\n\n' }}
{%- elif message.role == 'user' %}{{ 'USER: ' + message.content + '\n' }}
{%- else %}{{ 'ASSISTANT: ' + message.content + eos_token + '\n' }}
{%- endif %}
{% endfor %}
{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %})";

constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kTemplates = {
    {{"chatml", kChatml},
     {"qwen", kQwen},
     {"llama2", kLlama2},
     {"llama3", kLlama3},
     {"gemma", kGemma},
     {"phi3", kPhi3},
     {"mistral", kMistral},
     {"granite", kGranite},
     {"zephyr", kZephyr},
     {"vicuna", kVicuna}}};

}  // namespace

std::string_view builtin_template(std::string_view family) {
  for (const auto& [name, source] : kTemplates) {
    if (name == family) return source;
  }
  return {};
}

std::vector<std::string_view> builtin_template_names() {
  std::vector<std::string_view> names;
  names.reserve(std::size(kTemplates));
  for (const auto& [name, source] : kTemplates) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace reprise
