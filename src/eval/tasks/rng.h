// Random draws that are the same with every compiler and library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace reprise::eval {

class Rng {
 public:
  /// Streams with different names are independent.
  Rng(uint64_t seed, std::string_view stream);

  uint64_t bits() { return engine_(); }
  /// Uniform in [0, n); n > 0.
  uint64_t below(uint64_t n);
  /// Uniform in [low, high].
  uint64_t between(uint64_t low, uint64_t high) { return low + below(high - low + 1); }
  /// count different numbers below n, in random order; count <= n.
  std::vector<size_t> distinct(size_t count, size_t n);
  /// As many random digits, the first one not 0; 1 to 19.
  std::string digits(int count);
  /// A random (version 4) UUID in lower case.
  std::string uuid();

  template <class Values>
  const auto& pick(const Values& values) {
    return values[below(values.size())];
  }
  template <class T>
  void shuffle(std::vector<T>& values) {
    for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[below(i)]);
  }

 private:
  // The engine is specified bit by bit; the library's distributions are not, so they stay unused.
  std::mt19937_64 engine_;
};

}  // namespace reprise::eval
