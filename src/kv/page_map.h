// Which pages of a sequence exist: one bit per layer and block of 16 tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kv_page.h"

namespace reprise {

class PageMap {
 public:
  PageMap(uint32_t n_layer, size_t blocks)
      : blocks_(blocks), bits_(n_layer * row_bytes(blocks)), n_layer_(n_layer) {}

  /// Blocks of 16 tokens that hold this many tokens.
  static size_t blocks_of(size_t tokens) {
    return (tokens + kernels::kPageTokens - 1) / kernels::kPageTokens;
  }
  static size_t row_bytes(size_t blocks) { return (blocks + 7) / 8; }

  bool has(uint32_t layer, size_t block) const {
    return (bits_[layer * row_bytes(blocks_) + block / 8] >> (block % 8) & 1) != 0;
  }
  void set(uint32_t layer, size_t block) {
    auto& byte = bits_[layer * row_bytes(blocks_) + block / 8];
    byte = static_cast<uint8_t>(byte | 1u << (block % 8));
  }
  size_t count(uint32_t layer) const {
    size_t pages = 0;
    for (size_t block = 0; block < blocks_; ++block) pages += has(layer, block) ? 1 : 0;
    return pages;
  }

  uint32_t layers() const { return n_layer_; }
  size_t blocks() const { return blocks_; }
  std::span<uint8_t> bits() { return bits_; }  // [n_layer][ceil(blocks / 8)], lowest bit first

 private:
  size_t blocks_;
  std::vector<uint8_t> bits_;
  uint32_t n_layer_;
};

}  // namespace reprise
