// A decode step of H2O. A block per row and KV head.
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/kept_tokens.cuh"
#include "kernels/cuda/kv_dispatch.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/page_keys.cuh"
#include "kernels/cuda/top_pages.cuh"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kWarps = 16, kThreads = kWarps * 32, kMaxGroup = 16;

struct Shared {
  float lse[kMaxGroup];  // in units of log2
  uint64_t lightest[kWarps];
};

// A row's keys of one KV head, before its own token makes another one leave the recent ones.
struct Step {
  KeptKeys keys;
  KeyWeight *side, *ring;
  int32_t* until;
  int32_t position;
  bool moves;  // false: the row was accounted for before

  __device__ Step(const H2oStepArgs& a, uint32_t row, uint32_t kv_head) {
    const KeptRow& own = a.rows[row];
    const size_t head = size_t{a.layer} * a.kv.n_kv_head + kv_head;
    const auto heavy = static_cast<int32_t>(a.heavy), recent = static_cast<int32_t>(a.recent);
    position = a.positions[row];
    side = own.weights + head * (a.heavy + a.recent + 1);
    ring = side + a.heavy;
    until = own.until + head;
    moves = *until <= position;
    keys.side_pages = a.side_pages + size_t{row} * a.side_capacity;
    keys.pages = a.pages + size_t{row} * a.capacity;
    keys.end = position + 1;
    keys.begin = max(0, keys.end - recent - (moves ? 1 : 0));
    keys.side = min(heavy, keys.begin);
  }
  // The token that leaves, if there is one.
  __device__ int32_t leaving(const H2oStepArgs& a) const {
    return position - static_cast<int32_t>(a.recent);
  }
  __device__ uint32_t side_pages() const {
    return (static_cast<uint32_t>(keys.side) + kPageTokens - 1) / kPageTokens;
  }
  __device__ uint32_t first_page() const { return static_cast<uint32_t>(keys.begin) / kPageTokens; }
  // Where the logit of a key stands: pages follow each other without gaps.
  __device__ uint32_t place(uint32_t key) const {
    const auto tokens = static_cast<uint32_t>(keys.side);
    if (key < tokens) return key;
    return side_pages() * kPageTokens + static_cast<uint32_t>(keys.begin) % kPageTokens + key -
           tokens;
  }
};

// logits [group, stride] of whole pages, in units of log2.
template <KvType type, uint32_t D>
__device__ void write_logits(const H2oStepArgs& a, const Step& step, uint32_t row, uint32_t kv_head,
                             float* logits, uint32_t stride) {
  const uint32_t group = a.n_head / a.kv.n_kv_head, lane = threadIdx.x % 32;
  const uint32_t last = static_cast<uint32_t>(step.position) / kPageTokens;
  const uint32_t pages = step.side_pages() + last - step.first_page() + 1;
  const __nv_bfloat16* queries = a.q + (size_t{row} * a.n_head + kv_head * group) * D;
  for (uint32_t start = 0; start < group; start += 8) {
    EightQueries<type, D> q;
    q.load(queries + min(start + EightQueries<type, D>::lane_query(), group - 1) * D);
    for (uint32_t unit = threadIdx.x / 32; unit < pages; unit += kWarps) {
      const bool is_side = unit < step.side_pages();
      const uint32_t id = is_side ? step.keys.side_pages[unit]
                                  : step.keys.pages[step.first_page() + unit - step.side_pages()];
      const TileKeys<type, D> keys(key_tile(a.kv, id, kv_head));
      float products[4];
      keys.multiply_by(q, products);
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t head = start + lane % 4 * 2 + i % 2;
        const uint32_t token = unit * kPageTokens + TileKeys<type, D>::lane_token(i / 2);
        if (head >= group) continue;
        logits[size_t{head} * stride + token] = scaled_logit(products[i], a.scale, a.soft_cap);
      }
    }
  }
}

// A warp per query head.
__device__ void sum_heads(const Step& step, uint32_t group, const float* logits, uint32_t stride,
                          Shared& s) {
  const uint32_t lane = threadIdx.x % 32, count = key_count(step.keys);
  for (uint32_t head = threadIdx.x / 32; head < group; head += kWarps) {
    const float* own = logits + size_t{head} * stride;
    float top = -INFINITY, total = 0.0f;
    for (uint32_t key = lane; key < count; key += 32) top = fmaxf(top, own[step.place(key)]);
    for (uint32_t mask = 1; mask < 32; mask *= 2) {
      top = fmaxf(top, __shfl_xor_sync(~0u, top, mask));
    }
    for (uint32_t key = lane; key < count; key += 32) {
      total += exp2_fast(own[step.place(key)] - top);
    }
    for (uint32_t mask = 1; mask < 32; mask *= 2) total += __shfl_xor_sync(~0u, total, mask);
    if (lane == 0) s.lse[head] = top + log2f(total);
  }
}

// Orders side slots and, after them, the token that leaves: the smallest is the lightest.
__device__ uint64_t rank(float score, uint32_t slot) {
  return uint64_t{top::order_key(score)} << 32 | (~0u - slot);
}

// Weighs every key anew; returns the rank of the lightest of this thread's.
__device__ uint64_t weigh(const H2oStepArgs& a, const Step& step, const float* logits,
                          uint32_t stride, const Shared& s) {
  const uint32_t group = a.n_head / a.kv.n_kv_head, count = key_count(step.keys);
  const auto side = static_cast<uint32_t>(step.keys.side);
  uint64_t lightest = ~uint64_t{0};
  for (uint32_t key = threadIdx.x; key < count; key += kThreads) {
    float mass = 0.0f;
    for (uint32_t head = 0; head < group; ++head) {
      mass += exp2_fast(logits[size_t{head} * stride + step.place(key)] - s.lse[head]);
    }
    const int32_t position = step.keys.begin + static_cast<int32_t>(key - side);
    const bool is_side = key < side;
    KeyWeight* weight =
        is_side ? step.side + key : step.ring + static_cast<uint32_t>(position) % (a.recent + 1);
    KeyWeight now = {mass, 1.0f};
    if (is_side || position < step.position) now = {weight->x + mass, weight->y + 1.0f};
    *weight = now;
    if (is_side || position == step.leaving(a)) {
      lightest = min(lightest, rank(weight_score(now, a.per_row), is_side ? key : a.heavy));
    }
  }
  return lightest;
}

__device__ void replace(const H2oStepArgs& a, const Step& step, uint32_t kv_head, Shared& s) {
  uint64_t lightest = s.lightest[0];
  for (uint32_t warp = 1; warp < kWarps; ++warp) lightest = min(lightest, s.lightest[warp]);
  const auto filled = static_cast<uint32_t>(step.keys.side);
  const uint32_t slot = filled < a.heavy ? filled : ~0u - static_cast<uint32_t>(lightest);
  const auto token = static_cast<uint32_t>(step.leaving(a));
  if (slot >= a.heavy || threadIdx.x >= 32) return;
  TokenCopy copy;
  copy.load(a.kv, kv_head, {step.keys.pages[token / kPageTokens], token % kPageTokens});
  copy.store(a.kv, kv_head, {step.keys.side_pages[slot / kPageTokens], slot % kPageTokens});
  if (threadIdx.x == 0) step.side[slot] = step.ring[token % (a.recent + 1)];
}

template <KvType type, uint32_t D>
__global__ __launch_bounds__(kThreads) void step_kernel(const __grid_constant__ H2oStepArgs a) {
  __shared__ Shared s;
  allow_next_kernel();
  wait_for_kernels_before();
  const uint32_t row = blockIdx.x / a.kv.n_kv_head, kv_head = blockIdx.x % a.kv.n_kv_head;
  const uint32_t group = a.n_head / a.kv.n_kv_head, stride = h2o_logits(a.heavy, a.recent);
  const Step step(a, row, kv_head);
  float* logits = a.logits + (size_t{row} * a.n_head + kv_head * group) * stride;
  write_logits<type, D>(a, step, row, kv_head, logits, stride);
  __syncthreads();
  sum_heads(step, group, logits, stride, s);
  __syncthreads();
  uint64_t lightest = weigh(a, step, logits, stride, s);
  for (uint32_t mask = 1; mask < 32; mask *= 2) {
    lightest = min(lightest, __shfl_xor_sync(~0u, lightest, mask));
  }
  if (threadIdx.x % 32 == 0) s.lightest[threadIdx.x / 32] = lightest;
  __syncthreads();
  if (step.moves && step.leaving(a) >= 0) replace(a, step, kv_head, s);
  if (threadIdx.x == 0 && step.moves) *step.until = step.position + 1;
}

}  // namespace

cudaError_t h2o_step(const H2oStepArgs& args, cudaStream_t stream) {
  if (args.count == 0) return cudaSuccess;
  const uint32_t group = args.n_head / args.kv.n_kv_head;
  if (group < 1 || group > kMaxGroup) return cudaErrorNotSupported;
  return with_kv_shape(args.kv.type, args.kv.head_dim, [&](auto type, auto dim) {
    return launch_overlapped(step_kernel<type, dim>, dim3(args.count * args.kv.n_kv_head), kThreads,
                             stream, args);
  });
}

}  // namespace reprise::kernels::cuda
