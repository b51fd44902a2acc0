// What ReAttention keeps of its sequences on a CUDA device: evidence of the gate, or votes that may
// agree; see methods/reattention/gate.h and agreement.h.
#pragma once

#include <memory>
#include <vector>

#include "attention/cuda/device_policy.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/row_agreement.h"
#include "kernels/cuda/row_evidence.h"
#include "kernels/cuda/staged_array.h"
#include "methods/reattention/reattention.h"

namespace reprise {

/// A gate's. Cut by more than RowEvidence::kRows - Gate::kRows rows a sequence misses some that the
/// host would know of.
struct EvidenceImage {
  using Data = kernels::cuda::RowEvidence;

  kernels::cuda::EvidenceRules rules;

  Data of(const ReAttentionPolicy& host) const;
  std::string save(const Data& data, int32_t length) const;
  cudaError_t forget(Data* data, int32_t length, cudaStream_t stream) const;
};

/// An agreement's, of the last RowAgreement::kVotes votes.
struct AgreementImage {
  using Data = kernels::cuda::RowAgreement;

  Data of(const ReAttentionPolicy& host) const;
  std::string save(const Data& data, int32_t length) const;
  cudaError_t forget(Data* data, int32_t length, cudaStream_t stream) const;
};

/// Of all sequences, each in memory of its own.
template <class Image>
class DeviceWatch {
 public:
  using Data = typename Image::Data;

  Status reserve(uint32_t sequences, const Image& image);
  /// Finds what is kept of own's steps.
  Status plan(const DevicePlan& plan, const DevicePolicy& own, cudaStream_t stream);
  /// [steps from first on]; null: a step of another policy.
  Data* const* states(uint32_t first) const { return sent_.device() + first; }

 private:
  Result<Data*> data_of(const ReAttentionPolicy& host, cudaStream_t stream) const;

  Image image_;
  std::vector<Data*> states_;  // [sequences] of the last pass; null: of no step
  kernels::cuda::StagedArray<Data*> sent_;
};

extern template class DeviceWatch<EvidenceImage>;
extern template class DeviceWatch<AgreementImage>;

/// The rules of a region of so many votes.
kernels::cuda::AgreementRules agreement_rules(double votes);

}  // namespace reprise
