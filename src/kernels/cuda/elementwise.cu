// Every kernel may begin while the one before it still runs, and lets the next one begin.
#include "kernels/cuda/dequantize.cuh"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/row_math.cuh"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kThreads = 256, kMaxRowThreads = 1024;

uint32_t divide_up(size_t a, size_t b) { return static_cast<uint32_t>((a + b - 1) / b); }

__device__ float4 times(float4 v, float scale) {
  return {v.x * scale, v.y * scale, v.z * scale, v.w * scale};
}

// Blocks (row, part of its pieces).
__global__ __launch_bounds__(kThreads) void embed_kernel(const __grid_constant__ DeviceWeights w,
                                                         const int32_t* tokens, float scale,
                                                         float* x) {
  wait_for_kernels_before();
  allow_next_kernel();  // what layers launch begins when what is older than a pass is there
  const int32_t token = tokens[blockIdx.x];
  float* row = x + size_t{blockIdx.x} * w.cols;
  const uint32_t first = blockIdx.y * kThreads + threadIdx.x, step = gridDim.y * kThreads;
  if (token < 0 || static_cast<uint32_t>(token) >= w.rows) {
    for (uint32_t column = first; column < w.cols; column += step) row[column] = 0.0f;
    return;
  }
  const auto put = [&](uint32_t column, float4 v) {
    if (w.cols % 4 == 0) {
      store_four<true>(row, column, w.cols, times(v, scale));
    } else {
      store_four<false>(row, column, w.cols, times(v, scale));
    }
  };
  with_format(w.type, [&](auto format) {
    for (uint32_t index = first; index < w.chunks * 4; index += step) {
      dequantize_piece<decltype(format)>(w, static_cast<uint32_t>(token), index, put);
    }
  });
}

// A block's row, four columns of each of kFours strips in a thread.
template <bool aligned, int kFours>
struct Row {
  float4 v[kFours];

  static __device__ uint32_t column(int i) { return (i * blockDim.x + threadIdx.x) * 4; }

  __device__ void load(const float* row, uint32_t n) {
#pragma unroll
    for (int i = 0; i < kFours; ++i) v[i] = load_four<aligned>(row, column(i), n);
  }
  // A weight of every column; null: 1.
  __device__ void load_weight(const float* weight, uint32_t n) {
    if (weight != nullptr) return load(weight, n);
    for (float4& four : v) four = {1.0f, 1.0f, 1.0f, 1.0f};
  }
  __device__ void normalize(const Row& weight, float eps, uint32_t n) {
    float squares = 0.0f;
#pragma unroll
    for (const float4& x : v) squares += (x.x * x.x + x.y * x.y) + (x.z * x.z + x.w * x.w);
    const float inverse = 1.0f / sqrtf(block_sum(squares) / static_cast<float>(n) + eps);
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const float4 x = times(v[i], inverse), w = weight.v[i];
      v[i] = {x.x * w.x, x.y * w.y, x.z * w.z, x.w * w.w};
    }
  }
};

// A block per row.
template <bool aligned, int kFours>
__global__ __launch_bounds__(kMaxRowThreads) void rms_norm_kernel(const float* x,
                                                                  const float* weight, float eps,
                                                                  uint32_t n, __nv_bfloat16* out) {
  allow_next_kernel();
  Row<aligned, kFours> factors, row;
  factors.load_weight(weight, n);
  wait_for_kernels_before();
  row.load(x + size_t{blockIdx.x} * n, n);
  row.normalize(factors, eps, n);
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    store_four<aligned>(out + size_t{blockIdx.x} * n, row.column(i), n, row.v[i]);
  }
}

template <bool aligned, int kFours>
__global__ __launch_bounds__(kMaxRowThreads) void add_rows_kernel(float* x, const float* h,
                                                                  const float* weight, float eps,
                                                                  float scale, uint32_t n) {
  allow_next_kernel();
  Row<aligned, kFours> factors, row, sums;
  factors.load_weight(weight, n);
  wait_for_kernels_before();
  row.load(h + size_t{blockIdx.x} * n, n);
  x += size_t{blockIdx.x} * n;
  sums.load(x, n);
  if (weight != nullptr) row.normalize(factors, eps, n);
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    const float4 a = sums.v[i], b = times(row.v[i], scale);
    store_four<aligned>(x, row.column(i), n, float4{a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w});
  }
}

// Calls launch(constants of aligned and kFours, threads): the same for every number of rows, as are
// therefore a row's bits.
template <class Launch>
cudaError_t with_row_shape(uint32_t n, Launch&& launch) {
  const uint32_t fours = divide_up(n, 4);
  const auto shaped = [&](auto aligned) {
    const auto threads = [&](uint32_t strips) { return divide_up(fours, 32 * strips) * 32; };
    if (threads(2) <= kMaxRowThreads / 2) {  // two blocks of a multiprocessor at least
      return launch(aligned, std::integral_constant<int, 2>{}, threads(2));
    }
    if (threads(4) <= kMaxRowThreads) {
      return launch(aligned, std::integral_constant<int, 4>{}, threads(4));
    }
    return cudaErrorNotSupported;
  };
  return n % 4 == 0 ? shaped(std::true_type{}) : shaped(std::false_type{});
}

__device__ uint32_t gated_pair(uint32_t gate, uint32_t up, Activation activation) {
  return pack<__nv_bfloat16>(activate(low_float(gate), activation) * low_float(up),
                             activate(high_float(gate), activation) * high_float(up));
}

// Eight values of a thread.
__global__ __launch_bounds__(kThreads) void gated_activation_kernel(const __nv_bfloat16* gate,
                                                                    const __nv_bfloat16* up,
                                                                    Activation activation,
                                                                    size_t count,
                                                                    __nv_bfloat16* out) {
  allow_next_kernel();
  wait_for_kernels_before();
  const size_t first = (size_t{blockIdx.x} * kThreads + threadIdx.x) * 8;
  if (first + 8 <= count) {
    const uint4 g = *reinterpret_cast<const uint4*>(gate + first);
    const uint4 u = *reinterpret_cast<const uint4*>(up + first);
    *reinterpret_cast<uint4*>(out + first) = {
        gated_pair(g.x, u.x, activation), gated_pair(g.y, u.y, activation),
        gated_pair(g.z, u.z, activation), gated_pair(g.w, u.w, activation)};
    return;
  }
  for (size_t i = first; i < count; ++i) {
    const float value = activate(__bfloat162float(gate[i]), activation);
    out[i] = __float2bfloat16_rn(value * __bfloat162float(up[i]));
  }
}

// Eight values of a thread.
__global__ __launch_bounds__(kThreads) void round_kernel(const float* x, size_t count,
                                                         __nv_bfloat16* out) {
  allow_next_kernel();
  wait_for_kernels_before();
  const size_t first = (size_t{blockIdx.x} * kThreads + threadIdx.x) * 8;
  if (first + 8 <= count) {
    const float4 a = *reinterpret_cast<const float4*>(x + first);
    const float4 b = *reinterpret_cast<const float4*>(x + first + 4);
    *reinterpret_cast<uint4*>(out + first) = {
        pack<__nv_bfloat16>(a.x, a.y), pack<__nv_bfloat16>(a.z, a.w), pack<__nv_bfloat16>(b.x, b.y),
        pack<__nv_bfloat16>(b.z, b.w)};
    return;
  }
  for (size_t i = first; i < count; ++i) out[i] = __float2bfloat16_rn(x[i]);
}

// Blocks (index, part of the row).
template <bool aligned, typename T>
__global__ __launch_bounds__(kThreads) void gather_kernel(const T* x, const uint32_t* indices,
                                                          uint32_t n, float* out) {
  allow_next_kernel();
  wait_for_kernels_before();
  const uint32_t column = (blockIdx.y * kThreads + threadIdx.x) * 4;
  const T* from = x + size_t{indices[blockIdx.x]} * n;
  store_four<aligned>(out + size_t{blockIdx.x} * n, column, n, load_four<aligned>(from, column, n));
}

template <typename T>
cudaError_t launch_gather(const T* x, const uint32_t* indices, uint32_t count, uint32_t n,
                          float* out, cudaStream_t stream) {
  if (count == 0 || n == 0) return cudaSuccess;
  return launch_overlapped(n % 4 == 0 ? gather_kernel<true, T> : gather_kernel<false, T>,
                           dim3(count, divide_up(n, 4 * kThreads)), kThreads, stream, x, indices, n,
                           out);
}

__device__ float capped(float x, float scale, float cap) {
  x *= scale;
  return cap == 0.0f ? x : cap * tanhf(x / cap);
}

// Four values of a thread.
__global__ __launch_bounds__(kThreads) void scale_and_cap_kernel(float* x, size_t count,
                                                                 float scale, float cap) {
  allow_next_kernel();
  wait_for_kernels_before();
  const size_t first = (size_t{blockIdx.x} * kThreads + threadIdx.x) * 4;
  if (first + 4 <= count) {
    auto* four = reinterpret_cast<float4*>(x + first);
    const float4 v = *four;
    *four = {capped(v.x, scale, cap), capped(v.y, scale, cap), capped(v.z, scale, cap),
             capped(v.w, scale, cap)};
    return;
  }
  for (size_t i = first; i < count; ++i) x[i] = capped(x[i], scale, cap);
}

}  // namespace

cudaError_t embed(const DeviceMatrix& table, const int32_t* tokens, uint32_t rows, float scale,
                  float* x, cudaStream_t stream) {
  if (rows == 0 || table.cols() == 0) return cudaSuccess;
  const dim3 grid(rows, divide_up(table.weights().chunks * 4, kThreads));
  return launch_overlapped(embed_kernel, grid, kThreads, stream, table.weights(), tokens, scale, x);
}

cudaError_t rms_norm(const float* x, const float* weight, float eps, uint32_t rows, uint32_t n,
                     __nv_bfloat16* out, cudaStream_t stream) {
  if (rows == 0 || n == 0) return cudaSuccess;
  return with_row_shape(n, [&](auto aligned, auto fours, uint32_t threads) {
    return launch_overlapped(rms_norm_kernel<aligned.value, fours.value>, dim3(rows), threads,
                             stream, x, weight, eps, n, out);
  });
}

cudaError_t add_rows(float* x, const float* h, const float* weight, float eps, float scale,
                     uint32_t rows, uint32_t n, cudaStream_t stream) {
  if (rows == 0 || n == 0) return cudaSuccess;
  return with_row_shape(n, [&](auto aligned, auto fours, uint32_t threads) {
    return launch_overlapped(add_rows_kernel<aligned.value, fours.value>, dim3(rows), threads,
                             stream, x, h, weight, eps, scale, n);
  });
}

cudaError_t round_to_bf16(const float* x, size_t count, __nv_bfloat16* out, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return launch_overlapped(round_kernel, dim3(divide_up(count, 8 * kThreads)), kThreads, stream, x,
                           count, out);
}

cudaError_t gated_activation(const __nv_bfloat16* gate, const __nv_bfloat16* up,
                             Activation activation, uint32_t rows, uint32_t n, __nv_bfloat16* out,
                             cudaStream_t stream) {
  const size_t count = size_t{rows} * n;
  if (count == 0) return cudaSuccess;
  return launch_overlapped(gated_activation_kernel, dim3(divide_up(count, 8 * kThreads)), kThreads,
                           stream, gate, up, activation, count, out);
}

cudaError_t gather_rows(const float* x, const uint32_t* indices, uint32_t count, uint32_t n,
                        float* out, cudaStream_t stream) {
  return launch_gather(x, indices, count, n, out, stream);
}

cudaError_t gather_rows(const __nv_bfloat16* x, const uint32_t* indices, uint32_t count, uint32_t n,
                        float* out, cudaStream_t stream) {
  return launch_gather(x, indices, count, n, out, stream);
}

cudaError_t scale_and_cap(float* x, size_t count, float scale, float cap, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return launch_overlapped(scale_and_cap_kernel, dim3(divide_up(count, 4 * kThreads)), kThreads,
                           stream, x, count, scale, cap);
}

}  // namespace reprise::kernels::cuda
