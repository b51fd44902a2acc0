#include "kernels/cuda/kv_dispatch.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/paged_decode_params.cuh"

namespace reprise::kernels::cuda {
namespace {

using namespace decode;

// Partial results: two of each block, two blocks of a multiprocessor.
constexpr size_t kMaxRows = 4;

}  // namespace

size_t paged_decode_workspace(uint32_t max_batch, uint32_t n_head, uint32_t n_kv_head,
                              uint32_t head_dim) {
  const size_t rows = kMaxRows * device_limits().multiprocessors * (n_head / n_kv_head);
  return rows * (head_dim + 2) * sizeof(float) + size_t{max_batch} * n_kv_head * sizeof(uint32_t);
}

cudaError_t paged_decode(const PagedDecodeArgs& args, cudaStream_t stream) {
  if (args.batch == 0) return cudaSuccess;
  Params params;
  params.pages = static_cast<const unsigned char*>(args.kv.pages);
  params.lists = args.lists;
  params.angles = args.angles;
  params.n_kv_head = args.kv.n_kv_head;
  params.pairs = args.batch * args.kv.n_kv_head;
  params.group = args.n_head / args.kv.n_kv_head;
  params.q = args.q;
  params.q_capped = args.q_capped;
  params.capped_pages = args.capped_pages;
  params.scale = args.scale;
  params.soft_cap = args.soft_cap;
  params.known_pages = args.known_pages;
  params.page_logs = args.page_logs;
  params.page_peaks = args.page_peaks;
  params.out = args.out;
  params.lse = args.lse;
  const size_t rows = kMaxRows * device_limits().multiprocessors * params.group;
  params.part_sums = static_cast<float*>(args.workspace);
  params.part_base = params.part_sums + rows * args.kv.head_dim;
  params.part_total = params.part_base + rows;
  params.arrivals = reinterpret_cast<uint32_t*>(params.part_total + rows);
  return with_kv_type(args.kv.type, [&](auto type) {
    return attend_with<type.value>(params, args.kv.head_dim, stream);
  });
}

}  // namespace reprise::kernels::cuda
