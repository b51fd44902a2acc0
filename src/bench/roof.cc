#include "bench/roof.h"

#include "base/system.h"
#include "bench/cuda/device_roof.h"

namespace reprise {
namespace {

class CpuRoof : public Roof {
 public:
  explicit CpuRoof(ThreadPool& pool)
      : pool_(pool), free_bytes_(available_memory_bytes()), probe_(pool) {}

  MachineRoof machine() override { return measure_machine(pool_, probe_); }
  double memory_gb_s() override { return probe_.memory_gb_s(); }
  Result<double> read_gb_s(size_t bytes) override { return probe_.gb_s(bytes); }
  uint64_t free_bytes() const override { return free_bytes_; }

 private:
  ThreadPool& pool_;
  uint64_t free_bytes_;
  ReadProbe probe_;
};

}  // namespace

Result<std::unique_ptr<Roof>> make_roof(const EngineOptions& options, ThreadPool& pool) {
  if (options.device == "cuda") return device_roof(options.tp);
  return std::make_unique<CpuRoof>(pool);
}

}  // namespace reprise
