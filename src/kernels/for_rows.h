// Parallel loops over rows.
#pragma once

#include <algorithm>

#include "base/thread_pool.h"

namespace reprise::kernels {

/// Calls body(row) for every row of n floats, on the pool when that pays.
template <class Body>
void for_rows(ThreadPool& pool, size_t rows, size_t n, const Body& body) {
  // Below this many floats a parallel region costs more than the work it shares.
  constexpr size_t kSerialFloats = 32768, kBlockFloats = 8192;
  if (rows * n < kSerialFloats) {
    for (size_t row = 0; row < rows; ++row) body(row);
    return;
  }
  const size_t block = std::max<size_t>(1, kBlockFloats / n);
  pool.run((rows + block - 1) / block, [&](size_t task, int) {
    const size_t end = std::min(rows, (task + 1) * block);
    for (size_t row = task * block; row < end; ++row) body(row);
  });
}

}  // namespace reprise::kernels
