// The hardware roof that measurements are held against.
#pragma once

#include <string>

#include "base/thread_pool.h"

namespace reprise {

struct MachineRoof {
  /// Sequential read of 512 MiB by every thread (a device: of 2 GiB), 1e9 bytes per second.
  double read_gb_s = 0;
  /// bf16 products from registers on every thread (a device: of matrices of 8192 x 8192), 1e12
  /// operations per second.
  double bf16_tflop_s = 0;
  /// The same of products with quantised weights.
  double quantised_tflop_s = 0;
  std::string device;  ///< e.g. "NVIDIA H200"; empty: the CPU
};

/// Takes the best of several short runs; about a second.
MachineRoof measure_machine(ThreadPool& pool);

/// Sequential read of 512 MiB by every thread, more than caches hold, 1e9 bytes per second.
double measure_memory_gb_s(ThreadPool& pool);

/// Sequential read by every thread, over and over, of a working set of this size: smaller ones are
/// served in part by the caches, for a model as well as for this.
double measure_read_gb_s(ThreadPool& pool, size_t bytes);

}  // namespace reprise
