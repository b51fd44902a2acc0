// StreamingLLM on a CUDA device; see methods/baselines/streaming.h.
#pragma once

#include "attention/cuda/device_policy.h"
#include "kernels/cuda/device_buffer.h"
#include "methods/baselines/streaming.h"

namespace reprise {

class DeviceStreaming : public DevicePolicy {
 public:
  explicit DeviceStreaming(const StreamingOptions& options);

  Status reserve(const DeviceRoom& room) override;
  Status select(const DeviceQueries& queries, std::vector<DevicePart>& parts,
                cudaStream_t stream) override;
  std::vector<PrefillPart> prefill_parts(int32_t position) const override;
  uint64_t keys_read(int32_t position) const override;

 private:
  struct Lists {
    kernels::cuda::DeviceBuffer<uint32_t> pages;  // [sequences, capacity]
    kernels::cuda::DeviceBuffer<uint16_t> slots;  // [sequences, capacity]
    kernels::cuda::DeviceBuffer<int32_t> keys;    // [sequences]
    uint32_t capacity = 0;
  };
  Status reserve(Lists& lists, uint32_t keys, uint32_t sequences);
  Status add_part(const DeviceQueries& queries, const PrefillPart& range, const Lists& lists,
                  std::vector<DevicePart>& parts, cudaStream_t stream);

  PrefillPart sinks_, recent_;
  Lists sink_lists_, recent_lists_;
};

}  // namespace reprise
