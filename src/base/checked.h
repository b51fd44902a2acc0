// The only arithmetic allowed on numbers that come from a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace reprise {

/// A size that remembers overflow: any operation that wraps makes it (and all that follows from it)
/// invalid. Read it with value(), which is empty when any step overflowed.
class CheckedSize {
 public:
  constexpr CheckedSize(uint64_t value) : value_(value) {}  // NOLINT: implicit by design

  constexpr bool valid() const { return valid_; }
  constexpr std::optional<uint64_t> value() const {
    return valid_ ? std::optional<uint64_t>(value_) : std::nullopt;
  }
  /// True when no step overflowed and the size is at most limit.
  constexpr bool fits(uint64_t limit) const { return valid_ && value_ <= limit; }

  friend constexpr CheckedSize operator+(CheckedSize a, CheckedSize b) {
    CheckedSize r(0);
    r.valid_ = !__builtin_add_overflow(a.value_, b.value_, &r.value_) && a.valid_ && b.valid_;
    return r;
  }
  friend constexpr CheckedSize operator-(CheckedSize a, CheckedSize b) {
    CheckedSize r(0);
    r.valid_ = !__builtin_sub_overflow(a.value_, b.value_, &r.value_) && a.valid_ && b.valid_;
    return r;
  }
  friend constexpr CheckedSize operator*(CheckedSize a, CheckedSize b) {
    CheckedSize r(0);
    r.valid_ = !__builtin_mul_overflow(a.value_, b.value_, &r.value_) && a.valid_ && b.valid_;
    return r;
  }
  /// Rounds up to a multiple of alignment (a nonzero value); overflow makes it invalid.
  constexpr CheckedSize align_up(uint64_t alignment) const {
    const CheckedSize bumped = *this + CheckedSize(alignment - 1);
    CheckedSize r(bumped.value_ / alignment * alignment);
    r.valid_ = bumped.valid_;
    return r;
  }

 private:
  uint64_t value_;
  bool valid_ = true;
};

}  // namespace reprise
