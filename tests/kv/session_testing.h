// Building, breaking and repairing session files.
#pragma once

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "kv/session_format.h"

namespace reprise {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "reprise_kv_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  size_t entries() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(path_),
                                             std::filesystem::directory_iterator()));
  }

 private:
  std::string path_;
};

inline std::string read_all(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_all(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), std::ssize(bytes));
}

inline void write_byte(const std::string& path, size_t at, char byte) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(at)).put(byte);
}

inline SessionHeader header_of(const std::string& bytes) {
  SessionHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  return header;
}

inline void set_header(std::string& bytes, SessionHeader header) {
  header.checksum = header_checksum(header);
  std::memcpy(bytes.data(), &header, sizeof(header));
}

// Makes every checksum of a file match its bytes, as somebody who forges a file would: what is left
// to refuse it is the comparison of its numbers. Stops where the sections leave the file.
inline void repair_checksums(std::string& bytes) {
  if (bytes.size() < sizeof(SessionHeader) + sizeof(SessionFooter)) return;
  SessionHeader header = header_of(bytes);
  set_header(bytes, header);
  SectionChecksums checksums(header_of(bytes).checksum);
  size_t at = sizeof(SessionHeader);
  const auto section = [&](uint64_t size) {
    if (size > bytes.size() - at || bytes.size() - at - size < sizeof(uint64_t)) return false;
    const iovec part = {bytes.data() + at, size};
    const uint64_t checksum = checksums.next({&part, 1});
    std::memcpy(bytes.data() + at + size, &checksum, sizeof(checksum));
    at += size + sizeof(checksum);
    return true;
  };
  constexpr uint64_t kSane = 1 << 20;
  if (header.token_count > kSane || header.n_layer > kSane || header.page_bytes > kSane) return;
  const size_t blocks = PageMap::blocks_of(header.token_count);
  const size_t map_bytes = header.n_layer * PageMap::row_bytes(blocks);
  if (!section(header.token_count * sizeof(int32_t)) || !section(header.state_bytes)) return;
  const size_t map_at = at;
  if (header.pages_per_block == 0 || !section(map_bytes)) return;
  PageMap map(static_cast<uint32_t>(header.n_layer), blocks);
  std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(map_at), map_bytes, map.bits().begin());
  for (uint32_t layer = 0; layer < map.layers(); ++layer) {
    for (uint64_t pages = map.count(layer); pages > 0;) {
      const uint64_t count = std::min(pages, header.pages_per_block);
      if (!section(count * header.page_bytes)) return;
      pages -= count;
    }
  }
  SessionFooter footer;
  footer.checksum = checksums.footer();
  std::memcpy(bytes.data() + bytes.size() - sizeof(footer), &footer, sizeof(footer));
}

}  // namespace reprise
