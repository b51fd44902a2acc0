// Short loops that show what this machine can do at best, for the roof of `bench`.
#pragma once

#include <cstddef>
#include <cstdint>

namespace reprise::kernels {

/// Reads words [count] once, as fast as one thread can; returns their sum. count is a multiple
/// of 64.
uint64_t read_all(const uint64_t* words, size_t count);

/// Multiplies bf16 (float where the machine has no bf16 products) from registers with the best
/// instruction set in force; a few milliseconds.
void run_bf16_peak();
/// Floating point operations of one run_bf16_peak().
double bf16_peak_flops();

}  // namespace reprise::kernels
