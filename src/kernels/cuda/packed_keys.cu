#include "kernels/cuda/kept_tokens.cuh"
#include "kernels/cuda/packed_keys.h"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kWarps = 8, kThreads = 256;

// A warp per key and KV head.
__global__ void __launch_bounds__(kWarps * 32) pack_kernel(const __grid_constant__ PackKeysArgs a) {
  const uint32_t key = a.first + blockIdx.x * kWarps + threadIdx.x / 32, head = blockIdx.y;
  if (key >= a.end) return;
  const auto position = static_cast<uint32_t>(a.positions[key]);
  TokenCopy token;
  token.load(a.kv, head, {a.pages[position / kPageTokens], position % kPageTokens});
  token.store(a.kv, head, {a.packed_pages[key / kPageTokens], key % kPageTokens});
}

// A row of blocks per table.
__global__ void __launch_bounds__(kThreads)
    tables_kernel(const __grid_constant__ PackedTablesArgs a) {
  const PackedTable table = a.tables[blockIdx.y];
  const uint32_t entry = blockIdx.x * kThreads + threadIdx.x;
  if (entry >= table.packed + a.pages_end - table.first) return;
  a.out[size_t{blockIdx.y} * a.capacity + entry] =
      entry < table.packed ? a.packed_pages[entry] : a.pages[table.first + entry - table.packed];
}

}  // namespace

cudaError_t pack_keys(const PackKeysArgs& args, cudaStream_t stream) {
  if (args.first >= args.end) return cudaSuccess;
  const uint32_t blocks = (args.end - args.first + kWarps - 1) / kWarps;
  pack_kernel<<<dim3(blocks, args.kv.n_kv_head), kWarps * 32, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t packed_tables(const PackedTablesArgs& args, cudaStream_t stream) {
  if (args.count == 0) return cudaSuccess;
  const uint32_t blocks = (args.capacity + kThreads - 1) / kThreads;
  tables_kernel<<<dim3(blocks, args.count), kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace reprise::kernels::cuda
