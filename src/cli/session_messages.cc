#include "cli/session_messages.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/try.h"
#include "cli/request_flags.h"
#include "kv/session_format.h"

namespace reprise::cli {

std::string pack_messages(const std::vector<Message>& messages) {
  auto list = nlohmann::ordered_json::array();
  for (const Message& message : messages)
    list.push_back({{"role", message.role}, {"content", message.content}});
  return list.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::vector<Message> unpack_messages(const std::string& note) {
  std::vector<Message> messages;
  const auto list = nlohmann::json::parse(note, nullptr, false);
  if (!list.is_array()) return messages;
  for (const auto& item : list) {
    if (!item.is_object() || !item.contains("role") || !item.contains("content") ||
        !item["role"].is_string() || !item["content"].is_string())
      return {};
    messages.push_back({item["role"], item["content"]});
  }
  return messages;
}

Result<std::vector<Message>> read_messages(const std::string& path) {
  if (is_empty_file(path)) return std::vector<Message>();
  REPRISE_TRY(const std::string note, Session::read_note(path));
  return unpack_messages(note);
}

void warn_of_talk(const std::string& path, Console& console) {
  const auto messages = read_messages(path);
  if (!messages || std::ranges::count(*messages, "user", &Message::role) < 2) return;
  console.warn(
      fmt::format("{} holds a conversation of {} messages, and this prompt will take its "
                  "place; `reprise chat --session` goes on with it",
                  path, messages->size()));
}

FileStamp file_stamp(const std::string& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) return {};
  return {status.st_dev, status.st_ino, status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
}

bool is_empty_file(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::file_size(path, ignored) == 0;
}

Status check_session_path(std::string_view what, const std::string& path) {
  std::error_code ignored;
  const std::filesystem::file_status there = std::filesystem::status(path, ignored);
  if (std::filesystem::exists(there) && !std::filesystem::is_directory(there)) {
    std::array<char, kSessionMagic.size()> magic = {};
    bool ours = std::filesystem::is_regular_file(there);
    if (ours && !is_empty_file(path)) {
      REPRISE_TRY(InputFile file, InputFile::open(path));
      const iovec part = bytes_of(magic);
      ours = file.read({&part, 1}) && magic == kSessionMagic;
    }
    if (!ours) {
      return fail(ErrorCode::kInvalidArgument, "{} is no session file; choose another name", path);
    }
  }
  return check_writable(what, path);
}

}  // namespace reprise::cli
