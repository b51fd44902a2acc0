// `reprise policies`: attention policies with their options.
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

class PoliciesCommand : public Command {
 public:
  std::string_view name() const override { return "policies"; }
  std::string_view summary() const override { return "list attention policies"; }
  std::string_view examples() const override {
    return R"(  reprise policies
  reprise run --policy streaming:sink=4,window=1024 -f report.txt -p "Summarise."
                                        NAME:OPTION=VALUE,OPTION=VALUE
  reprise policies --json)";
  }
  void declare(FlagSet&) override {}
  Status run(Console& console) override {
    if (console.json()) return console.print_json(as_json());
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
                      {"options", options}});
    }
    return {{"policies", list}};
  }
};

}  // namespace

std::unique_ptr<Command> make_policies_command() { return std::make_unique<PoliciesCommand>(); }

}  // namespace reprise::cli
