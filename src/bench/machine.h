// The hardware roof that measurements are held against.
#pragma once

#include "base/thread_pool.h"

namespace reprise {

struct MachineRoof {
  double read_gb_s = 0;     ///< sequential read of memory by every thread, 1e9 bytes per second
  double bf16_tflop_s = 0;  ///< bf16 products from registers on every thread, 1e12 per second
};

/// Takes the best of several short runs; about a second.
MachineRoof measure_machine(ThreadPool& pool);

}  // namespace reprise
