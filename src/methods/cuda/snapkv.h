// SnapKV on a CUDA device; see methods/baselines/snapkv.h.
#pragma once

#include "methods/baselines/snapkv.h"
#include "methods/cuda/evicting.h"

namespace reprise {

class DeviceSnapKv : public DeviceEvicting {
 public:
  DeviceSnapKv(const SnapKvOptions& options, const ModelConfig& config);

 private:
  int32_t voters(const EvictingPolicy& host, int32_t prompt_end) const override;
  std::optional<Choice> choice(const EvictingPolicy& host, const Kept& kept,
                               int32_t end) const override;
  Status score(const Ranking& ranking, cudaStream_t stream) override;

  SnapKvOptions options_;
};

}  // namespace reprise
