// The command line: finds the subcommand, fills its options, runs it.
#include <CLI/CLI.hpp>
#include <clocale>
#include <memory>
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
    try {
      app_.parse(argc, argv);
    } catch (const CLI::Success& done) {  // --help and --version
      return app_.exit(done);
    } catch (const CLI::ParseError& error) {
      return Console(wants_json(argc, argv), false)
          .finish(fail(ErrorCode::kInvalidArgument, "{}", error.what()));
    }
    for (Entry& entry : entries_)
      if (entry.app->parsed()) return run(entry, wants_json(argc, argv));
    return Console(wants_json(argc, argv), false).finish(no_command());
  }

 private:
  // Before options are resolved, so that their errors come as JSON too.
  static bool wants_json(int argc, const char* const* argv) {
    for (int i = 1; i < argc; ++i)
      if (std::string_view(argv[i]) == "--json") return true;
    return false;
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
    entry.app->add_option("--config", global_.config, "configuration file")->type_name("FILE");
    entry.command = std::move(command);
    entries_.push_back(std::move(entry));
  }

  Status no_command() const {
    const std::vector<std::string> extras = app_.remaining();
    if (extras.empty())
      return fail(ErrorCode::kInvalidArgument, "which command? `reprise --help` lists them");
    const bool is_flag = extras[0].starts_with('-');
    std::vector<std::string_view> names{"--help", "--version"};
    for (const Entry& entry : entries_) names.push_back(entry.command->name());
    return fail(is_flag ? ErrorCode::kUnknownOption : ErrorCode::kInvalidArgument,
                "unknown {} {}{}; see `reprise --help`", is_flag ? "option" : "command", extras[0],
                suggestion(extras[0], names));
  }

  // A key that no command knows is a mistake; one that another command knows is not.
  Status check_config(const std::vector<ConfigEntry>& config) const {
    std::vector<std::string_view> known;
    for (const Entry& entry : entries_)
      for (const std::string_view name : entry.flags->names()) known.push_back(name);
    for (const ConfigEntry& item : config) {
      if (std::find(known.begin(), known.end(), item.name) == known.end())
        return fail(ErrorCode::kUnknownOption, "configuration file: unknown key {}{}", item.name,
                    suggestion(item.name, known));
    }
    return {};
  }

  Status resolve(Entry& entry) {
    REPRISE_TRY(const std::vector<ConfigEntry> config, read_config(global_.config));
    REPRISE_CHECK(check_config(config));
    return entry.flags->resolve(config);
  }

  int run(Entry& entry, bool wants_json) {
    const Status resolved = resolve(entry);
    Console console(global_.json || wants_json, global_.quiet);
    return console.finish(resolved ? entry.command->run(console) : resolved);
  }

  CLI::App app_;
  GlobalOptions global_;
  std::vector<Entry> entries_;
};

}  // namespace
}  // namespace reprise::cli

int main(int argc, char** argv) {
  if (std::setlocale(LC_CTYPE, "") == nullptr) std::setlocale(LC_CTYPE, "C.UTF-8");
  reprise::cli::catch_interrupts();
  return reprise::cli::CommandLine().run(argc, argv);
}
