// What layers of a sequence found when they last scanned its keys, on the device, where decoded
// rows share scans (ReAttentionPolicy::keeps_spans()). Rows of prompts all scan.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/top_keys.h"

namespace reprise::kernels::cuda {

/// Of a sequence: for each layer the row that scanned + 1, where its prompt ended, how many keys it
/// voted for, these as in VoteTables (keys, votes, best), and what its heads found. Zero: it never
/// scanned.
struct KeptShape {
  uint32_t layers = 0;
  uint32_t votes = 0;  // keys that a row votes for, at most
  uint32_t heads = 0;  // of which VoteTables do not tell what they found

  REPRISE_HOST_DEVICE constexpr size_t layer_words() const { return 3 + 3 * size_t{votes} + heads; }
  constexpr size_t words() const { return layers * layer_words(); }
};

struct KeptScansArgs {
  uint32_t* const* states = nullptr;  // [batch] KeptShape::words() each; null: nothing is kept
  KeptShape shape;
  uint32_t layer = 0;
  int32_t rows = 1;                      // that share a scan, layers in turns
  const int32_t* prompt_ends = nullptr;  // [batch]
  int32_t* scanning = nullptr;           // [batch] positions of rows that scan, negative: of others
  uint32_t* leaders = nullptr;           // [batch, shape.heads] as TopKeysArgs
};

/// Says which of the rows at positions (negative: none) scan, and has the others vote as when their
/// layer last did. votes: empty.
cudaError_t begin_scans(const KeptScansArgs& args, const int32_t* positions, uint32_t batch,
                        const MiddleKeys& middle, const VoteTables& votes, cudaStream_t stream);
/// Forgets rows from length on.
cudaError_t forget_scans(uint32_t* state, const KeptShape& shape, int32_t length,
                         cudaStream_t stream);

}  // namespace reprise::kernels::cuda
