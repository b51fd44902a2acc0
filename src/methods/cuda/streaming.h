// StreamingLLM on a CUDA device; see methods/baselines/streaming.h.
#pragma once

#include "attention/cuda/device_policy.h"
#include "attention/cuda/device_ranges.h"
#include "methods/baselines/streaming.h"

namespace reprise {

class DeviceStreaming : public DevicePolicy {
 public:
  DeviceStreaming(const StreamingOptions& options, const ModelConfig& config);

  Status reserve(const DeviceRoom& room) override;
  Status begin(const DeviceRows& rows, const PagedKv& kv, cudaStream_t stream) override;
  Status select(const DeviceQueries& queries, DeviceRead& read, cudaStream_t stream) override;
  std::vector<PrefillPart> prefill_parts(uint32_t layer, uint32_t step,
                                         int32_t position) const override;
  int32_t max_query_position() const override;
  uint64_t keys_read(const DeviceRow& row) const override;

 private:
  int32_t sink_, window_;
  bool cache_positions_, whole_prompts_;
  DeviceRanges ranges_;
};

}  // namespace reprise
