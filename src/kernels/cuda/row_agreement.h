// What leading heads of a sequence's last rows found, on the device, and the places that they agree
// on (methods/reattention/agreement.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/top_keys.h"

namespace reprise::kernels::cuda {

/// Of a sequence.
struct RowAgreement {
  static constexpr uint32_t kVotes = 4096;  // the last ones; older ones are not known
  static constexpr uint32_t kRegions = 4;

  uint32_t begin = 0, end = 0;   // votes that are known, of all there were; each at its number
                                 // modulo kVotes
  uint32_t rows = 0, open = 0;   // layers of rows that were decided, and how many had a region
  uint32_t regions = 0;          // of the layer whose turn it is
  int32_t pages[kRegions] = {};  // the first of each
  int32_t row_of[kVotes] = {};   // ascending
  int32_t page_of[kVotes] = {};

  static constexpr int32_t kRegionPages = 2;
  /// The key in the middle of a region.
  REPRISE_HOST_DEVICE constexpr int32_t middle(uint32_t region) const {
    return (pages[region] + kRegionPages / 2) * static_cast<int32_t>(kPageTokens);
  }
};

struct AgreementRules {
  int32_t reach = 32;        // rows that count, at most 32
  int32_t weights[32] = {};  // of a vote, by rows back
  int32_t least = 0;         // weight of a region, up to near tokens
  int32_t near = 1, fewest = 1;

  REPRISE_HOST_DEVICE constexpr int32_t enough(int32_t row) const {
    const auto far = static_cast<int32_t>(int64_t{least} * near / (row < near ? near : row + 1));
    return far > least / fewest ? far : least / fewest;
  }
};

struct AgreementArgs {
  RowAgreement* const* states = nullptr;  // [batch]; null: rows choose for themselves alone
  const int32_t* positions = nullptr;     // [batch]; negative: no row
  uint32_t batch = 0;
  MiddleKeys middle;
  const uint32_t* leaders = nullptr;  // [batch, n_head] as TopKeysArgs; null: no head led
  uint32_t n_head = 0;
  AgreementRules rules;
};

/// Finds the regions of a layer from the votes before it, and notes the layer's own.
cudaError_t find_agreement(const AgreementArgs& args, cudaStream_t stream);
/// Forgets rows from length on.
cudaError_t forget_agreement(RowAgreement* state, int32_t length, cudaStream_t stream);

}  // namespace reprise::kernels::cuda
