// When a search has served its time: queries against those that it was for. A block has a row.
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/key_codes.h"
#include "kernels/cuda/launch.cuh"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kThreads = 512, kWarps = kThreads / 32;

// Sums of a head's products, in all lanes of the warp.
struct Products {
  float both = 0.0f, now = 0.0f, then = 0.0f;

  __device__ Products(const __nv_bfloat16* q, const __nv_bfloat16* before, uint32_t dim) {
    for (uint32_t d = threadIdx.x % 32 * 2; d < dim; d += 64) {
      const float2 a = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(q + d));
      const float2 b = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(before + d));
      both += a.x * b.x + a.y * b.y;
      now += a.x * a.x + a.y * a.y;
      then += b.x * b.x + b.y * b.y;
    }
    for (uint32_t step = 16; step > 0; step /= 2) {
      both += __shfl_xor_sync(~0u, both, step);
      now += __shfl_xor_sync(~0u, now, step);
      then += __shfl_xor_sync(~0u, then, step);
    }
  }
};

__global__ __launch_bounds__(kThreads) void compare_kernel(
    const __grid_constant__ CodeSearchArgs a) {
  allow_next_kernel();
  wait_for_kernels_before();
  const uint32_t row = blockIdx.x, dim = a.rows.shape.head_dim, size = a.n_head * dim;
  const CodedRow& own = a.rows.rows[row];
  const CodeRange range = code_range(a.rows.rules, a.model_layer, a.rows.positions[row]);
  if (own.book == nullptr || a.layer >= own.ready || !range.chooses ||
      !a.rows.has_in_table(range)) {
    return;
  }
  const __nv_bfloat16* q = a.q + size_t{row} * size;
  __nv_bfloat16* before = own.queries + size_t{a.layer} * size;
  bool turned = false;
  for (uint32_t head = threadIdx.x / 32; a.due[row] == 0 && head < a.n_head; head += kWarps) {
    const Products products(q + head * dim, before + head * dim, dim);
    const float least = a.rows.rules.cosine * sqrtf(products.now * products.then);
    turned = turned || !(products.both >= least);
  }
  // Behind this nobody looks at what is written.
  if (!__syncthreads_or(turned || a.due[row] != 0)) return;
  for (uint32_t i = threadIdx.x; i < size; i += kThreads) before[i] = q[i];
  if (threadIdx.x == 0) a.due[row] = 1;
}

__global__ void forget_kernel(int32_t* searched, uint32_t layers, int32_t length) {
  for (uint32_t i = threadIdx.x; i < layers; i += blockDim.x) {
    if (searched[i] > length) searched[i] = 0;
  }
}

}  // namespace

cudaError_t compare_queries(const CodeSearchArgs& args, cudaStream_t stream) {
  if (args.rows.count == 0) return cudaSuccess;
  return launch_overlapped(compare_kernel, dim3(args.rows.count), kThreads, stream, args);
}

cudaError_t forget_searches(int32_t* searched, uint32_t layers, int32_t length,
                            cudaStream_t stream) {
  forget_kernel<<<1, 128, 0, stream>>>(searched, layers, length);
  return cudaGetLastError();
}

}  // namespace reprise::kernels::cuda
