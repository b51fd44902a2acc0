// Flags of one subcommand, each from its OptionSpec: --name, its REPRISE_NAME twin and its key in
// the configuration file all set the same field through parse_option.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "cli/config.h"
#include "reprise/options.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace reprise::cli {

/// The variable that is an option's twin.
std::string variable_name(std::string_view option);

class FlagSet {
 public:
  explicit FlagSet(CLI::App& app) : app_(app) {}

  template <class T>
  void add(const OptionSpec& spec, T& field) {
    bind(spec, std::is_same_v<T, bool>, format_option(field), parser(spec, field));
  }
  /// So that a FlagSet is the visitor of visit_options.
  template <class T>
  void operator()(const OptionSpec& spec, T& field) {
    add(spec, field);
  }
  /// A flag that may be given several times; its twins hold one value.
  void add_list(const OptionSpec& spec, std::vector<std::string>& values);
  /// An argument without a flag.
  void add_positional(const OptionSpec& spec, std::string& field);
  /// All arguments without a flag.
  void add_positional_list(const OptionSpec& spec, std::vector<std::string>& values);

  /// Sets every field after the command line was parsed: flag, else variable, else configuration.
  /// rest: more arguments without a flag, which stood behind "--". kUnknownOption names the nearest
  /// flag; kInvalidArgument says where a bad value came from. Whatever is wrong with some options,
  /// the others are set, and the first error is returned.
  Status resolve(const Config& config, std::span<const std::string> rest);
  /// Whether an option stood on the command line itself.
  bool typed(std::string_view name) const;
  /// Names that have a variable and a key as twins.
  std::vector<std::string_view> names() const;

 private:
  using Values = std::span<const std::string>;  // of one option, at least one
  struct Binding {
    std::string name;
    CLI::Option* option;
    std::function<Status(Values)> set;
  };

  // The last one counts.
  template <class T>
  static auto parser(const OptionSpec& spec, T& field) {
    return [spec, &field](Values values) { return parse_option(spec, values.back(), field); };
  }
  void bind(const OptionSpec& spec, bool is_switch, const std::string& default_value,
            std::function<Status(Values)> set);
  void bind_list(const std::string& names, const OptionSpec& spec,
                 std::vector<std::string>& values);
  Status check_unknown(Values words) const;
  Status set(const Binding& binding, const Config& config, Values words) const;
  Status set_from_twins(const Binding& binding, const Config& config) const;

  CLI::App& app_;
  std::vector<Binding> bindings_;
};

}  // namespace reprise::cli
