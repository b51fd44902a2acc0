#include "cli/output_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace reprise::cli {

Status check_not_read(std::string_view option, const std::string& path,
                      std::span<const std::string> read) {
  std::error_code neither;
  for (const std::string& name : read) {
    if (!std::filesystem::equivalent(path, name, neither)) continue;
    return fail(ErrorCode::kInvalidArgument, "{}: {} is read, too; choose another name", option,
                path);
  }
  return {};
}

Status write_text_file(const std::string& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.close();
  if (!file)
    return fail(ErrorCode::kFileUnwritable, "{}: cannot be written: {}", path,
                std::strerror(errno));
  return {};
}

}  // namespace reprise::cli
