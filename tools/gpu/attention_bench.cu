// The decode attention kernel as a C function, for attention_bench.py.
#include "kernels/cuda/paged_decode.h"

using namespace reprise::kernels::cuda;

extern "C" size_t bench_workspace(uint32_t batch, uint32_t n_head, uint32_t n_kv_head,
                                  uint32_t head_dim) {
  return paged_decode_workspace(batch, n_head, n_kv_head, head_dim);
}

// Every sequence has `keys` tokens; pages [batch, capacity]. Returns a cudaError_t.
extern "C" int bench_paged_decode(const void* kv, uint32_t n_head, uint32_t n_kv_head,
                                  uint32_t head_dim, const uint32_t* pages, const int32_t* keys,
                                  uint32_t capacity, uint32_t batch, const void* q, float scale,
                                  float* out, float* lse, void* workspace, cudaStream_t stream) {
  PagedDecodeArgs args;
  args.kv = {kv, KvType::kBF16, n_kv_head, head_dim};
  args.lists = {pages, nullptr, keys, 1, capacity};
  args.batch = batch;
  args.n_head = n_head;
  args.q = q;
  args.scale = scale;
  args.out = out;
  args.lse = lse;
  args.workspace = workspace;
  return paged_decode(args, stream);
}
