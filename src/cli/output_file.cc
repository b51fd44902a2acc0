#include "cli/output_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>

namespace reprise::cli {

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
