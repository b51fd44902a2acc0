#include "kernels/cuda/kept_tokens.cuh"
#include "kernels/cuda/top_pages.cuh"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kThreads = 256, kCopyWarps = 32;

uint32_t blocks(uint32_t count) { return (count + kThreads - 1) / kThreads; }

// A thread per key, a row of blocks per KV head.
__global__ void __launch_bounds__(kThreads) pool_kernel(const __grid_constant__ PoolVotesArgs a) {
  const uint32_t key = blockIdx.x * kThreads + threadIdx.x, group = a.n_head / a.n_kv_head;
  if (key >= a.keys) return;
  const uint32_t before = a.kernel / 2, after = a.kernel - before;
  const uint32_t first = key - min(key, before), last = min(a.keys, key + after);
  float joined = 0.0f;
  for (uint32_t head = blockIdx.y * group; head < (blockIdx.y + 1) * group; ++head) {
    const float* votes = a.votes + size_t{head} * a.stride;
    float pooled = 0.0f;  // no vote is negative
    for (uint32_t near = first; near < last; ++near) {
      pooled = a.average ? pooled + votes[near] : fmaxf(pooled, votes[near]);
    }
    if (a.average) pooled /= static_cast<float>(a.kernel);
    joined = a.largest_of_heads ? fmaxf(joined, pooled) : joined + pooled;
  }
  a.scores[size_t{blockIdx.y} * a.stride + key] = key < a.always ? INFINITY : joined;
}

// The same shape.
__global__ void __launch_bounds__(kThreads) add_kernel(const __grid_constant__ AddVotesArgs a) {
  const uint32_t key = blockIdx.x * kThreads + threadIdx.x, group = a.n_head / a.n_kv_head;
  if (key >= key_count(a.keys)) return;
  const auto side = static_cast<uint32_t>(a.keys.side);
  const bool is_side = key < side;
  const int32_t position = is_side ? -1 : a.keys.begin + static_cast<int32_t>(key - side);
  const KeyWeight* before = a.weights_before + size_t{blockIdx.y} * (a.side_tokens + a.ring);
  KeyWeight weight = {};
  if (is_side) weight = before[key];
  if (!is_side && position < a.known) {
    weight = before[a.side_tokens + static_cast<uint32_t>(position) % a.ring];
  }
  for (uint32_t head = blockIdx.y * group; head < (blockIdx.y + 1) * group; ++head) {
    weight.x += a.votes[size_t{head} * a.stride + key];
  }
  const int32_t seen_from = max(a.first, position), end = a.first + static_cast<int32_t>(a.rows);
  weight.y += static_cast<float>(max(0, end - seen_from));
  a.weights[size_t{blockIdx.y} * a.stride + key] = weight;
  a.scores[size_t{blockIdx.y} * a.stride + key] = weight_score(weight, a.per_row);
}

// A block per KV head.
__global__ void __launch_bounds__(top::kThreads)
    choose_kernel(const __grid_constant__ ChooseKeysArgs a) {
  __shared__ __align__(16) top::Shared s;
  uint32_t* kept = a.kept + size_t{blockIdx.x} * (a.chosen + a.tail);
  for (uint32_t i = threadIdx.x; i < a.tail; i += top::kThreads) {
    kept[a.chosen + i] = a.candidates + i;
  }
  if (a.chosen == a.candidates) {
    for (uint32_t i = threadIdx.x; i < a.chosen; i += top::kThreads) kept[i] = i;
  } else if (a.chosen > 0) {
    top::Competitors all(s, a.scores + size_t{blockIdx.x} * a.stride, 0, a.candidates);
    all.write(all.choose(a.chosen), [&](uint32_t at, uint32_t key) { kept[at] = key; });
  }
}

// A block per KV head. No token moves to a later slot, so what is read before a round of writes is
// all that they overwrite and later rounds do not need.
__global__ void __launch_bounds__(kCopyWarps * 32)
    compact_kernel(const __grid_constant__ CompactKeysArgs a) {
  const uint32_t head = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t* kept = a.kept + size_t{head} * a.count;
  const KeyWeight* weights = a.weights + size_t{head} * a.stride;
  KeyWeight* after = a.weights_after + size_t{head} * (a.side_tokens + a.ring);
  for (uint32_t start = 0; start < a.count; start += kCopyWarps) {
    const uint32_t slot = start + warp;
    TokenCopy token;
    if (slot < a.count) token.load(a.kv, head, place_of(a.keys, kept[slot]));
    __syncthreads();
    if (slot < a.count) {
      token.store(a.kv, head, {a.keys.side_pages[slot / kPageTokens], slot % kPageTokens});
      if (a.weights != nullptr && lane == 0) after[slot] = weights[kept[slot]];
    }
    __syncthreads();
  }
  if (a.weights == nullptr) return;
  if (threadIdx.x == 0) a.until[head] = a.keys.end;
  for (int32_t i = a.ring_begin + static_cast<int32_t>(threadIdx.x); i < a.keys.end;
       i += kCopyWarps * 32) {
    after[a.side_tokens + static_cast<uint32_t>(i) % a.ring] =
        weights[a.keys.side + i - a.keys.begin];
  }
}

// One block per row and layer.
__global__ void __launch_bounds__(kThreads) lists_kernel(const __grid_constant__ KeptLists a) {
  constexpr int32_t kTokens = kPageTokens;
  const uint32_t row = a.first + blockIdx.x, layer = blockIdx.y;
  const int32_t end = a.positions[blockIdx.x] + 1;
  KeptRow own = a.rows[blockIdx.x];
  if (a.recent > 0) {
    own.begin = max(0, end - a.recent);
    own.side = min(a.heavy, own.begin);
  }
  const size_t list = size_t{layer} * a.list_rows + row, at = list * a.list_capacity;
  const uint32_t* side = a.side_tables + list * a.side_capacity;
  const uint32_t* table = a.tables + (size_t{layer} * a.table_rows + row) * a.capacity;
  const int32_t side_pages = (own.side + kTokens - 1) / kTokens, first = own.begin / kTokens;
  const int32_t pages = side_pages + (end - 1) / kTokens - first + 1;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < pages; i += kThreads) {
    uint32_t slots = 0xffff;
    if (i == side_pages - 1) slots >>= side_pages * kTokens - own.side;
    if (i == side_pages) slots <<= own.begin % kTokens;
    a.pages[at + i] = i < side_pages ? side[i] : table[first + i - side_pages];
    a.slots[at + i] = static_cast<uint16_t>(slots);
  }
  if (threadIdx.x == 0) a.keys[list] = (side_pages - first) * kTokens + end;
}

}  // namespace

cudaError_t pool_votes(const PoolVotesArgs& args, cudaStream_t stream) {
  if (args.keys == 0) return cudaSuccess;
  pool_kernel<<<dim3(blocks(args.keys), args.n_kv_head), kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t add_votes(const AddVotesArgs& args, cudaStream_t stream) {
  const auto keys = static_cast<uint32_t>(args.keys.side + args.keys.end - args.keys.begin);
  if (keys == 0) return cudaSuccess;
  add_kernel<<<dim3(blocks(keys), args.n_kv_head), kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t choose_keys(const ChooseKeysArgs& args, cudaStream_t stream) {
  if (args.chosen > args.candidates) return cudaErrorInvalidValue;
  if (args.chosen + args.tail == 0) return cudaSuccess;
  choose_kernel<<<args.n_kv_head, top::kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t compact_keys(const CompactKeysArgs& args, cudaStream_t stream) {
  compact_kernel<<<args.kv.n_kv_head, kCopyWarps * 32, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t kept_lists(const KeptLists& lists, cudaStream_t stream) {
  if (lists.count == 0 || lists.layers == 0) return cudaSuccess;
  lists_kernel<<<dim3(lists.count, lists.layers), kThreads, 0, stream>>>(lists);
  return cudaGetLastError();
}

}  // namespace reprise::kernels::cuda
