// Estimated logits of product-quantised keys: tables of products, and sums of the table entries
// that keys' 4-bit codes name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace reprise::kernels {

inline constexpr size_t kCodeBlock = 256;       // keys whose codes lie together
inline constexpr size_t kCodeEntries = 16;      // values of a code
inline constexpr size_t kMostPlanes = 256;      // bytes of codes per key
inline constexpr size_t kBlocksAhead = 8;       // that are fetched before they are read
inline constexpr float kLargestEntry = 127.0f;  // so that two fit in a byte

struct CodeTablesArgs {
  size_t parts = 0;                      // codes per key, at most 2 kMostPlanes
  const uint32_t* first_dims = nullptr;  // [parts + 1] where the dims of every part begin
  const float* centroids = nullptr;      // [head_dim, 16] of the parts, side by side
  size_t rows = 0;
  const float* q = nullptr;   // [rows, head_dim]
  size_t q_stride = 0;        // floats between rows
  uint8_t* tables = nullptr;  // [rows, planes, 2, 16], planes = parts / 2 rounded up
  float* low = nullptr;       // [rows]
  float* step = nullptr;      // [rows]
  float* spans = nullptr;     // [rows, parts]
};

/// Tables of code_sums: the product of row r with centroid c of a part is lowest of the part + step
/// times the entry, to within half a step; low is the sum of the lowest of all parts, and step the
/// widest span of a part / 127, so that one step for all parts keeps sums comparable. spans are the
/// widths of the parts' products. Entries of a last part that is missing are 0.
void code_tables(const CodeTablesArgs& args);

struct CodeSumsArgs {
  size_t planes = 0;                      // bytes of codes per key, at most kMostPlanes
  const uint8_t* const* codes = nullptr;  // [blocks][planes, 256], two per byte, the low one first
  size_t stride = kCodeBlock;             // bytes from a plane to the next
  size_t blocks = 0;                      // of 256 keys
  std::span<const uint16_t> used;         // planes that are summed
  size_t rows = 0;                        // queries
  const uint8_t* tables = nullptr;        // [rows, planes, 2, 16] entries of at most 127
  uint16_t* out = nullptr;                // [rows, 256 blocks], or [rows, 16 blocks]
  size_t out_stride = 0;                  // entries between rows
  size_t next = 0;  // entries of codes behind the blocks, which a call after this one reads: a hint
};

/// out[r][i] = sum of the entries of row r that the codes of key i in the used planes name.
void code_sums(const CodeSumsArgs& args);
/// out[r][p] = the largest of these over keys 16 p to 16 p + 15.
void code_page_tops(const CodeSumsArgs& args);

/// out[i] = low + step sums[i], i < n: the logits that such sums stand for.
void code_logits(const uint16_t* sums, size_t n, float low, float step, float* out);

}  // namespace reprise::kernels
