// Room on the disk that a store gives up when the disk is full, so that its index can still be read
// and what is dropped can be noted: SQLite writes for either.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace reprise {

class SpareRoom {
 public:
  static constexpr uint64_t kBytes = 1 << 20;

  /// folder: of the store.
  explicit SpareRoom(const std::string& folder) : path_(folder + "/spare") {}
  SpareRoom(SpareRoom&& other) noexcept
      : path_(other.path_), given_(std::exchange(other.given_, false)) {}
  /// Takes back what was given.
  ~SpareRoom() {
    if (given_) keep();
  }

  /// Reserves it where there is none, and where there is room. Whether it is there.
  bool keep();
  /// Whether the disk was full, and has room now.
  bool give();
  /// Nothing else is to be written into it.
  bool given() const { return given_; }

 private:
  std::string path_;
  bool given_ = false;
};

}  // namespace reprise
