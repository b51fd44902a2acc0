#include "cli/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
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

std::string placeholder(const OptionSpec& spec) {
  if (!spec.choices.empty()) return std::string(spec.choices);
  if (spec.unit.empty()) return "VALUE";
  std::string word(spec.unit);
  for (char& c : word) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return word;
}

bool any_text(const CLI::results_t&) { return true; }

Error in_place(Error error, std::string_view place) {
  error.message = fmt::format("{}: {}", place, error.message);
  return error;
}

}  // namespace

std::string variable_name(std::string_view option) {
  std::string variable = "REPRISE_";
  for (const char c : option)
    variable += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return variable;
}

// CLI11 collects texts; resolve() reads them.
void FlagSet::bind(const OptionSpec& spec, bool is_switch, const std::string& default_value,
                   std::function<Status(Values)> set) {
  CLI::Option* option = nullptr;
  const std::string help(spec.help);
  if (is_switch) {
    option = app_.add_flag(flag_names(spec.name, default_value == "true"), help);
  } else {
    option = app_.add_option(flag_names(spec.name, false), &any_text, help);
    option->type_name(placeholder(spec))->default_str(default_value)->expected(1);
  }
  option->take_last();
  bindings_.push_back({std::string(spec.name), option, std::move(set)});
}

void FlagSet::bind_list(const std::string& names, const OptionSpec& spec,
                        std::vector<std::string>& values) {
  CLI::Option* option = app_.add_option(names, &any_text, std::string(spec.help));
  // Without extra arguments, or "[a,b]" would be two texts and not the name of a file. So the first
  // of several words without a flag comes here, and resolve() finds the others.
  option->type_name(placeholder(spec))->expected(1, -1)->allow_extra_args(false);
  bindings_.push_back({std::string(spec.name), option, [&values](Values given) {
                         values.assign(given.begin(), given.end());
                         return Status();
                       }});
}

void FlagSet::add_list(const OptionSpec& spec, std::vector<std::string>& values) {
  bind_list(flag_names(spec.name, false), spec, values);
}

void FlagSet::add_positional(const OptionSpec& spec, std::string& field) {
  CLI::Option* option = app_.add_option(std::string(spec.name), &any_text, std::string(spec.help));
  option->type_name(placeholder(spec))->expected(1);
  bindings_.push_back({std::string(spec.name), option, parser(spec, field)});
}

void FlagSet::add_positional_list(const OptionSpec& spec, std::vector<std::string>& values) {
  bind_list(std::string(spec.name), spec, values);
}

bool FlagSet::typed(std::string_view name) const {
  const auto binding = std::ranges::find(bindings_, name, &Binding::name);
  return binding != bindings_.end() && binding->option->count() > 0;
}

std::vector<std::string_view> FlagSet::names() const {
  std::vector<std::string_view> names;
  for (const Binding& binding : bindings_)
    if (!binding.option->get_positional()) names.push_back(binding.name);
  return names;
}

Status FlagSet::check_unknown(Values words) const {
  for (const std::string& argument : app_.remaining()) {
    if (argument.size() < 2 || argument[0] != '-') continue;
    const std::string flag = argument.substr(0, argument.find('='));
    std::vector<std::string> names;
    for (const CLI::Option* option : app_.get_options())
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    const std::vector<std::string_view> candidates(names.begin(), names.end());
    return fail(ErrorCode::kUnknownOption, "unknown option {}{}; see `reprise {} --help`", flag,
                suggestion(flag, candidates), app_.get_name());
  }
  size_t room = 0;
  bool takes_words = false;
  for (const Binding& binding : bindings_) {
    if (!binding.option->get_positional()) continue;
    takes_words = true;
    room += static_cast<size_t>(binding.option->get_items_expected_max()) - binding.option->count();
  }
  if (words.size() <= room) return {};
  return fail(ErrorCode::kInvalidArgument,
              "unexpected argument \"{}\"; {}, see `reprise {} --help`", words[room],
              takes_words ? "what has several words stands in quotes"
                          : "texts and files are given by flags",
              app_.get_name());
}

Status FlagSet::set_from_twins(const Binding& binding, const Config& config) const {
  const std::string variable = variable_name(binding.name);
  if (const char* value = std::getenv(variable.c_str()); value != nullptr && *value != '\0') {
    Status status = binding.set(std::array{std::string(value)});
    if (!status) return tl::unexpected(in_place(std::move(status.error()), variable));
    return {};
  }
  const ConfigEntry* chosen = nullptr;  // the subcommand's own section wins
  for (const ConfigEntry& entry : config.entries) {
    if (entry.name != binding.name) continue;
    if (entry.section == app_.get_name() ||
        (entry.section.empty() && (chosen == nullptr || chosen->section.empty())))
      chosen = &entry;
  }
  if (chosen == nullptr) return {};
  Status status = binding.set({&chosen->value, 1});
  if (!status) return tl::unexpected(in_place(std::move(status.error()), config.path));
  return {};
}

Status FlagSet::set(const Binding& binding, const Config& config, Values words) const {
  std::vector<std::string> given = binding.option->results();
  const bool positional = binding.option->get_positional();
  if (positional) given.insert(given.end(), words.begin(), words.end());
  if (given.empty()) return positional ? Status() : set_from_twins(binding, config);
  Status status = binding.set(given);
  if (status || positional) return status;
  std::error_code ignored;
  const std::string& text = given.back();
  const bool file = text.find_first_of("/.") != std::string::npos &&
                    std::filesystem::is_regular_file(text, ignored);
  const bool takes_files = app_.get_option_no_throw("--file") != nullptr;
  status.error().message.insert(0, "--");
  if (file && takes_files) status.error().message += "; documents are named with --file";
  return status;
}

Status FlagSet::resolve(const Config& config, Values rest) {
  std::vector<std::string> words = app_.remaining();
  words.insert(words.end(), rest.begin(), rest.end());
  Status first = check_unknown(words);
  for (const Binding& binding : bindings_) {
    Status status = set(binding, config, words);
    if (first && !status) first = std::move(status);
  }
  return first;
}

}  // namespace reprise::cli
