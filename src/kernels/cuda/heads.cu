#include "kernels/cuda/heads.h"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/kv_store.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/row_math.cuh"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kMaxHeadDim = 256, kWarps = 4, kRotaryThreads = 128;

__global__ __launch_bounds__(kRotaryThreads) void rotary_kernel(const double* inv_freq,
                                                                uint32_t pairs, float factor,
                                                                const int32_t* positions,
                                                                uint32_t rows, int32_t cap,
                                                                float* cos_sin) {
  allow_next_kernel();
  wait_for_kernels_before();
  const size_t i = size_t{blockIdx.x} * kRotaryThreads + threadIdx.x;
  if (i >= size_t{rows} * pairs) return;
  double sine, cosine;
  sincos(min(positions[i / pairs], cap) * inv_freq[i % pairs], &sine, &cosine);
  reinterpret_cast<float2*>(cos_sin)[i] = {static_cast<float>(cosine * factor),
                                           static_cast<float>(sine * factor)};
}

// A lane's dimensions 64 i + 2 l and the next, which rotate together, i < kPairs.
template <int kPairs>
struct Lane {
  float2 pairs[kPairs];

  static __device__ uint32_t dim(int i) { return 64 * i + threadIdx.x % 32 * 2; }

  // Zeros from end on.
  __device__ void load(const float* from, uint32_t end) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      pairs[i] = dim(i) < end ? *reinterpret_cast<const float2*>(from + dim(i)) : float2{};
    }
  }
  __device__ void normalize(const Lane& weight, float eps, uint32_t head_dim) {
    float squares = 0.0f;
#pragma unroll
    for (const float2& two : pairs) squares += two.x * two.x + two.y * two.y;
    const float inverse = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(head_dim) + eps);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      pairs[i].x *= inverse * weight.pairs[i].x;
      pairs[i].y *= inverse * weight.pairs[i].y;
    }
  }
  __device__ void rotate(const Lane& cos_sin, uint32_t count) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      if (dim(i) >= 2 * count) continue;
      const float2 turn = cos_sin.pairs[i], two = pairs[i];
      pairs[i] = {two.x * turn.x - two.y * turn.y, two.x * turn.y + two.y * turn.x};
    }
  }
};

// at: of the head in the outputs.
template <int kPairs>
__device__ void write_rotated(const HeadsArgs& a, Lane<kPairs> head, const Lane<kPairs>& cos_sin,
                              uint32_t row, size_t at, const RotatedQueries& to) {
  if (to.rounded == nullptr && to.exact == nullptr) return;
  head.rotate(cos_sin, a.pairs);
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    if (head.dim(i) >= a.kv.head_dim) break;
    const float2 two = {head.pairs[i].x * a.q_scale, head.pairs[i].y * a.q_scale};
    if (to.rounded != nullptr) {
      *reinterpret_cast<__nv_bfloat162*>(to.rounded + at + head.dim(i)) =
          __floats2bfloat162_rn(two.x, two.y);
    }
    if (row < a.exact_rows) *reinterpret_cast<float2*>(to.exact + at + head.dim(i)) = two;
  }
}

// capped: the row's angles.
template <int kPairs>
__device__ void write_query(const HeadsArgs& a, const Lane<kPairs>& head,
                            const Lane<kPairs>& cos_sin, const Lane<kPairs>& capped, uint32_t row,
                            size_t at) {
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    if (a.q_plain == nullptr || head.dim(i) >= a.kv.head_dim) break;
    *reinterpret_cast<float2*>(a.q_plain + at + head.dim(i)) = head.pairs[i];
  }
  write_rotated(a, head, cos_sin, row, at, a.q_rotated);
  write_rotated(a, head, capped, row, at, a.q_capped);
}

// Of a row's token in the tile of a head, 2 kv_head for keys and one more for values; null where
// the row is not stored.
__device__ unsigned char* tile_of(const HeadsArgs& a, uint32_t row, uint32_t tile,
                                  uint32_t* token) {
  const int32_t position = a.positions[row];
  const size_t sequence = a.sequences[row];
  const uint32_t page = static_cast<uint32_t>(position) / kPageTokens;
  if (position < 0 || page >= a.capacity) return nullptr;
  *token = static_cast<uint32_t>(position) % kPageTokens;
  const size_t id = a.pages[sequence * a.capacity + page];
  auto* pages = static_cast<unsigned char*>(const_cast<void*>(a.kv.pages));
  return pages + (id * a.kv.n_kv_head * 2 + tile) * tile_bytes(a.kv.type, a.kv.head_dim);
}

// A warp per head of a row: queries, keys, values. Loads come before what waits for them, and those
// of what a step knows from its beginning before the products are there.
template <int kPairs>
__global__ __launch_bounds__(kWarps * 32) void heads_kernel(const __grid_constant__ HeadsArgs a) {
  allow_next_kernel();
  const uint32_t n_kv_head = a.kv.n_kv_head, head_dim = a.kv.head_dim;
  const uint32_t heads = a.n_head + 2 * n_kv_head;
  const uint32_t unit = blockIdx.x * kWarps + threadIdx.x / 32;
  const uint32_t row = unit / heads, index = unit % heads;
  const bool is_query = index < a.n_head, is_value = index >= a.n_head + n_kv_head;
  const uint32_t of_kind = is_query ? index : (index - a.n_head) % n_kv_head;
  const size_t at = (size_t{row} * (is_query ? a.n_head : n_kv_head) + of_kind) * head_dim;
  const float* norm = is_query ? a.q_norm : is_value ? nullptr : a.k_norm;
  Lane<kPairs> head, cos_sin, capped, weight;
  const float* angles = is_query || a.cos_sin_keys == nullptr ? a.cos_sin : a.cos_sin_keys;
  uint32_t token = 0;
  unsigned char* tile = nullptr;
  if (row < a.rows) {
    if (!is_value) cos_sin.load(angles + size_t{row} * a.pairs * 2, a.pairs * 2);
    if (is_query && a.q_capped.rounded != nullptr) {
      capped.load(a.cos_sin_capped + size_t{row} * a.pairs * 2, a.pairs * 2);
    }
    if (norm != nullptr) weight.load(norm, head_dim);
    if (!is_query) tile = tile_of(a, row, 2 * of_kind + (is_value ? 1 : 0), &token);
  }
  wait_for_kernels_before();
  if (row >= a.rows) return;
  head.load((is_query ? a.q : is_value ? a.v : a.k) + at, head_dim);
  if (norm != nullptr) head.normalize(weight, a.norm_eps, head_dim);
  if (is_query) return write_query(a, head, cos_sin, capped, row, at);
  is_value ? make_finite(head.pairs) : head.rotate(cos_sin, a.pairs);
  if (tile != nullptr) store_token(a.kv.type, head_dim, token, head.pairs, tile);
}

template <int kPairs>
cudaError_t launch(const HeadsArgs& args, uint32_t heads, cudaStream_t stream) {
  return launch_overlapped(heads_kernel<kPairs>, dim3((args.rows * heads + kWarps - 1) / kWarps),
                           kWarps * 32, stream, args);
}

}  // namespace

cudaError_t rotary_rows(const double* inv_freq, uint32_t pairs, float factor,
                        const int32_t* positions, uint32_t rows, int32_t cap, float* cos_sin,
                        cudaStream_t stream) {
  const size_t count = size_t{rows} * pairs;
  if (count == 0) return cudaSuccess;
  const auto blocks = static_cast<uint32_t>((count + kRotaryThreads - 1) / kRotaryThreads);
  return launch_overlapped(rotary_kernel, dim3(blocks), kRotaryThreads, stream, inv_freq, pairs,
                           factor, positions, rows, cap, cos_sin);
}

cudaError_t rotate_and_store(const HeadsArgs& args, cudaStream_t stream) {
  const uint32_t head_dim = args.kv.head_dim;
  const uint32_t multiple = args.kv.type == KvType::kFP8 ? 32 : 8;
  if (head_dim > kMaxHeadDim || head_dim % multiple != 0) return cudaErrorNotSupported;
  if (2 * args.pairs > head_dim) return cudaErrorInvalidValue;
  const uint32_t heads = args.n_head + 2 * args.kv.n_kv_head;
  if (args.rows == 0 || heads == 0) return cudaSuccess;
  if (head_dim <= 64) return launch<1>(args, heads, stream);
  return head_dim <= 128 ? launch<2>(args, heads, stream) : launch<4>(args, heads, stream);
}

}  // namespace reprise::kernels::cuda
