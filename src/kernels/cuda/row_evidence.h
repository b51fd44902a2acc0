// How many heads stood out at a sequence's last rows, on the device, where heads that scan keys
// decide by it whether they read what does not stand out (methods/reattention/gate.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace reprise::kernels::cuda {

/// Of a sequence. The layers of a row take turns: one reads the sum of those before it, adds to the
/// next one's, and clears the one after that.
struct RowEvidence {
  static constexpr int32_t kRows = 4096;  // rows that may be cut off until older ones are missed

  int32_t row = -1;             // the last one
  uint32_t sums[3] = {};        // heads of the layers before the one whose turn it is, modulo 3
  float past = 0.0f;            // sum over the rows before it, weighted
  uint32_t rows = 0, open = 0;  // layers of rows that were decided, and how many of them looked far
  uint16_t heads[kRows] = {};   // of rows (row - kRows, row), each at its position modulo kRows
};

/// What the scan of a layer needs of it.
struct EvidenceArgs {
  RowEvidence* const* states = nullptr;  // [batch]; null: heads decide for themselves
  uint32_t turn = 0;                     // of the layer: 0, 1, ...
  float open = 0.0f;                     // weighted sum from which on all heads look far
};

struct EvidenceRules {
  uint32_t turns = 1;   // layers of a row that have one
  float fade = 0.9f;    // weight of a row beside the next one
  int32_t reach = 128;  // rows that count, at most kRows
};

/// Before the first layer of rows. positions: [batch], behind the last rows'; negative: no row.
/// Rows between count as rows at which no head stood out.
cudaError_t begin_evidence(RowEvidence* const* states, const int32_t* positions, uint32_t batch,
                           const EvidenceRules& rules, cudaStream_t stream);
/// Forgets rows from length on.
cudaError_t forget_evidence(RowEvidence* state, int32_t length, const EvidenceRules& rules,
                            cudaStream_t stream);

}  // namespace reprise::kernels::cuda
