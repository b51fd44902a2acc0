// Decode-time products y = W x of up to three matrices that share x, with the operations around
// them, in one launch.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/device_matrix.h"
#include "kernels/ops.h"

namespace reprise::kernels::cuda {

inline constexpr uint32_t kMatvecBatch = 8, kMatvecProjections = 3;

/// Rows of f32. Fastest where cols and stride are multiples of 4 and pointers of 16 bytes.
struct MatvecInput {
  const float* x = nullptr;  // [batch, stride]
  size_t stride = 0;
  const float* norm_weight = nullptr;  // [cols]: the input is rms_norm(x, norm_weight, norm_eps)
  float norm_eps = 0.0f;
  const float* up = nullptr;  // [batch, stride]: the input is activation(x) * up
  Activation activation = Activation::kSilu;
};

/// Like kernels::Projection.
struct MatvecProjection {
  const DeviceMatrix* weight = nullptr;  // [n, cols]
  float* out = nullptr;                  // [batch, out_stride], first n columns written
  size_t out_stride = 0;
  const float* bias = nullptr;  // [n] or null
  bool accumulate = false;      // add to out
};

struct MatvecArgs {
  MatvecInput input;
  MatvecProjection projections[kMatvecProjections];  // outputs overlap no input
  uint32_t count = 1;
  uint32_t batch = 1;
  // May begin, fetching weights, while what is before it in the stream still runs (programmatic
  // dependent launch).
  bool overlap = false;
  // Blocks keep apart: for a launch that begins while what is before it leaves one multiprocessor
  // after the other, the first of which they would crowd.
  bool apart = false;
};

/// out = x W^T + bias for every projection. x is rounded to 16 bits of mantissa (not for F32
/// weights), or with quantised weights to 16 bits with one scale per 32 columns, as on the CPU;
/// sums are in float. A row's bits do not depend on the rows beside it; alone it may get others
/// (4-bit weights without minima: sums are added in another order). Compute capability 9.0.
/// cudaErrorInvalidValue: batch not 1 to 8, shapes differ, both norm and activation;
/// cudaErrorNotSupported: rows too long, see fits_matvec().
cudaError_t matvec(const MatvecArgs& args, cudaStream_t stream);

/// Whether rows of the args' weights are short enough for any batch: of about 32000 columns at
/// most, quantised ones of 46000. Nothing else of args is looked at.
bool fits_matvec(MatvecArgs args);

}  // namespace reprise::kernels::cuda
