#include "cli/request_flags.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/try.h"
#include "cli/input.h"
#include "text/utf8.h"

namespace reprise::cli {
namespace {

// More than the longest context holds, whatever its tokens; devices have no end.
constexpr size_t kMostText = size_t{1} << 30;

Result<std::string> read_file(const std::string& path) {
  const bool piped = path == "-";
  const std::string name = piped ? "standard input" : path;
  const Input input = piped ? Input::standard() : Input::open(path);
  if (!input.is_open()) {
    return fail(errno == ENOENT ? ErrorCode::kFileNotFound : ErrorCode::kFileUnreadable, "{}: {}",
                name, std::strerror(errno));
  }
  std::string text;
  std::array<char, 1 << 16> buffer;
  ssize_t got = 0;
  while (text.size() <= kMostText && (got = input.read(buffer)) > 0)
    text.append(buffer.data(), static_cast<size_t>(got));
  if (text.size() > kMostText) {
    return fail(ErrorCode::kFileUnreadable, "{}: more than 1 GiB of text; split it into files",
                name);
  }
  if (got < 0 && errno == EINTR)
    return fail(ErrorCode::kCancelled, "stopped while reading {}", name);
  if (got < 0) return fail(ErrorCode::kFileUnreadable, "{}: {}", name, std::strerror(errno));
  return text;
}

void add_stop(FlagSet& flags, RequestOptions& options) {
  flags.add_list({"stop", "end the answer before this text; repeatable", "text"}, options.stop);
}

}  // namespace

void add_request_flags(FlagSet& flags, RequestOptions& options) {
  flags.add_list({"file", "document to read first; repeatable, - is standard input", "file"},
                 options.files);
  add_stop(flags, options);
  visit_options(options, flags);
}

void add_answer_flags(FlagSet& flags, RequestOptions& options) {
  add_stop(flags, options);
  visit_options(options, [&](const OptionSpec& spec, auto& field) {
    if (spec.name != "session" && spec.name != "lossy") flags.add(spec, field);
  });
}

Result<std::string> read_documents(const std::vector<std::string>& files, bool lossy) {
  std::string document;
  for (const std::string& file : files) {
    if (file.empty()) return fail(ErrorCode::kFileNotFound, "\"\" names no file to read");
    REPRISE_TRY(std::string text, read_file(file));
    const size_t bad = valid_utf8_prefix(text);
    if (bad < text.size() && !lossy) {
      return fail(ErrorCode::kBadString,
                  "{}: byte {} (0x{:02x}) is not UTF-8 text; convert the file, or replace such "
                  "bytes with --lossy",
                  file == "-" ? "standard input" : file, bad, static_cast<uint8_t>(text[bad]));
    }
    if (bad < text.size()) text = replace_invalid_utf8(text);
    if (!document.empty()) document += "\n\n";
    document += text;
  }
  return document;
}

Status check_text(std::string_view flag, std::string_view text) {
  const size_t bad = valid_utf8_prefix(text);
  if (bad == text.size()) return {};
  return fail(ErrorCode::kBadString, "{}: byte {} (0x{:02x}) is not UTF-8 text", flag, bad,
              static_cast<uint8_t>(text[bad]));
}

Status check_texts(const RequestOptions& options) {
  REPRISE_CHECK(check_text("--system", options.system));
  for (const std::string& stop : options.stop) REPRISE_CHECK(check_text("--stop", stop));
  return {};
}

std::string document_message(std::string_view document, std::string_view question) {
  if (document.empty()) return std::string(question);
  if (question.empty()) return std::string(document);
  return fmt::format("{}\n\n{}", document, question);
}

Status check_writable(std::string_view option, const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    return fail(ErrorCode::kFileUnwritable, "{}: is a folder; {} needs a file", path, option);
  std::string trial = path + ".XXXXXX";
  const int file = mkstemp(trial.data());
  if (file < 0) {
    return fail(ErrorCode::kFileUnwritable, "{}: {} could not be saved there: {}", path, option,
                std::strerror(errno));
  }
  close(file);
  unlink(trial.c_str());
  return {};
}

}  // namespace reprise::cli
