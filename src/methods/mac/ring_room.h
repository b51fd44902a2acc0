// Memory that the rings of all sequences of a model may take together.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "model/config.h"

namespace reprise {

/// What one sequence has of it, until its end.
class MacRingRoom {
 public:
  /// limit: in bytes, of all sequences of the model that name the same one; 0: none.
  MacRingRoom(const ModelConfig& config, uint64_t limit);
  /// A fork has as much, if there is as much left, else nothing.
  MacRingRoom(const MacRingRoom& other);
  MacRingRoom& operator=(const MacRingRoom&) = delete;
  ~MacRingRoom();

  /// Whether the sequence has these bytes, or gets them now.
  bool take(uint64_t bytes);
  /// Whether it would get them now; others may come first.
  bool could_take(uint64_t bytes) const;
  bool limited() const { return limit_ > 0; }
  uint64_t bytes() const { return bytes_; }

 private:
  uint64_t limit_, bytes_ = 0;
  std::shared_ptr<std::atomic<uint64_t>> taken_;  // by all sequences
};

}  // namespace reprise
