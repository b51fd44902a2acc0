// Sums of the table entries that keys' 4-bit codes name: estimated logits of product-quantised
// keys.
#pragma once

#include <cstddef>
#include <cstdint>

namespace reprise::kernels {

struct CodeSumsArgs {
  size_t planes = 0;                      // bytes of codes per key, at most 256
  const uint8_t* const* codes = nullptr;  // [planes][keys] two codes per byte, the low one first
  size_t keys = 0;
  size_t rows = 0;                  // queries
  const uint8_t* tables = nullptr;  // [rows, planes, 2, 16] entries of at most 127
  uint16_t* out = nullptr;          // [rows, keys], or [rows, keys / 16]
  size_t out_stride = 0;            // entries between rows
};

/// out[r][i] = sum of the entries of row r that the codes of key i name.
void code_sums(const CodeSumsArgs& args);
/// out[r][p] = the largest of these over keys 16 p to 16 p + 15; keys is a multiple of 16.
void code_page_tops(const CodeSumsArgs& args);

}  // namespace reprise::kernels
