// `reprise policies`: attention policies with their options.
#include <limits>

#include "base/try.h"
#include "cli/command.h"
#include "cli/text.h"
#include "reprise/engine.h"

namespace reprise::cli {
namespace {

nlohmann::ordered_json option_json(const OptionInfo& option) {
  nlohmann::ordered_json json = {{"name", option.name},
                                 {"type", option.type},
                                 {"default", option.default_value},
                                 {"help", option.help}};
  if (!option.unit.empty()) json["unit"] = option.unit;
  if (!option.choices.empty()) json["choices"] = option.choices;
  if (option.type == "int" || option.type == "float") {
    json["min"] = option.min;
    json["max"] = option.max;
  }
  return json;
}

/// "16 to 16777216 tokens", "max or avg", "".
std::string range_text(const OptionInfo& option) {
  if (!option.choices.empty()) {
    std::string text = option.choices;
    for (size_t at; (at = text.find('|')) != std::string::npos;) text.replace(at, 1, ", ");
    return text;
  }
  if (option.type == "bool") return "true, false";
  if (option.type == "string") return "text";
  const bool open = option.max >= std::numeric_limits<uint32_t>::max();
  const std::string range = open ? fmt::format("{} or more", option.min)
                                 : fmt::format("{} to {}", option.min, option.max);
  return option.unit.empty() ? range : range + " " + option.unit;
}

/// docs/policies.md between its first and its last section.
std::string markdown() {
  std::string text;
  for (const bool decorators : {false, true}) {
    text += decorators
                ? "## Decorators\n\nThey stand on the left of `+` and change what the policy "
                  "on their right does.\n\n"
                : "## Policies\n\n";
    for (const PolicyInfo& policy : list_policies()) {
      if (policy.decorator != decorators) continue;
      text += fmt::format("### `{}`\n\n{} ({}).", policy.name, policy.summary, policy.source);
      if (!policy.default_inner.empty())
        text += fmt::format(" Alone it stands for `{}+{}`.", policy.name, policy.default_inner);
      text += "\n\n";
      if (policy.options.empty()) continue;
      text += "| option | default | range | meaning |\n|---|---|---|---|\n";
      for (const OptionInfo& option : policy.options) {
        text += fmt::format("| `{}` | {} | {} | {} |\n", option.name, option.default_value,
                            range_text(option), option.help);
      }
      text += "\n";
    }
  }
  return text;
}

class PoliciesCommand : public Command {
 public:
  std::string_view name() const override { return "policies"; }
  std::string_view summary() const override { return "list attention policies"; }
  std::string_view examples() const override {
    return R"(  reprise policies
  reprise run --policy streaming:sink=4,window=1024 -f report.txt -p "Summarise."
                                        NAME:OPTION=VALUE,OPTION=VALUE
  reprise run --policy dense:first=2+quest:budget=512 ...
                                        a decorator left of "+" changes the policy on its right
  reprise policies --json)";
  }
  void declare(FlagSet& flags) override {
    flags.add({"markdown", "print the reference of docs/policies.md"}, markdown_);
  }
  Status run(Console& console) override {
    if (console.json()) return console.print_json(as_json());
    if (markdown_) return console.print(markdown());
    for (const PolicyInfo& policy : list_policies()) {
      REPRISE_CHECK(
          console.print(fmt::format("{}: {} ({})\n", policy.name, policy.summary, policy.source)));
      for (const OptionInfo& option : policy.options) {
        REPRISE_CHECK(
            console.print(fmt::format("    {}={}  {}{}\n", option.name, option.default_value,
                                      option.help, option.unit.empty() ? "" : ", " + option.unit)));
      }
    }
    return {};
  }

 private:
  static nlohmann::ordered_json as_json() {
    auto list = nlohmann::ordered_json::array();
    for (const PolicyInfo& policy : list_policies()) {
      auto options = nlohmann::ordered_json::array();
      for (const OptionInfo& option : policy.options) options.push_back(option_json(option));
      list.push_back({{"name", policy.name},
                      {"summary", policy.summary},
                      {"source", policy.source},
                      {"decorator", policy.decorator},
                      {"default_inner", policy.default_inner},
                      {"options", options}});
    }
    return {{"policies", list}};
  }

  bool markdown_ = false;
};

}  // namespace

std::unique_ptr<Command> make_policies_command() { return std::make_unique<PoliciesCommand>(); }

}  // namespace reprise::cli
