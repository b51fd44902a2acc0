// The gate of ReAttention on a CUDA device; see methods/reattention/gate.h.
#pragma once

#include <memory>
#include <vector>

#include "attention/cuda/device_policy.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/row_evidence.h"
#include "methods/reattention/reattention.h"

namespace reprise {

/// Evidence of all sequences, each in memory of its own. Cut by more than
/// RowEvidence::kRows - Gate::kRows rows a sequence misses some that the host would know of.
class DeviceGates {
 public:
  using RowEvidence = kernels::cuda::RowEvidence;

  /// open: weighted sum of heads from which on all of them look far.
  explicit DeviceGates(double open) : open_(static_cast<float>(open)) {}

  /// turns: layers that scan.
  Status reserve(uint32_t sequences, uint32_t turns);
  /// Finds the evidence of own's steps.
  Status plan(const DevicePlan& plan, const DevicePolicy& own, cudaStream_t stream);
  /// For the layer of a turn, and steps from first on, each of which is a row.
  Result<kernels::cuda::EvidenceArgs> args(uint32_t first, uint32_t count, const int32_t* positions,
                                           uint32_t turn, cudaStream_t stream) const;

 private:
  Result<RowEvidence*> evidence_of(const ReAttentionPolicy& host, cudaStream_t stream) const;

  float open_;
  kernels::cuda::EvidenceRules rules_;
  std::vector<RowEvidence*> states_;  // [sequences] of the last pass; null: of no step
  kernels::cuda::PinnedBuffer<RowEvidence*> staged_[2];
  kernels::cuda::DeviceBuffer<RowEvidence*> device_states_;
};

}  // namespace reprise
