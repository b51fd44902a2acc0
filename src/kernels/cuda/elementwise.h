// Row-wise operations of the model graph on a CUDA device; contracts as in kernels/ops.h. Rows are
// [rows, n] without gaps; every pointer is of the device, 16-byte aligned. One launch each, which
// may be captured and begins, but for what it needs, while the kernel before it still runs
// (programmatic dependent launch). A row's bits do not depend on the number of rows.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/device_matrix.h"
#include "kernels/ops.h"

namespace reprise::kernels::cuda {

/// x [rows, table.cols()] = scale times the table's rows of the tokens (what unpack_row gives).
/// Tokens outside the table give zeros. What is launched to overlap after it begins when all before
/// it has ended.
cudaError_t embed(const DeviceMatrix& table, const int32_t* tokens, uint32_t rows, float scale,
                  float* x, cudaStream_t stream);

/// out = rms_norm(x) * weight, rounded to bf16; weight may be null. cudaErrorNotSupported: n above
/// 16384.
cudaError_t rms_norm(const float* x, const float* weight, float eps, uint32_t rows, uint32_t n,
                     __nv_bfloat16* out, cudaStream_t stream);

/// x += scale * h, or scale * rms_norm(h) * weight where weight is not null. As rms_norm().
cudaError_t add_rows(float* x, const float* h, const float* weight, float eps, float scale,
                     uint32_t rows, uint32_t n, cudaStream_t stream);

/// out = x, rounded.
cudaError_t round_to_bf16(const float* x, size_t count, __nv_bfloat16* out, cudaStream_t stream);

/// out = activation(gate) * up. In place allowed.
cudaError_t gated_activation(const __nv_bfloat16* gate, const __nv_bfloat16* up,
                             Activation activation, uint32_t rows, uint32_t n, __nv_bfloat16* out,
                             cudaStream_t stream);

/// out[i] = x[indices[i]], rows of n.
cudaError_t gather_rows(const float* x, const uint32_t* indices, uint32_t count, uint32_t n,
                        float* out, cudaStream_t stream);
cudaError_t gather_rows(const __nv_bfloat16* x, const uint32_t* indices, uint32_t count, uint32_t n,
                        float* out, cudaStream_t stream);

/// x = cap tanh(scale x / cap), or scale x where cap is 0.
cudaError_t scale_and_cap(float* x, size_t count, float scale, float cap, cudaStream_t stream);

}  // namespace reprise::kernels::cuda
