// What the device that computes can do at best, and what it has room for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/thread_pool.h"
#include "bench/machine.h"
#include "reprise/error.h"
#include "reprise/options.h"

namespace reprise {

class Roof {
 public:
  virtual ~Roof() = default;

  virtual MachineRoof machine() = 0;
  /// MachineRoof::read_gb_s, of a CPU as it is now: a shared machine's changes within seconds.
  virtual double memory_gb_s() = 0;
  /// Sequential read, over and over, of a working set of this size, 1e9 bytes per second.
  virtual Result<double> read_gb_s(size_t bytes) = 0;
  /// Memory for weights and KV that was free when this was made, of each device; 0 when unknown.
  virtual uint64_t free_bytes() const = 0;
};

/// Of the device and tp of the options. CUDA devices are measured at once: engines that are loaded
/// later take their memory; speeds are those of the first one times their number. Errors:
/// kDeviceUnavailable (too few devices, a build without CUDA, no cuBLASLt), kOutOfMemory. pool
/// outlives the result.
Result<std::unique_ptr<Roof>> make_roof(const EngineOptions& options, ThreadPool& pool);

}  // namespace reprise
