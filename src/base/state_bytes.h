// State as bytes and back, in memory order: arrays of numbers whose lengths both sides know.
#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace reprise {

class StateWriter {
 public:
  template <class T>
  void array(const T* values, size_t count) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(values), count * sizeof(T));
  }
  template <class T>
  void value(const T& value) {
    array(&value, 1);
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Bytes may be anything: after the first read past their end nothing is read any more.
class StateReader {
 public:
  explicit StateReader(std::string_view bytes) : bytes_(bytes) {}

  /// count values; allocates no more than the bytes hold.
  template <class T>
  void array(std::vector<T>& values, size_t count) {
    ok_ = ok_ && count <= bytes_.size() / sizeof(T);
    if (!ok_ || count == 0) return values.clear();
    values.resize(count);
    std::memcpy(values.data(), bytes_.data(), count * sizeof(T));
    bytes_.remove_prefix(count * sizeof(T));
  }
  template <class T>
  T value() {
    T value{};
    ok_ = ok_ && sizeof(T) <= bytes_.size();
    if (!ok_) return value;
    std::memcpy(&value, bytes_.data(), sizeof(T));
    bytes_.remove_prefix(sizeof(T));
    return value;
  }
  /// Notes that what was read cannot be.
  void require(bool holds) { ok_ = ok_ && holds; }
  bool ok() const { return ok_; }
  bool ended() const { return ok_ && bytes_.empty(); }

 private:
  std::string_view bytes_;
  bool ok_ = true;
};

}  // namespace reprise
