#include "fusion/cuda/fusion_ranks.h"

#include "base/try.h"

namespace reprise {

using namespace kernels::cuda;

Status FusionRanks::mark(uint32_t turn) {
  REPRISE_CHECK(
      calls.wait([&](uint32_t rank) -> const CudaEvent& { return buffers[rank].computed[turn]; }));
  for (uint32_t rank = 0; rank < count(); ++rank) {
    const DeviceScope scope(static_cast<int>(rank));
    REPRISE_CHECK(buffers[rank].computed[turn].record(parts[rank].stream));
  }
  return {};
}

Status FusionRanks::settle() {
  REPRISE_CHECK(mark(0));
  return calls.wait([&](uint32_t rank) -> const CudaEvent& { return buffers[rank].computed[0]; });
}

void FusionRanks::synchronize() const {
  for (const DeviceParts& each : parts) cudaStreamSynchronize(each.stream);
}

}  // namespace reprise
