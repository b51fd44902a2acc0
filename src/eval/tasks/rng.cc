#include "eval/tasks/rng.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <limits>
#include <unordered_set>

namespace reprise::eval {

Rng::Rng(uint64_t seed, std::string_view stream)
    : engine_(XXH3_64bits_withSeed(stream.data(), stream.size(), seed)) {}

uint64_t Rng::below(uint64_t n) {
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  // The largest multiple of n: numbers from there on would make small remainders more likely.
  const uint64_t end = kMax - kMax % n;
  uint64_t bits = engine_();
  while (bits >= end) bits = engine_();
  return bits % n;
}

std::vector<size_t> Rng::distinct(size_t count, size_t n) {
  // Floyd's way of drawing without a list of all n.
  std::unordered_set<size_t> seen;
  std::vector<size_t> drawn;
  for (size_t top = n - count; top < n; ++top) {
    const size_t candidate = below(top + 1);
    drawn.push_back(seen.insert(candidate).second ? candidate : top);
    seen.insert(drawn.back());
  }
  shuffle(drawn);
  return drawn;
}

std::string Rng::digits(int count) {
  uint64_t low = 1;
  for (int i = 1; i < count; ++i) low *= 10;
  return fmt::format("{}", low + below(9 * low));
}

std::string Rng::uuid() {
  const uint64_t high = (engine_() & ~uint64_t{0xF000}) | 0x4000;
  const uint64_t low = (engine_() & ~(uint64_t{0xC} << 60)) | (uint64_t{0x8} << 60);
  return fmt::format("{:08x}-{:04x}-{:04x}-{:04x}-{:012x}", high >> 32, (high >> 16) & 0xFFFF,
                     high & 0xFFFF, low >> 48, low & 0xFFFFFFFFFFFF);
}

}  // namespace reprise::eval
