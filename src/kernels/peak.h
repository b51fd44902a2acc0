// Short loops that show what this machine can do at best, for the roof of `bench`.
#pragma once

#include <cstddef>
#include <cstdint>

namespace reprise::kernels {

/// Reads words [count] once, as fast as one thread can; returns their sum. count is a multiple
/// of 64.
uint64_t read_all(const uint64_t* words, size_t count);

/// What prefill multiplies: bf16 (float where the machine has no bf16 products), and activations by
/// quantised weights (the same but with AVX2, which multiplies integers of 8 bits where weights
/// have up to 5, else of 16 at half this speed).
enum class Products { kBf16, kQuantised };

/// Multiplies from registers with the best instruction set in force; a few milliseconds.
void run_peak(Products products);
/// Additions and multiplications of one run_peak().
double peak_flops(Products products);

}  // namespace reprise::kernels
