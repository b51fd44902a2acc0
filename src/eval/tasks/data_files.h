// Files below --data: every failure names the file, the line and what to do.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "reprise/error.h"

namespace reprise::eval {

/// kFileNotFound (with where to get the file), kFileUnreadable, kBadString when it is not UTF-8.
Result<std::string> read_text(const std::filesystem::path& path);
/// The lines of a list of words: trimmed, without empty and repeated ones, in the file's order.
Result<std::vector<std::string>> read_word_list(const std::filesystem::path& path);
/// kBadJson names the file and the byte.
Result<nlohmann::json> read_json(const std::filesystem::path& path);

/// A JSON object of a file and where it stands, for messages: "FILE line 3".
struct Record {
  nlohmann::json value;
  std::string where;

  /// A string; kBadValue when it is absent or of another type.
  Result<std::string> text(std::string_view field) const;
  /// A list of strings, not empty.
  Result<std::vector<std::string>> texts(std::string_view field) const;
};

/// One object per line. Empty lines are ignored; a file without records is kBadValue.
Result<std::vector<Record>> read_json_lines(const std::filesystem::path& path);
/// A file that is one list of objects.
Result<std::vector<Record>> read_json_list(const std::filesystem::path& path);

/// Files below folder whose name ends so, sorted by path; none when there is no such folder.
std::vector<std::filesystem::path> files_below(const std::filesystem::path& folder,
                                               std::string_view extension);

/// kFileNotFound: what is missing, and where it is described.
tl::unexpected<Error> missing(const std::filesystem::path& path);

}  // namespace reprise::eval
