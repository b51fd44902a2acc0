// Which pages are read: the best by their scores.
#include <algorithm>

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/page_scorer.cuh"
#include "kernels/cuda/top_pages.cuh"

namespace reprise::kernels::cuda {
namespace {

__global__ __launch_bounds__(top::kThreads) void top_kernel(
    const __grid_constant__ TopPagesArgs a) {
  __shared__ __align__(16) top::Shared s;
  allow_next_kernel();
  wait_for_kernels_before();
  top::choose_list(top::of_layer(a, blockIdx.y), blockIdx.x, s);
}

// Scores and chooses. So many warps need few loads each on their way.
template <uint32_t D>
__global__ __launch_bounds__(top::kThreads) void choose_kernel(
    const __grid_constant__ PageScoreArgs score, const __grid_constant__ TopPagesArgs a) {
  __shared__ __align__(16) top::Shared s;
  allow_next_kernel();
  wait_for_kernels_before();
  const uint32_t row = blockIdx.x / a.n_kv_head, head = blockIdx.x % a.n_kv_head;
  if (chooses(a.rows, row)) {
    score_some_pages<D, 1, 1>(score, row, head, threadIdx.x / 32 * kPageTokens,
                              top::kWarps * kPageTokens);
    __syncthreads();
  }
  top::choose_list(a, blockIdx.x, s);
}

cudaError_t check(const TopPagesArgs& args) {
  const PageRows& rows = args.rows;
  const uint32_t most = args.whole ? rows.capacity : rows.budget_pages;
  const bool fits = rows.budget_pages > 0 && args.list_capacity >= std::min(most, rows.capacity);
  return fits ? cudaSuccess : cudaErrorInvalidValue;
}

template <uint32_t D>
cudaError_t launch_choose(const PageScoreArgs& score, const TopPagesArgs& args,
                          cudaStream_t stream) {
  return launch_overlapped(choose_kernel<D>, dim3(args.rows.count * args.n_kv_head), top::kThreads,
                           stream, score, args);
}

}  // namespace

cudaError_t top_pages(const TopPagesArgs& args, cudaStream_t stream) {
  if (args.rows.count == 0 || args.n_kv_head == 0) return cudaSuccess;
  if (const cudaError_t error = check(args); error != cudaSuccess) return error;
  return launch_overlapped(top_kernel, dim3(args.rows.count * args.n_kv_head, args.layers),
                           top::kThreads, stream, args);
}

cudaError_t choose_pages(const PageScoreArgs& score, const TopPagesArgs& args,
                         cudaStream_t stream) {
  if (args.rows.count == 0 || args.n_kv_head == 0) return cudaSuccess;
  if (const cudaError_t error = check(args); error != cudaSuccess) return error;
  // One multiprocessor reads a list's bounds in less time than a launch takes.
  constexpr uint32_t kFewDims = 1 << 16;
  const bool is_short = args.rows.capacity * uint64_t{score.head_dim} <= kFewDims;
  if (is_short && score.n_head <= 8 * score.n_kv_head) {
    if (score.head_dim == 64) return launch_choose<64>(score, args, stream);
    if (score.head_dim == 96) return launch_choose<96>(score, args, stream);
    if (score.head_dim == 128) return launch_choose<128>(score, args, stream);
  }
  const cudaError_t error = score_pages(score, stream);
  return error != cudaSuccess ? error : top_pages(args, stream);
}

}  // namespace reprise::kernels::cuda
