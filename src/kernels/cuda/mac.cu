#include "kernels/cuda/kv_dispatch.cuh"
#include "kernels/cuda/mac_room.cuh"

namespace reprise::kernels::cuda {

size_t mac_workspace(const MacRules& rules, uint32_t max_batch, uint32_t n_head, uint32_t n_kv_head,
                     uint32_t head_dim) {
  const uint32_t group = n_head / n_kv_head;
  const mac::ChunkCounts chunks(rules, mac::least_warps(head_dim));
  const mac::Room room(max_batch * n_kv_head, group, chunks.fresh + chunks.near);
  return room.bytes(head_dim);
}

cudaError_t mac_decode(const MacArgs& args, cudaStream_t stream) {
  using namespace mac;
  if (args.batch == 0) return cudaSuccess;
  const uint32_t group = args.n_head / args.kv.n_kv_head;
  if (group > kMaxGroup || args.batch * args.kv.n_kv_head > kMaxPairs) return cudaErrorNotSupported;
  return with_kv_type(args.kv.type,
                      [&](auto type) { return decode_with<type.value>(args, stream); });
}

}  // namespace reprise::kernels::cuda
