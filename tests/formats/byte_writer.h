// Little-endian bytes, written one number at a time, well-formed or not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

namespace reprise::test {

class ByteWriter {
 public:
  ByteWriter& u8(uint8_t v) { return put(v); }
  ByteWriter& u16(uint16_t v) { return put(v); }
  ByteWriter& u32(uint32_t v) { return put(v); }
  ByteWriter& u64(uint64_t v) { return put(v); }
  ByteWriter& f32(float v) { return put(v); }
  ByteWriter& f64(double v) { return put(v); }
  ByteWriter& raw(std::string_view bytes) {
    bytes_ += bytes;
    return *this;
  }
  /// A GGUF string: 64-bit length, then the bytes.
  ByteWriter& str(std::string_view text) { return u64(text.size()).raw(text); }
  ByteWriter& zeros(size_t count) {
    bytes_.append(count, '\0');
    return *this;
  }
  ByteWriter& align(size_t alignment) {
    return zeros((alignment - bytes_.size() % alignment) % alignment);
  }
  template <class T>
  ByteWriter& put(T v) {
    bytes_.append(reinterpret_cast<const char*>(&v), sizeof v);
    return *this;
  }

  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

inline void write_file(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<long>(bytes.size()));
}

}  // namespace reprise::test
