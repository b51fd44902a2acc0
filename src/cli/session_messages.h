// Conversations in session files, which outlive the KV beside them: text fits every setting.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cli/console.h"
#include "reprise/engine.h"

namespace reprise::cli {

/// A conversation as kept in a session file, and back; not JSON gives no messages.
std::string pack_messages(const std::vector<Message>& messages);
std::vector<Message> unpack_messages(const std::string& note);

/// The messages of a session file of any model and settings, whatever became of its KV; none of an
/// empty file. Errors: those of opening it, kBadMagic, kUnsupportedVersion, kTruncated, kCorrupt.
Result<std::vector<Message>> read_messages(const std::string& path);

/// A remark where the file holds a conversation of several questions, which is to be replaced.
void warn_of_talk(const std::string& path, Console& console);

/// Which file lies at a path: another one once a session was saved there. Equal where none is.
struct FileStamp {
  uint64_t device = 0, inode = 0;
  int64_t seconds = 0, nanoseconds = 0;  // of its last change

  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};
FileStamp file_stamp(const std::string& path);

/// Whether a regular file of no bytes is there, as `mktemp` leaves one: it is no damaged session.
bool is_empty_file(const std::string& path);
/// Whether a session may be saved to the path that an option or a command (what) names:
/// kInvalidArgument when something else lies there, kFileUnwritable. Leaves no trace.
Status check_session_path(std::string_view what, const std::string& path);

}  // namespace reprise::cli
