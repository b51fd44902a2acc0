// Flags of one subcommand, each from its OptionSpec: --name, its REPRISE_NAME twin and its key in
// the configuration file all set the same field through parse_option.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "reprise/options.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace reprise::cli {

/// One key of the configuration file; section is a subcommand's name or empty.
struct ConfigEntry {
  std::string section, name, value;
};

/// Reads `key = value` lines and [section]s. path empty: the user's own file, which may be absent.
Result<std::vector<ConfigEntry>> read_config(const std::string& path);

class FlagSet {
 public:
  explicit FlagSet(CLI::App& app) : app_(app) {}

  template <class T>
  void add(const OptionSpec& spec, T& field) {
    bind(spec, std::is_same_v<T, bool>, format_option(field),
         [spec, &field](std::string_view text) { return parse_option(spec, text, field); });
  }
  /// So that a FlagSet is the visitor of visit_options.
  template <class T>
  void operator()(const OptionSpec& spec, T& field) {
    add(spec, field);
  }
  /// A flag that may be given several times; it has no twins.
  void add_list(const OptionSpec& spec, std::vector<std::string>& values);
  /// An argument without a flag.
  void add_positional(const OptionSpec& spec, std::string& field);
  /// All arguments without a flag.
  void add_positional_list(const OptionSpec& spec, std::vector<std::string>& values);

  /// Sets every field after the command line was parsed: flag, else variable, else configuration.
  /// kUnknownOption names the nearest flag; kInvalidArgument says where a bad value came from.
  Status resolve(const std::vector<ConfigEntry>& config);
  /// Names that have a variable and a key as twins.
  std::vector<std::string_view> names() const;

 private:
  struct Binding {
    std::string name;
    CLI::Option* option;
    std::function<Status(std::string_view)> set;
  };

  void bind(const OptionSpec& spec, bool is_switch, const std::string& default_value,
            std::function<Status(std::string_view)> set);
  Status check_unknown() const;
  Status set_from_twins(const Binding& binding, const std::vector<ConfigEntry>& config) const;

  CLI::App& app_;
  std::vector<Binding> bindings_;
};

}  // namespace reprise::cli
