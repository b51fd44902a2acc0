// Which pages are read: the best by their scores.
#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/top_pages.cuh"

namespace reprise::kernels::cuda {
namespace {

__global__ __launch_bounds__(top::kThreads) void top_kernel(
    const __grid_constant__ TopPagesArgs a) {
  __shared__ __align__(16) top::Shared s;
  allow_next_kernel();
  top::choose_list(top::of_layer(a, blockIdx.y), blockIdx.x, s);
  wait_for_kernels_before();  // those that wrote nothing
}

}  // namespace

cudaError_t top_pages(const TopPagesArgs& args, cudaStream_t stream) {
  const PageRows& rows = args.rows;
  if (rows.count == 0 || args.n_kv_head == 0) return cudaSuccess;
  const uint32_t most = args.whole ? rows.capacity : rows.budget_pages;
  const bool fits = rows.budget_pages > 0 && args.list_capacity >= std::min(most, rows.capacity);
  if (!fits) return cudaErrorInvalidValue;
  return launch_overlapped(top_kernel, dim3(rows.count * args.n_kv_head, args.layers),
                           top::kThreads, stream, args);
}

}  // namespace reprise::kernels::cuda
