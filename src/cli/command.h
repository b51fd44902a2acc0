// A subcommand: what it is called, which flags it takes, what it does.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "cli/console.h"
#include "cli/flags.h"
#include "reprise/error.h"

namespace CLI {
class App;
}

namespace reprise::cli {

class Command {
 public:
  virtual ~Command() = default;
  virtual std::string_view name() const = 0;
  virtual std::string_view summary() const = 0;
  /// Example command lines with what they do, shown under --help.
  virtual std::string_view examples() const = 0;
  virtual void declare(FlagSet& flags) = 0;
  virtual Status run(Console& console) = 0;
};

std::unique_ptr<Command> make_run_command();
std::unique_ptr<Command> make_chat_command();
std::unique_ptr<Command> make_index_command();
std::unique_ptr<Command> make_train_command();
std::unique_ptr<Command> make_store_command();
std::unique_ptr<Command> make_ask_command();
std::unique_ptr<Command> make_inspect_command();
std::unique_ptr<Command> make_tokenize_command();
std::unique_ptr<Command> make_policies_command();
std::unique_ptr<Command> make_fit_command();
std::unique_ptr<Command> make_bench_command();
std::unique_ptr<Command> make_eval_command();
std::unique_ptr<Command> make_compare_command();
std::unique_ptr<Command> make_report_command();
/// app: the whole command line, whose subcommands and options are written out.
std::unique_ptr<Command> make_completion_command(const CLI::App& app);

}  // namespace reprise::cli
