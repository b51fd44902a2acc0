// Pieces of a kernel's scratch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace reprise::kernels {

/// Hands out pieces of the scratch, each aligned to a cache line.
class Arena {
 public:
  explicit Arena(std::byte* scratch) : next_(reinterpret_cast<uintptr_t>(scratch)) {}
  template <typename T>
  T* take(size_t count) {
    next_ = (next_ + 63) & ~static_cast<uintptr_t>(63);
    T* piece = reinterpret_cast<T*>(next_);
    next_ += count * sizeof(T);
    return piece;
  }

 private:
  uintptr_t next_;
};

}  // namespace reprise::kernels
