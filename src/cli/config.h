// The configuration file: options of all commands, or of one.
#pragma once

#include <string>
#include <vector>

#include "reprise/error.h"

namespace reprise::cli {

/// One key; section is a subcommand's name or empty.
struct ConfigEntry {
  std::string section, name, value;
};

struct Config {
  std::string path;
  std::vector<ConfigEntry> entries;
};

/// Reads a TOML file of keys and [section]s; values as a flag would have them. path empty: the
/// user's own file, which may be absent. kFileNotFound, kFileUnreadable, kBadValue where it is not
/// TOML, kInvalidArgument where a value is no text, number or boolean, or
/// a key is there with "-" and with "_".
Result<Config> read_config(const std::string& path);

}  // namespace reprise::cli
