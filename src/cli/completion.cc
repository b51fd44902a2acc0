// `reprise completion`: shell completion, written from the declared commands and options.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "base/try.h"
#include "cli/command.h"
#include "reprise/engine.h"
#include "reprise/library.h"

namespace reprise::cli {
namespace {

struct Flag {
  std::string name;  // with dashes
  std::string help;
  bool takes_value = false;
  std::vector<std::string> choices;  // of the value; any text or file where there are none
};

struct Node {
  std::string name, help;
  std::vector<Flag> flags;
  std::vector<std::string> words;  // that may stand behind the name
};

std::vector<std::string> choices_of(const CLI::Option& option) {
  std::vector<std::string> choices;
  if (option.check_lname("policy")) {
    for (const PolicyInfo& policy : list_policies()) choices.push_back(policy.name);
  } else if (option.check_lname("fusion")) {
    choices = list_fusions();
  } else if (const std::string type = option.get_type_name(); type.find('|') != std::string::npos) {
    choices = CLI::detail::split(type, '|');
  }
  return choices;
}

std::vector<Flag> flags_of(const CLI::App& app) {
  std::vector<Flag> flags;
  for (const CLI::Option* option : app.get_options()) {
    const Flag flag = {"", option->get_description(), option->get_items_expected_max() > 0,
                       choices_of(*option)};
    for (const std::string& name : option->get_lnames())
      flags.emplace_back(flag).name = "--" + name;
    for (const std::string& name : option->get_snames()) flags.emplace_back(flag).name = "-" + name;
  }
  return flags;
}

std::vector<std::string> words_of(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options())
    if (option->get_positional()) return choices_of(*option);
  return {};
}

std::vector<Node> nodes_of(const CLI::App& app) {
  std::vector<Node> nodes;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    nodes.push_back({sub->get_name(), sub->get_description(), flags_of(*sub), words_of(*sub)});
  return nodes;
}

std::string words(const std::vector<Flag>& flags) {
  std::string text;
  for (const Flag& flag : flags) text += (text.empty() ? "" : " ") + flag.name;
  return text;
}

std::string bash(const std::vector<Node>& nodes) {
  std::string commands, cases, choices, actions;
  for (const Node& node : nodes) {
    commands += node.name + " ";
    if (!node.words.empty())
      actions += fmt::format("    {}) words=\"{}\" ;;\n", node.name, fmt::join(node.words, " "));
    cases += fmt::format("    {}) words=\"{}\" ;;\n", node.name, words(node.flags));
    for (const Flag& flag : node.flags) {
      if (!flag.choices.empty())
        choices += fmt::format("    {}:{}) words=\"{}\" ;;\n", node.name, flag.name,
                               fmt::join(flag.choices, " "));
    }
  }
  return fmt::format(
      "_reprise() {{\n"
      "  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} words=\n"
      "  if [[ $COMP_CWORD == 1 ]]; then\n"
      "    COMPREPLY=($(compgen -W \"{}--help --version\" -- \"$current\"))\n"
      "    return\n"
      "  fi\n"
      "  [[ $current == = ]] && current=\n"
      "  [[ $previous == = ]] && previous=${{COMP_WORDS[COMP_CWORD-2]}}\n"
      "  case ${{COMP_WORDS[1]}}:$previous in\n{}  esac\n"
      "  if [[ -z $words && $current == -* ]]; then\n"
      "    case ${{COMP_WORDS[1]}} in\n{}    esac\n"
      "  elif [[ $COMP_CWORD == 2 ]]; then\n"
      "    case ${{COMP_WORDS[1]}} in\n{}    esac\n"
      "  fi\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
      "}}\n"
      "complete -o default -F _reprise reprise\n",
      commands, choices, cases, actions);
}

// Inside single quotes of zsh's _arguments and _describe.
std::string zsh_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      if (c == '[' || c == ']' || c == ':') out += '\\';
      out += c;
    }
  }
  return out;
}

std::string zsh(const std::vector<Node>& nodes) {
  std::string commands, cases;
  for (const Node& node : nodes) {
    commands += fmt::format("    '{}:{}'\n", node.name, zsh_text(node.help));
    cases += fmt::format("    {}) _arguments", node.name);
    for (const Flag& flag : node.flags) {
      const bool may_join = flag.takes_value && flag.name.starts_with("--");
      cases +=
          fmt::format(" \\\n      '*{}{}[{}]", flag.name, may_join ? "=" : "", zsh_text(flag.help));
      if (!flag.choices.empty()) {
        cases += fmt::format(":value:({})", fmt::join(flag.choices, " "));
      } else if (flag.takes_value) {
        cases += ":value:_files";
      }
      cases += "'";
    }
    if (!node.words.empty())
      cases += fmt::format(" \\\n      '1:word:({})'", fmt::join(node.words, " "));
    cases += " \\\n      '*:file:_files' ;;\n";
  }
  return fmt::format(
      "#compdef reprise\n"
      "_reprise() {{\n"
      "  local -a commands=(\n{}  )\n"
      "  if (( CURRENT == 2 )); then\n"
      "    _describe command commands\n"
      "    return\n"
      "  fi\n"
      "  local command=$words[2]\n"
      "  shift words; (( CURRENT-- ))\n"
      "  case $command in\n{}  esac\n"
      "}}\n"
      "if [[ $funcstack[1] == _reprise ]]; then\n"
      "  _reprise \"$@\"\n"  // the file of a function that is loaded when it is first called
      "else\n"
      "  compdef _reprise reprise\n"
      "fi\n",
      commands, cases);
}

std::string fish_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string fish(const std::vector<Node>& nodes) {
  std::string out;
  for (const Node& node : nodes) {
    out += fmt::format("complete -c reprise -f -n __fish_use_subcommand -a {} -d '{}'\n", node.name,
                       fish_text(node.help));
    if (!node.words.empty()) {
      const std::string words = fmt::format("{}", fmt::join(node.words, " "));
      out += fmt::format(
          "complete -c reprise -f -n '__fish_seen_subcommand_from {}; and not "
          "__fish_seen_subcommand_from {}' -a '{}'\n",
          node.name, words, words);
    }
    for (const Flag& flag : node.flags) {
      const bool is_long = flag.name.starts_with("--");
      out += fmt::format("complete -c reprise -n '__fish_seen_subcommand_from {}' {} {} -d '{}'",
                         node.name, is_long ? "-l" : "-s", flag.name.substr(is_long ? 2 : 1),
                         fish_text(flag.help));
      if (!flag.choices.empty()) {
        out += fmt::format(" -xa '{}'", fmt::join(flag.choices, " "));
      } else if (flag.takes_value) {
        out += " -r";
      }
      out += "\n";
    }
  }
  return out;
}

class CompletionCommand : public Command {
 public:
  explicit CompletionCommand(const CLI::App& app) : app_(app) {}
  std::string_view name() const override { return "completion"; }
  std::string_view summary() const override { return "print a completion script for a shell"; }
  std::string_view examples() const override {
    return R"(  reprise completion bash > ~/.local/share/bash-completion/completions/reprise
  reprise completion zsh > ~/.zfunc/_reprise
  reprise completion fish > ~/.config/fish/completions/reprise.fish)";
  }
  void declare(FlagSet& flags) override {
    flags.add_positional({"shell", "which shell", "", 0, 0, "bash|zsh|fish"}, shell_);
  }
  Status run(Console& console) override {
    const std::vector<Node> nodes = nodes_of(app_);
    std::string script = shell_ == "bash"  ? bash(nodes)
                         : shell_ == "zsh" ? zsh(nodes)
                                           : fish(nodes);
    if (console.json()) return console.print_json({{"shell", shell_}, {"script", script}});
    return console.print(script);
  }

 private:
  const CLI::App& app_;
  std::string shell_ = "bash";
};

}  // namespace

std::unique_ptr<Command> make_completion_command(const CLI::App& app) {
  return std::make_unique<CompletionCommand>(app);
}

}  // namespace reprise::cli
