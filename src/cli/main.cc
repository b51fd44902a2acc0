// The command line: finds the subcommand, fills its options, runs it.
#include <fcntl.h>
#include <langinfo.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <clocale>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/nearest.h"
#include "base/try.h"
#include "cli/command.h"
#include "cli/console.h"
#include "cli/flags.h"
#include "cli/interrupt.h"

namespace reprise::cli {
namespace {

constexpr std::string_view kExamples = R"(Examples:
  reprise run -p "Why is the sky blue?"
  reprise run -f report.txt -p "What does it conclude?" --session report.kv
  reprise chat --session talk.kv
  reprise COMMAND --help          what a command can do

Every option --some-name is also the variable REPRISE_SOME_NAME and the key some-name in
~/.config/reprise/config.toml; the command line wins, then the variable, then the file.
Exit codes: 0 done, 1 failed, 2 wrong usage, 130 stopped by Ctrl-C.)";

class HelpFormatter : public CLI::Formatter {
 public:
  // CLI11 shows how a negated switch works inside: "--no-thing{false}".
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    std::string name = CLI::Formatter::make_option_name(option, is_positional);
    if (const size_t brace = name.find('{'); brace != std::string::npos) name.resize(brace);
    return name;
  }
};

struct GlobalOptions {
  bool json = false, quiet = false;
  std::string config;
};

struct Entry {
  std::unique_ptr<Command> command;
  CLI::App* app = nullptr;
  std::unique_ptr<FlagSet> flags;
};

class CommandLine {
 public:
  CommandLine() : app_("Reprise: language models over long documents, on your own machine.") {
    app_.name("reprise");
    app_.formatter(std::make_shared<HelpFormatter>());
    app_.set_version_flag("-v,--version", "reprise " REPRISE_VERSION);
    app_.footer(std::string(kExamples));
    app_.require_subcommand(0, 1);
    app_.allow_extras();
    add(make_run_command());
    add(make_chat_command());
    add(make_index_command());
    add(make_train_command());
    add(make_store_command());
    add(make_ask_command());
    add(make_inspect_command());
    add(make_tokenize_command());
    add(make_policies_command());
    add(make_fit_command());
    add(make_bench_command());
    add(make_eval_command());
    add(make_compare_command());
    add(make_report_command());
    add(make_completion_command(app_));
  }

  int run(int argc, const char* const* argv) {
    // CLI11 would give what stands behind "--" to the command or to the program by turns.
    const char* const* end = std::find(argv + 1, argv + argc, std::string_view("--"));
    rest_.assign(std::min(end + 1, argv + argc), argv + argc);
    const std::vector<const char*> words = split_empty_values({argv, end});
    global_.json = wants_json(words);
    try {
      app_.parse(static_cast<int>(words.size()), words.data());
    } catch (const CLI::Success& done) {  // --help and --version
      std::ostringstream text;
      app_.exit(done, text);
      Console console(false, false);
      return console.finish(console.print(text.str()));
    } catch (const CLI::ParseError& error) {
      return fail_with(fail(ErrorCode::kInvalidArgument, "{}", error.what()));
    }
    if (!app_.remaining().empty()) return fail_with(unknown_word());
    for (Entry& entry : entries_)
      if (entry.app->parsed()) return run(entry);
    return fail_with(
        fail(ErrorCode::kInvalidArgument, "which command? `reprise --help` lists them"));
  }

 private:
  // "--name=" as "--name" and "": CLI11 would take the word behind it for the value.
  std::vector<const char*> split_empty_values(std::span<const char* const> given) {
    std::vector<const char*> words;
    const CLI::App* command = nullptr;
    bool is_value = false;  // of the option before
    for (const char* word : given) {
      const std::string text(word);
      const std::string name = text.substr(0, text.find('='));
      const bool empty = name.size() + 1 == text.size();
      if (empty && !is_value && takes_value(command, name)) {
        words.push_back(names_.emplace_back(name).c_str());
        words.push_back("");
        continue;
      }
      words.push_back(word);
      is_value = !is_value && takes_value(command, text);
      for (const Entry& entry : entries_)
        if (command == nullptr && entry.command->name() == text) command = entry.app;
    }
    return words;
  }

  static bool takes_value(const CLI::App* command, const std::string& flag) {
    if (command == nullptr || !flag.starts_with('-')) return false;
    const CLI::Option* option = command->get_option_no_throw(flag);
    return option != nullptr && option->get_items_expected_max() > 0;
  }

  // Before options are resolved, so that errors of parsing come as JSON too.
  static bool wants_json(std::span<const char* const> words) {
    constexpr std::string_view kFlag = "--json";
    constexpr OptionSpec kSpec = {kFlag, ""};
    bool json = false;
    const char* variable = std::getenv("REPRISE_JSON");
    if (variable != nullptr) static_cast<void>(parse_option(kSpec, variable, json));
    for (const std::string_view word : words.subspan(1)) {
      if (!word.starts_with(kFlag)) continue;
      const std::string_view value = word.substr(kFlag.size());
      if (value.empty()) json = true;
      if (value.starts_with('=')) static_cast<void>(parse_option(kSpec, value.substr(1), json));
    }
    return json;
  }

  int fail_with(const Status& status) const {
    return Console(global_.json, global_.quiet).finish(status);
  }

  void add(std::unique_ptr<Command> command) {
    Entry entry;
    entry.app = app_.add_subcommand(std::string(command->name()), std::string(command->summary()));
    entry.app->footer("Examples:\n" + std::string(command->examples()));
    entry.app->allow_extras();
    entry.flags = std::make_unique<FlagSet>(*entry.app);
    command->declare(*entry.flags);
    entry.flags->add({"json", "print one JSON object on stdout"}, global_.json);
    entry.flags->add({"quiet", "no progress, no remarks"}, global_.quiet);
    entry.app->add_option("--config", global_.config, "configuration file")
        ->type_name("FILE")
        ->take_last();
    entry.command = std::move(command);
    entries_.push_back(std::move(entry));
  }

  // What stands where a command's name should, or before it.
  Status unknown_word() const {
    const std::string word = app_.remaining().front();
    const bool is_flag = word.starts_with('-');
    std::vector<std::string_view> names{"--help", "--version"};
    for (const Entry& entry : entries_) {
      if (entry.app->parsed())
        return fail(is_flag ? ErrorCode::kUnknownOption : ErrorCode::kInvalidArgument,
                    "{} stands outside of `reprise {} ...`, where options and texts belong", word,
                    entry.command->name());
      names.push_back(entry.command->name());
    }
    return fail(is_flag ? ErrorCode::kUnknownOption : ErrorCode::kInvalidArgument,
                "unknown {} {}{}; see `reprise --help`", is_flag ? "option" : "command", word,
                suggestion(word, names));
  }

  // A key that no command knows is a mistake; one that another command knows is not, but for those
  // in a command's own section.
  Status check_config(const Config& config) const {
    for (const ConfigEntry& item : config.entries) {
      std::vector<std::string_view> sections, known;
      for (const Entry& entry : entries_) {
        sections.push_back(entry.command->name());
        if (!item.section.empty() && item.section != entry.command->name()) continue;
        for (const std::string_view name : entry.flags->names()) known.push_back(name);
      }
      if (known.empty()) {
        return fail(ErrorCode::kUnknownOption, "{}: unknown section [{}]{}; sections are commands",
                    config.path, item.section, suggestion(item.section, sections));
      }
      if (std::ranges::find(known, item.name) != known.end()) continue;
      const std::string place = item.section.empty() ? "" : fmt::format(" in [{}]", item.section);
      return fail(ErrorCode::kUnknownOption, "{}: unknown key {}{}{}", config.path, item.name,
                  suggestion(item.name, known), place);
    }
    return {};
  }

  // Others may use the prefix, too: only what one edit makes an option's is told.
  void tell_mistyped_variables(Console& console) const {
    constexpr std::string_view kPrefix = "REPRISE_";
    std::vector<std::string_view> names{"config", "isa", "peer-python"};
    for (const Entry& entry : entries_)
      for (const std::string_view name : entry.flags->names()) names.push_back(name);
    for (char** each = environ; *each != nullptr; ++each) {
      const std::string variable(*each, std::strcspn(*each, "="));
      if (!variable.starts_with(kPrefix)) continue;
      std::string name = variable.substr(kPrefix.size());
      std::ranges::replace(name, '_', '-');
      const std::string meant = nearest(name, names);
      if (meant.empty() || edits(name, meant) > 1 || variable_name(meant) == variable) continue;
      console.note(fmt::format("{} is no variable of any option (did you mean {}?)", variable,
                               variable_name(meant)));
    }
  }

  Status resolve(Entry& entry) {
    const char* variable = std::getenv("REPRISE_CONFIG");
    if (global_.config.empty() && variable != nullptr) global_.config = variable;
    REPRISE_TRY(const Config config, read_config(global_.config));
    const Status known = check_config(config);
    const Status resolved = entry.flags->resolve(config, rest_);  // --json counts in any case
    return known ? resolved : known;
  }

  int run(Entry& entry) {
    const Status resolved = resolve(entry);
    Console console(global_.json, global_.quiet);
    tell_mistyped_variables(console);
    return console.finish(resolved ? entry.command->run(console) : resolved);
  }

  CLI::App app_;
  GlobalOptions global_;
  std::vector<std::string> rest_;  // what stands behind "--"
  std::deque<std::string> names_;  // of options whose value is empty
  std::vector<Entry> entries_;
};

// What is opened later must not take the place of a standard stream that the caller has closed.
// Read-only: input ends at once, and output is an error as it would be without a stream.
void fill_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(stream, F_GETFD) < 0) open("/dev/null", O_RDONLY);
}

// Texts are UTF-8 everywhere; in a locale of less, a terminal's keys would be lost.
void use_utf8() {
  if (std::setlocale(LC_CTYPE, "") == nullptr || nl_langinfo(CODESET) != std::string_view("UTF-8"))
    std::setlocale(LC_CTYPE, "C.UTF-8");
}

}  // namespace
}  // namespace reprise::cli

int main(int argc, char** argv) {
  reprise::cli::fill_standard_streams();
  reprise::cli::use_utf8();
  reprise::cli::catch_interrupts();
  return reprise::cli::CommandLine().run(argc, argv);
}
