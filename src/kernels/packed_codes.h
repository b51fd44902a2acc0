// Codes of a row's block in the planes of a panel (packed_layout.h), both ways. Inline: where bits
// is a constant, only what it needs is left.
#pragma once

#include <cstring>

#include "kernels/packed_layout.h"

namespace reprise::kernels {

template <class T>
void store(std::byte* base, size_t index, T value) {
  std::memcpy(base + index * sizeof(T), &value, sizeof value);
}

template <class T>
T load(const std::byte* base, size_t index) {
  T value;
  std::memcpy(&value, base + index * sizeof(T), sizeof value);
  return value;
}

/// codes: word j holds columns 4j to 4j+3 of row lane.
inline void pack_codes(uint32_t bits, const uint32_t codes[8], std::byte* plane, size_t lane) {
  const auto put = [&](size_t reg, uint32_t word) { store(plane, reg * kPanelRows + lane, word); };
  if (bits == 8) {
    for (size_t j = 0; j < 8; ++j) put(j, codes[j]);
    return;
  }
  uint32_t shift = 0;
  if (bits & 4) {
    for (size_t i = 0; i < 4; ++i) {
      put(i, (codes[i] & 15 * kByteOnes) | (codes[i + 4] & 15 * kByteOnes) << 4);
    }
    plane += 256;
    shift = 4;
  }
  if (bits & 2) {
    for (size_t i = 0; i < 2; ++i) {
      uint32_t word = 0;
      for (size_t t = 0; t < 4; ++t) {
        word |= (codes[4 * i + t] >> shift & 3 * kByteOnes) << 2 * t;
      }
      put(i, word);
    }
    plane += 128;
    shift += 2;
  }
  if (bits & 1) {
    uint32_t word = 0;
    for (size_t j = 0; j < 8; ++j) word |= (codes[j] >> shift & kByteOnes) << j;
    put(0, word);
  }
}

/// The inverse.
inline void unpack_codes(uint32_t bits, const std::byte* plane, size_t lane, uint32_t codes[8]) {
  const auto word = [&](size_t reg) { return load<uint32_t>(plane, reg * kPanelRows + lane); };
  if (bits == 8) {
    for (size_t j = 0; j < 8; ++j) codes[j] = word(j);
    return;
  }
  for (size_t j = 0; j < 8; ++j) codes[j] = 0;
  uint32_t shift = 0;  // bits that are read so far
  if (bits & 4) {
    for (size_t j = 0; j < 8; ++j) codes[j] = word(j % 4) >> j / 4 * 4 & 15 * kByteOnes;
    plane += 256;
    shift = 4;
  }
  if (bits & 2) {
    for (size_t j = 0; j < 8; ++j) {
      codes[j] |= (word(j / 4) >> j % 4 * 2 & 3 * kByteOnes) << shift;
    }
    plane += 128;
    shift += 2;
  }
  if (bits & 1) {
    for (size_t j = 0; j < 8; ++j) codes[j] |= (word(0) >> j & kByteOnes) << shift;
  }
}

}  // namespace reprise::kernels
