#include "cli/session_messages.h"

#include <array>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>

#include "base/checked.h"
#include "base/try.h"
#include "cli/request_flags.h"
#include "kv/session_format.h"

namespace reprise::cli {
namespace {

tl::unexpected<Error> damaged(const InputFile& file) {
  return fail(ErrorCode::kCorrupt, "'{}' is damaged: its conversation cannot be read", file.path());
}

Result<SessionHeader> read_header(InputFile& file) {
  SessionHeader header;
  const iovec part = bytes_of(header);
  REPRISE_CHECK(file.read({&part, 1}));
  if (header.magic != kSessionMagic)
    return fail(ErrorCode::kBadMagic, "'{}' is no session file", file.path());
  if (header.version != kSessionVersion) {
    return fail(ErrorCode::kUnsupportedVersion, "'{}' has session format {}; this build reads {}",
                file.path(), header.version, kSessionVersion);
  }
  const CheckedSize bytes = CheckedSize(header.token_count) * sizeof(int32_t) + header.state_bytes;
  if (header.checksum != header_checksum(header) || !bytes.fits(file.size())) return damaged(file);
  return header;
}

// A section and the checksum behind it; whether they agree.
Result<bool> read_section(InputFile& file, SectionChecksums& checksums, void* data, size_t bytes) {
  uint64_t stored = 0;
  const std::array<iovec, 2> parts = {iovec{data, bytes}, bytes_of(stored)};
  REPRISE_CHECK(file.read(parts));
  return checksums.next(std::span(parts).first(1)) == stored;
}

// The state begins with the length of the note, then the note.
Result<std::string> note_of(const InputFile& file, const std::string& state) {
  uint64_t length = 0;
  if (state.size() < sizeof length) return damaged(file);
  std::memcpy(&length, state.data(), sizeof length);
  if (length > state.size() - sizeof length) return damaged(file);
  return state.substr(sizeof length, length);
}

}  // namespace

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
  REPRISE_TRY(InputFile file, InputFile::open(path));
  if (file.size() == 0) return std::vector<Message>();
  REPRISE_TRY(const SessionHeader header, read_header(file));
  SectionChecksums checksums(header.checksum);
  std::vector<int32_t> tokens(header.token_count);
  // Tokens follow from the messages: damage to them is no loss.
  REPRISE_CHECK(read_section(file, checksums, tokens.data(), tokens.size() * sizeof(int32_t)));
  std::string state(header.state_bytes, '\0');
  REPRISE_TRY(const bool whole, read_section(file, checksums, state.data(), state.size()));
  if (!whole) return damaged(file);
  REPRISE_TRY(const std::string note, note_of(file, state));
  return unpack_messages(note);
}

Status check_session_path(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::file_status there = std::filesystem::status(path, ignored);
  if (std::filesystem::exists(there) && !std::filesystem::is_directory(there)) {
    std::array<char, kSessionMagic.size()> magic = {};
    bool ours = std::filesystem::is_regular_file(there);
    if (ours && std::filesystem::file_size(path, ignored) > 0) {
      REPRISE_TRY(InputFile file, InputFile::open(path));
      const iovec part = bytes_of(magic);
      ours = file.read({&part, 1}) && magic == kSessionMagic;
    }
    if (!ours) {
      return fail(ErrorCode::kInvalidArgument, "{} is no session file; choose another name", path);
    }
  }
  return check_writable("--session", path);
}

}  // namespace reprise::cli
