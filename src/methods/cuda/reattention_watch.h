// What ReAttention keeps of its sequences on a CUDA device: evidence of the gate, or votes that may
// agree (methods/reattention/gate.h and agreement.h), and what rows that do not scan go by.
#pragma once

#include <memory>
#include <vector>

#include "attention/cuda/device_policy.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/kept_scans.h"
#include "kernels/cuda/row_agreement.h"
#include "kernels/cuda/row_evidence.h"
#include "kernels/cuda/staged_array.h"
#include "methods/reattention/reattention.h"

namespace reprise {

/// Of a sequence, on the device; null: it has none.
struct WatchPointers {
  kernels::cuda::RowEvidence* gate = nullptr;
  kernels::cuda::RowAgreement* agreement = nullptr;
  uint32_t* kept = nullptr;

  bool operator==(const WatchPointers&) const = default;
};

/// Which of these sequences have.
struct WatchShape {
  bool gate = false, agreement = false;  // at most one
  kernels::cuda::EvidenceRules rules;    // of the gate
  kernels::cuda::KeptShape kept;         // no layers: none

  bool any() const { return gate || agreement || kept.layers > 0; }
};

/// Of all sequences, each in memory of its own. A gate that is cut by more than
/// RowEvidence::kRows - Gate::kRows rows misses some that the host would know of; of votes the last
/// RowAgreement::kVotes are known.
class DeviceWatch {
 public:
  Status reserve(uint32_t sequences, const WatchShape& shape);
  /// Finds what is kept of own's steps.
  Status plan(const DevicePlan& plan, const DevicePolicy& own, cudaStream_t stream);
  /// [steps from first on]; of steps of another policy null.
  kernels::cuda::RowEvidence* const* gates(uint32_t first) const { return gates_.device() + first; }
  kernels::cuda::RowAgreement* const* agreements(uint32_t first) const {
    return agreements_.device() + first;
  }
  uint32_t* const* kept(uint32_t first) const { return kept_.device() + first; }
  const WatchShape& shape() const { return shape_; }

 private:
  Result<WatchPointers> pointers_of(const ReAttentionPolicy& host, cudaStream_t stream) const;

  WatchShape shape_;
  std::vector<WatchPointers> sent_;  // [sequences] of the last pass
  kernels::cuda::StagedArray<kernels::cuda::RowEvidence*> gates_;
  kernels::cuda::StagedArray<kernels::cuda::RowAgreement*> agreements_;
  kernels::cuda::StagedArray<uint32_t*> kept_;
};

/// The rules of a region of so many votes.
kernels::cuda::AgreementRules agreement_rules(double votes);

}  // namespace reprise
