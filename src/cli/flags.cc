#include "cli/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "base/nearest.h"
#include "base/try.h"

namespace reprise::cli {
namespace {

constexpr std::pair<std::string_view, char> kShortNames[] = {
    {"model", 'm'}, {"prompt", 'p'},  {"file", 'f'},  {"max-tokens", 'n'},
    {"ctx", 'c'},   {"threads", 't'}, {"quiet", 'q'}, {"out", 'o'},
};

// "-m,--model" as CLI11 wants it; a switch that is on by default gets --no-NAME too.
std::string flag_names(std::string_view name, bool negatable) {
  if (name.size() == 1) return fmt::format("-{}", name);
  std::string names = fmt::format("--{}", name);
  for (const auto& [long_name, letter] : kShortNames)
    if (long_name == name) names = fmt::format("-{},{}", letter, names);
  if (negatable) names += fmt::format(",!--no-{}", name);
  return names;
}

std::string variable_name(std::string_view name) {
  std::string variable = "REPRISE_";
  for (const char c : name)
    variable += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return variable;
}

std::string placeholder(const OptionSpec& spec) {
  if (!spec.choices.empty()) return std::string(spec.choices);
  if (spec.unit.empty()) return "VALUE";
  std::string word(spec.unit);
  for (char& c : word) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return word;
}

std::string user_config_path() {
  const char* xdg = std::getenv("XDG_CONFIG_HOME");
  if (xdg != nullptr && *xdg != '\0') return std::string(xdg) + "/reprise/config.toml";
  const char* home = std::getenv("HOME");
  return std::string(home == nullptr ? "" : home) + "/.config/reprise/config.toml";
}

Error in_place(Error error, std::string_view place) {
  error.message = fmt::format("{}: {}", place, error.message);
  return error;
}

}  // namespace

Result<std::vector<ConfigEntry>> read_config(const std::string& path) {
  const std::string file = path.empty() ? user_config_path() : path;
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored)) {
    if (path.empty()) return std::vector<ConfigEntry>();
    return fail(ErrorCode::kFileNotFound, "{}: no such configuration file", file);
  }
  std::vector<ConfigEntry> entries;
  try {
    for (const CLI::ConfigItem& item : CLI::ConfigTOML().from_file(file)) {
      if (item.name == "++" || item.name == "--")
        continue;  // where CLI11 sees a section begin, end
      if (item.parents.size() > 1 || item.inputs.size() != 1)
        return fail(ErrorCode::kInvalidArgument, "{}: {} needs one value", file, item.fullname());
      std::string name = item.name;
      std::replace(name.begin(), name.end(), '_', '-');
      entries.push_back({item.parents.empty() ? "" : item.parents[0], name, item.inputs[0]});
    }
  } catch (const CLI::Error& error) {
    return fail(ErrorCode::kFileUnreadable, "{}: {}", file, error.what());
  }
  return entries;
}

void FlagSet::bind(const OptionSpec& spec, bool is_switch, const std::string& default_value,
                   std::function<Status(std::string_view)> set) {
  CLI::Option* option = nullptr;
  if (is_switch) {
    option = app_.add_flag_function(
        flag_names(spec.name, default_value == "true"), [](int64_t) {}, std::string(spec.help));
  } else {
    option = app_.add_option(
        flag_names(spec.name, false), [](const CLI::results_t&) { return true; },
        std::string(spec.help));
    option->type_name(placeholder(spec))->default_str(default_value)->expected(1);
  }
  option->take_last();
  bindings_.push_back({std::string(spec.name), option, std::move(set)});
}

void FlagSet::add_list(const OptionSpec& spec, std::vector<std::string>& values) {
  app_.add_option(flag_names(spec.name, false), values, std::string(spec.help))
      ->type_name(placeholder(spec))
      ->allow_extra_args(false);
}

void FlagSet::add_positional(const OptionSpec& spec, std::string& field) {
  CLI::Option* option = app_.add_option(
      std::string(spec.name), [](const CLI::results_t&) { return true; }, std::string(spec.help));
  option->type_name(placeholder(spec))->expected(1);
  bindings_.push_back({std::string(spec.name), option, [spec, &field](std::string_view text) {
                         return parse_option(spec, text, field);
                       }});
}

void FlagSet::add_positional_list(const OptionSpec& spec, std::vector<std::string>& values) {
  app_.add_option(std::string(spec.name), values, std::string(spec.help))
      ->type_name(placeholder(spec));
}

std::vector<std::string_view> FlagSet::names() const {
  std::vector<std::string_view> names;
  for (const Binding& binding : bindings_)
    if (!binding.option->get_positional()) names.push_back(binding.name);
  return names;
}

Status FlagSet::check_unknown() const {
  for (const std::string& argument : app_.remaining()) {
    if (argument == "--") continue;
    if (argument.size() < 2 || argument[0] != '-')
      return fail(ErrorCode::kInvalidArgument,
                  "unexpected argument \"{}\"; texts are given by flags, see `reprise {} --help`",
                  argument, app_.get_name());
    const std::string flag = argument.substr(0, argument.find('='));
    std::vector<std::string> names;
    for (const CLI::Option* option : app_.get_options())
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    const std::vector<std::string_view> candidates(names.begin(), names.end());
    return fail(ErrorCode::kUnknownOption, "unknown option {}{}; see `reprise {} --help`", flag,
                suggestion(flag, candidates), app_.get_name());
  }
  return {};
}

Status FlagSet::set_from_twins(const Binding& binding,
                               const std::vector<ConfigEntry>& config) const {
  const std::string variable = variable_name(binding.name);
  if (const char* value = std::getenv(variable.c_str()); value != nullptr && *value != '\0') {
    Status status = binding.set(value);
    if (!status) return tl::unexpected(in_place(std::move(status.error()), variable));
    return {};
  }
  const ConfigEntry* chosen = nullptr;  // the subcommand's own section wins
  for (const ConfigEntry& entry : config) {
    if (entry.name != binding.name) continue;
    if (entry.section == app_.get_name() ||
        (entry.section.empty() && (chosen == nullptr || chosen->section.empty())))
      chosen = &entry;
  }
  if (chosen == nullptr) return {};
  Status status = binding.set(chosen->value);
  if (!status) return tl::unexpected(in_place(std::move(status.error()), "configuration file"));
  return {};
}

Status FlagSet::resolve(const std::vector<ConfigEntry>& config) {
  REPRISE_CHECK(check_unknown());
  for (const Binding& binding : bindings_) {
    const std::vector<std::string>& given = binding.option->results();
    if (given.empty()) {
      if (!binding.option->get_positional()) REPRISE_CHECK(set_from_twins(binding, config));
      continue;
    }
    Status status = binding.set(given.back());
    if (!status) {
      Error error = std::move(status.error());
      if (!binding.option->get_positional()) error.message.insert(0, "--");
      return tl::unexpected(std::move(error));
    }
  }
  return {};
}

}  // namespace reprise::cli
