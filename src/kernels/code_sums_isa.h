// The code sum kernels of one instruction set each; chosen in code_sums.cc. Sums are exact, and
// logits are rounded once or twice.
#pragma once

#include "kernels/code_sums.h"

namespace reprise::kernels {

void code_tables_ref(const CodeTablesArgs& args);
void code_tables_avx2(const CodeTablesArgs& args);
void code_tables_avx512(const CodeTablesArgs& args);

void code_sums_ref(const CodeSumsArgs& args);
void code_sums_avx2(const CodeSumsArgs& args);
void code_sums_avx512(const CodeSumsArgs& args);
void code_sums_avx512_beside_amx(const CodeSumsArgs& args);

void code_page_tops_ref(const CodeSumsArgs& args);
void code_page_tops_avx2(const CodeSumsArgs& args);
void code_page_tops_avx512(const CodeSumsArgs& args);
void code_page_tops_avx512_beside_amx(const CodeSumsArgs& args);

void code_logits_ref(const uint16_t* sums, size_t n, float low, float step, float* out);
void code_logits_avx2(const uint16_t* sums, size_t n, float low, float step, float* out);
void code_logits_avx512(const uint16_t* sums, size_t n, float low, float step, float* out);

}  // namespace reprise::kernels
