#include "kernels/code_sums.h"

#include <algorithm>

#include "kernels/code_sums_isa.h"
#include "kernels/code_tables.h"
#include "kernels/cpu.h"

namespace reprise::kernels {
namespace {

constexpr size_t kPageTokens = 16;

uint16_t code_sum(const CodeSumsArgs& args, size_t row, size_t key) {
  const uint8_t* table = args.tables + row * args.planes * 2 * kCodeEntries;
  const uint8_t* codes = args.codes[key / kCodeBlock] + key % kCodeBlock;
  unsigned sum = 0;
  for (const size_t plane : args.used) {
    const unsigned byte = codes[plane * args.stride];
    const uint8_t* entries = table + plane * 2 * kCodeEntries;
    sum += entries[byte & 15u] + entries[kCodeEntries + (byte >> 4)];
  }
  return static_cast<uint16_t>(sum);
}

struct ScalarRow {  // products of a query with the centroids of a part
  float values[kCodeEntries];

  static ScalarRow zero() { return {}; }
  void add(float q, const float* centroids) {
    for (size_t i = 0; i < kCodeEntries; ++i) values[i] += q * centroids[i];
  }
  float lowest() const { return *std::min_element(values, values + kCodeEntries); }
  float highest() const { return *std::max_element(values, values + kCodeEntries); }
  void store(float low, float levels, uint8_t* entries) const {
    for (size_t i = 0; i < kCodeEntries; ++i) {
      const float level = (values[i] - low) * levels + 0.5f;
      entries[i] = static_cast<uint8_t>(level > 0.0f ? std::min(level, kLargestEntry) : 0.0f);
    }
  }
};

}  // namespace

void code_tables_ref(const CodeTablesArgs& args) { fill_code_tables<ScalarRow>(args); }

void code_sums_ref(const CodeSumsArgs& args) {
  for (size_t row = 0; row < args.rows; ++row) {
    for (size_t key = 0; key < args.blocks * kCodeBlock; ++key) {
      args.out[row * args.out_stride + key] = code_sum(args, row, key);
    }
  }
}

void code_page_tops_ref(const CodeSumsArgs& args) {
  for (size_t row = 0; row < args.rows; ++row) {
    uint16_t* out = args.out + row * args.out_stride;
    std::fill_n(out, args.blocks * kCodeBlock / kPageTokens, uint16_t{0});
    for (size_t key = 0; key < args.blocks * kCodeBlock; ++key) {
      out[key / kPageTokens] = std::max(out[key / kPageTokens], code_sum(args, row, key));
    }
  }
}

void code_logits_ref(const uint16_t* sums, size_t n, float low, float step, float* out) {
  for (size_t i = 0; i < n; ++i) out[i] = low + step * static_cast<float>(sums[i]);
}

void code_tables(const CodeTablesArgs& args) {
  form<code_tables_ref, code_tables_avx2, code_tables_avx512>()(args);
}

void code_sums(const CodeSumsArgs& args) {
  form<code_sums_ref, code_sums_avx2, code_sums_avx512, code_sums_avx512_beside_amx>()(args);
}

void code_page_tops(const CodeSumsArgs& args) {
  form<code_page_tops_ref, code_page_tops_avx2, code_page_tops_avx512,
       code_page_tops_avx512_beside_amx>()(args);
}

void code_logits(const uint16_t* sums, size_t n, float low, float step, float* out) {
  form<code_logits_ref, code_logits_avx2, code_logits_avx512>()(sums, n, low, step, out);
}

}  // namespace reprise::kernels
