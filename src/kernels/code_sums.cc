#include "kernels/code_sums.h"

#include <algorithm>

#include "kernels/code_sums_isa.h"
#include "kernels/cpu.h"

namespace reprise::kernels {
namespace {

constexpr size_t kPageTokens = 16, kEntries = 32;  // of a plane

uint16_t code_sum(const CodeSumsArgs& args, size_t row, size_t key) {
  const uint8_t* table = args.tables + row * args.planes * kEntries;
  unsigned sum = 0;
  for (size_t plane = 0; plane < args.planes; ++plane, table += kEntries) {
    const unsigned codes = args.codes[plane][key];
    sum += table[codes & 15u] + table[16 + (codes >> 4)];
  }
  return static_cast<uint16_t>(sum);
}

}  // namespace

void code_sums_ref(const CodeSumsArgs& args) {
  for (size_t row = 0; row < args.rows; ++row) {
    for (size_t key = 0; key < args.keys; ++key) {
      args.out[row * args.out_stride + key] = code_sum(args, row, key);
    }
  }
}

void code_page_tops_ref(const CodeSumsArgs& args) {
  for (size_t row = 0; row < args.rows; ++row) {
    uint16_t* out = args.out + row * args.out_stride;
    std::fill_n(out, args.keys / kPageTokens, uint16_t{0});
    for (size_t key = 0; key < args.keys; ++key) {
      out[key / kPageTokens] = std::max(out[key / kPageTokens], code_sum(args, row, key));
    }
  }
}

void code_sums(const CodeSumsArgs& args) {
#if defined(__x86_64__)
  if (cpu_isa() >= Isa::kAvx512) return code_sums_avx512(args);
  if (cpu_isa() >= Isa::kAvx2) return code_sums_avx2(args);
#endif
  code_sums_ref(args);
}

void code_page_tops(const CodeSumsArgs& args) {
#if defined(__x86_64__)
  if (cpu_isa() >= Isa::kAvx512) return code_page_tops_avx512(args);
  if (cpu_isa() >= Isa::kAvx2) return code_page_tops_avx2(args);
#endif
  code_page_tops_ref(args);
}

}  // namespace reprise::kernels
