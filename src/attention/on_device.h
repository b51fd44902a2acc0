// The host's side of what a device keeps of a sequence, where it computes in place of select().
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>

#include "reprise/error.h"

namespace reprise {

template <class State>
struct OnDevice {
  std::shared_ptr<State> state;  // copies of the sequence share it until one of them goes on
  int32_t truncated = kNever;    // positions from here on are to be forgotten

  void truncate(int32_t length) { truncated = std::min(truncated, length); }
  /// forget_from(position) before the device goes on, where something is to be forgotten.
  template <class F>
  Status forget(F&& forget_from) {
    if (truncated == kNever) return {};
    if (Status status = forget_from(truncated); !status) return status;
    truncated = kNever;
    return {};
  }

 private:
  static constexpr int32_t kNever = std::numeric_limits<int32_t>::max();
};

}  // namespace reprise
