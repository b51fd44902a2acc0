// Writes small safetensors files and model folders for tests.
#pragma once

#include <fmt/format.h>
#include <stdlib.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "formats/byte_writer.h"

namespace reprise::test {

/// A file out of its header's text and its data; the header is padded so that the data is aligned.
inline std::string safetensors(std::string header, std::string_view data) {
  while (header.size() % 8 != 0) header += ' ';
  return ByteWriter().u64(header.size()).raw(header).raw(data).bytes();
}

/// One entry of a header.
inline std::string safetensors_entry(std::string_view name, std::string_view dtype,
                                     std::string_view shape, size_t begin, size_t end) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", name, dtype,
                     shape, begin, end);
}

/// Two tensors: "w" F32 [2, 3] holding 0 to 5, "v" BF16 [4].
inline std::string small_safetensors() {
  ByteWriter data;
  for (const float value : {0, 1, 2, 3, 4, 5}) data.f32(value);
  data.zeros(8);
  const std::string metadata = R"("__metadata__":{"format":"pt"})";
  return safetensors(std::string("{") + metadata + "," +
                         safetensors_entry("w", "F32", "[2,3]", 0, 24) + "," +
                         safetensors_entry("v", "BF16", "[4]", 24, 32) + "}",
                     data.bytes());
}

/// A folder under the test's temporary directory that is removed at the end.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "reprise-test-XXXXXX").string();
    path_ = mkdtemp(name.data()) == nullptr ? std::string() : name;
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  TempFolder& add(const std::string& name, std::string_view text) {
    write_file(path_ + "/" + name, text);
    return *this;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace reprise::test
