// The two ways of computing a forward pass.
#pragma once

namespace reprise::kernels {

/// Numerics are chosen by phase and never by the number of rows, so that a row's result depends
/// neither on the batch it is computed in nor on the thread count.
enum class Phase { kDecode, kPrefill };

}  // namespace reprise::kernels
