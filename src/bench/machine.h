// The hardware roof that measurements are held against.
#pragma once

#include <cstddef>
#include <memory>
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

/// 512 MiB, more than caches hold and in huge pages as weights and KV lie, that are read again and
/// again to learn how fast that is now.
class ReadProbe {
 public:
  /// pool outlives this. Throws std::bad_alloc.
  explicit ReadProbe(ThreadPool& pool);
  /// Sequential read by every thread, over and over, of a working set of this size (of all when it
  /// is larger), 1e9 bytes per second: smaller ones are served in part by the caches, for a model
  /// as well as for this. The best of several runs; a tenth of a second for all.
  double gb_s(size_t bytes) const;
  double memory_gb_s() const;

 private:
  ThreadPool& pool_;
  std::shared_ptr<std::byte[]> memory_;
};

/// Takes the best of several short runs; about a second.
MachineRoof measure_machine(ThreadPool& pool, const ReadProbe& probe);

}  // namespace reprise
