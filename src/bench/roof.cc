#include "bench/roof.h"

#include <optional>

#include "base/system.h"
#include "bench/cuda/device_roof.h"

namespace reprise {
namespace {

class CpuRoof : public Roof {
 public:
  explicit CpuRoof(ThreadPool& pool) : pool_(pool), free_bytes_(available_memory_bytes()) {}

  MachineRoof machine() override { return measure_machine(pool_, probe()); }
  double memory_gb_s() override { return probe().memory_gb_s(); }
  Result<double> read_gb_s(size_t bytes) override { return probe().gb_s(bytes); }
  uint64_t free_bytes() const override { return free_bytes_; }

 private:
  // Made when a speed is asked for: its memory is written first.
  const ReadProbe& probe() { return probe_ ? *probe_ : probe_.emplace(pool_); }

  ThreadPool& pool_;
  uint64_t free_bytes_;
  std::optional<ReadProbe> probe_;
};

}  // namespace

Result<std::unique_ptr<Roof>> make_roof(const EngineOptions& options, ThreadPool& pool) {
  if (options.device == "cuda") return device_roof(options.tp);
  return std::make_unique<CpuRoof>(pool);
}

}  // namespace reprise
