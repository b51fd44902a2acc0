// Decode rows that do now and then what others do not.
#pragma once

#include <cstdint>

namespace reprise::kernels::cuda {

/// Rows that have their turn: each period-th, counted from an offset, of more tokens. A row's
/// position tells, so that captured calls may be replayed.
struct RowTurns {
  uint32_t period = 0;  // 0: none has
  uint32_t offset = 0, beyond = 0;
};

}  // namespace reprise::kernels::cuda
