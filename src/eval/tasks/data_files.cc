#include "eval/tasks/data_files.h"

#include <algorithm>
#include <system_error>
#include <unordered_set>

#include "base/mapped_file.h"
#include "base/try.h"
#include "formats/json_text.h"
#include "formats/printable.h"

namespace reprise::eval {
namespace {

namespace fs = std::filesystem;

std::string_view trimmed(std::string_view line) {
  constexpr std::string_view kSpace = " \t\r";
  const size_t begin = line.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return line.substr(begin, line.find_last_not_of(kSpace) - begin + 1);
}

struct Line {
  std::string_view text;
  size_t number = 0;  // from 1, empty ones counted
};

// The lines that are not empty, trimmed.
std::vector<Line> lines_of(std::string_view text) {
  std::vector<Line> lines;
  for (size_t number = 1, begin = 0; begin < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = trimmed(text.substr(begin, end - begin));
    if (!line.empty()) lines.push_back({line, number});
    begin = end + 1;
  }
  return lines;
}

Status require_object(const Record& record) {
  if (record.value.is_object()) return {};
  return fail(ErrorCode::kBadValue, "{}: expected an object with named fields", record.where);
}

}  // namespace

tl::unexpected<Error> missing(const fs::path& path) {
  return fail(ErrorCode::kFileNotFound, "no file {}: get it as described in docs/evaluation.md",
              path.string());
}

Result<std::string> read_text(const fs::path& path) {
  auto file = MappedFile::open(path.string());
  if (!file && file.error().code == ErrorCode::kFileNotFound) return missing(path);
  if (!file) return tl::unexpected<Error>(std::move(file.error()));
  const auto bytes = file->bytes();
  std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!is_utf8(text)) return fail(ErrorCode::kBadString, "{}: not valid UTF-8", path.string());
  return text;
}

Result<std::vector<std::string>> read_word_list(const fs::path& path) {
  REPRISE_TRY(const std::string text, read_text(path));
  std::vector<std::string> words;
  std::unordered_set<std::string_view> seen;
  for (const Line& line : lines_of(text)) {
    if (seen.insert(line.text).second) words.emplace_back(line.text);
  }
  if (words.empty()) return fail(ErrorCode::kBadValue, "{}: holds no words", path.string());
  return words;
}

Result<nlohmann::json> read_json(const fs::path& path) {
  REPRISE_TRY(const std::string text, read_text(path));
  return parse_json(text, path.string(), {});
}

Result<std::vector<Record>> read_json_lines(const fs::path& path) {
  REPRISE_TRY(const std::string text, read_text(path));
  std::vector<Record> records;
  for (const Line& line : lines_of(text)) {
    Record record;
    record.where = fmt::format("{} line {}", path.string(), line.number);
    REPRISE_TRY(record.value, parse_json(line.text, record.where, {}));
    REPRISE_CHECK(require_object(record));
    records.push_back(std::move(record));
  }
  if (records.empty()) return fail(ErrorCode::kBadValue, "{}: holds no records", path.string());
  return records;
}

Result<std::vector<Record>> read_json_list(const fs::path& path) {
  REPRISE_TRY(nlohmann::json list, read_json(path));
  if (!list.is_array() || list.empty()) {
    return fail(ErrorCode::kBadValue, "{}: expected a list of records", path.string());
  }
  std::vector<Record> records;
  for (auto& value : list) {
    records.push_back(
        {std::move(value), fmt::format("{} record {}", path.string(), records.size() + 1)});
    REPRISE_CHECK(require_object(records.back()));
  }
  return records;
}

Result<std::string> Record::text(std::string_view field) const {
  const auto found = value.find(field);
  if (found != value.end() && found->is_string()) return found->get<std::string>();
  return fail(ErrorCode::kBadValue, "{}: field '{}' must be a string", where, field);
}

Result<std::vector<std::string>> Record::texts(std::string_view field) const {
  const auto found = value.find(field);
  const auto is_text = [](const nlohmann::json& item) { return item.is_string(); };
  if (found != value.end() && found->is_array() && !found->empty() &&
      std::all_of(found->begin(), found->end(), is_text)) {
    return found->get<std::vector<std::string>>();
  }
  return fail(ErrorCode::kBadValue, "{}: field '{}' must be a list of strings, not empty", where,
              field);
}

std::vector<fs::path> files_below(const fs::path& folder, std::string_view extension) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error), end;
  for (; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_regular_file(ignored) && entry->path().extension() == extension) {
      files.push_back(entry->path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace reprise::eval
