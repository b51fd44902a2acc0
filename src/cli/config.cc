#include "cli/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/system.h"
#include "base/try.h"

#define TOML_EXCEPTIONS 0
#define TOML_HEADER_ONLY 1  // Debian also has a library, which throws
#include <toml++/toml.h>

namespace reprise::cli {
namespace {

// A value as a flag would have it; also of a list of one.
std::optional<std::string> text_of(const toml::node& node) {
  if (const auto* list = node.as_array(); list != nullptr && list->size() == 1)
    return text_of(*list->get(0));
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return fmt::format("{}", number->get());
  if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
  if (const auto* boolean = node.as_boolean()) return boolean->get() ? "true" : "false";
  return std::nullopt;
}

Status add_entries(const toml::table& table, const std::string& section, Config& config) {
  for (const auto& [key, node] : table) {
    std::string name(key.str());
    if (section.empty() && node.is_table()) {
      REPRISE_CHECK(add_entries(*node.as_table(), name, config));
      continue;
    }
    std::replace(name.begin(), name.end(), '_', '-');
    auto value = text_of(node);
    if (!value) {
      return fail(ErrorCode::kInvalidArgument, "{}: {}{}{} needs one value", config.path, section,
                  section.empty() ? "" : ".", name);
    }
    const bool twice = std::ranges::any_of(config.entries, [&](const ConfigEntry& entry) {
      return entry.section == section && entry.name == name;
    });
    if (twice) {
      return fail(ErrorCode::kInvalidArgument, "{}: {} is there twice, with \"-\" and with \"_\"",
                  config.path, name);
    }
    config.entries.push_back({section, std::move(name), std::move(*value)});
  }
  return {};
}

}  // namespace

Result<Config> read_config(const std::string& path) {
  const std::string own = user_file("XDG_CONFIG_HOME", ".config", "config.toml");
  Config config = {path.empty() ? own : path, {}};
  const std::string& file = config.path;
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) {
    if (path.empty()) return config;
    return fail(ErrorCode::kFileNotFound, "{}: no such configuration file", file);
  }
  if (std::filesystem::is_directory(file, ignored))
    return fail(ErrorCode::kFileUnreadable, "{}: is a folder, not a configuration file", file);
  std::ifstream stream(file);
  if (!stream) return fail(ErrorCode::kFileUnreadable, "{}: {}", file, std::strerror(errno));
  const toml::parse_result parsed = toml::parse(stream, file);
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    const std::string_view what = error.description();
    const auto says = [&](std::string_view part) { return what.find(part) != what.npos; };
    const bool bare = says("value type") || says("parsing boolean");
    return fail(ErrorCode::kBadValue, "{}: line {}: {}{}", file, error.source().begin.line, what,
                bare ? "; texts stand in quotes" : "");
  }
  REPRISE_CHECK(add_entries(parsed.table(), "", config));
  return config;
}

}  // namespace reprise::cli
