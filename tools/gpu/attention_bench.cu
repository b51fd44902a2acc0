// The attention kernels as C functions, for attention_bench.py. They return a cudaError_t.
#include "kernels/cuda/paged_decode.h"
#include "kernels/cuda/paged_prefill.h"

using namespace reprise::kernels::cuda;

extern "C" size_t bench_workspace(uint32_t batch, uint32_t n_head, uint32_t n_kv_head,
                                  uint32_t head_dim) {
  return paged_decode_workspace(batch, n_head, n_kv_head, head_dim);
}

// fp8: pages hold e4m3 codes, else bf16. pages [batch, capacity], keys [batch].
extern "C" int bench_paged_decode(const void* kv, bool fp8, uint32_t n_head, uint32_t n_kv_head,
                                  uint32_t head_dim, const uint32_t* pages, const int32_t* keys,
                                  uint32_t capacity, uint32_t batch, const void* q, float scale,
                                  float* out, float* lse, void* workspace, cudaStream_t stream) {
  PagedDecodeArgs args;
  args.kv = {kv, fp8 ? KvType::kFP8 : KvType::kBF16, n_kv_head, head_dim};
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

// Rows 0 to rows - 1 of one sequence; sequences: device memory of a PrefillRows.
extern "C" int bench_paged_prefill(const void* kv, bool fp8, uint32_t n_head, uint32_t n_kv_head,
                                   uint32_t head_dim, const void* sequences, const uint32_t* pages,
                                   uint32_t rows, const void* q, float scale, void* out, float* lse,
                                   void* workspace, cudaStream_t stream) {
  PagedPrefillArgs args;
  args.kv = {kv, fp8 ? KvType::kFP8 : KvType::kBF16, n_kv_head, head_dim};
  args.sequences = static_cast<const PrefillRows*>(sequences);
  args.pages = pages;
  args.batch = 1;
  args.capacity = (rows + kPageTokens - 1) / kPageTokens;
  args.n_head = n_head;
  args.rows = rows;
  args.q = q;
  args.scale = scale;
  args.out = out;
  args.lse = lse;
  args.workspace = workspace;
  return paged_prefill(args, stream);
}
