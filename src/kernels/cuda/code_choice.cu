// From tops of pages to lists. A block has the pages of one KV head of a row.
#include "kernels/cuda/code_turns.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/page_keys.cuh"
#include "kernels/cuda/softmax_part.cuh"
#include "kernels/cuda/top_pages.cuh"

namespace reprise::kernels::cuda {
namespace {

using top::kThreads;

template <uint32_t kWords>
struct Shared {
  static constexpr uint32_t kHeads = 4 * kWords;
  top::Shared top;
  // A page's weight is the sum over heads of exp2(logit - base) share; logit = x + y top, in units
  // of log2 where there is no soft-cap.
  float2 scales[kHeads];
  float bases[kHeads], shares[kHeads];
};

// Head of four whose sum is the low or high half of x or y, as a float: an integer below 2^23 that
// is added to the bits of 2^23 is 2^23 more.
__device__ inline float sum_of(uint2 top, uint32_t head) {
  const uint32_t two = head % 2 == 0 ? top.x : top.y;
  const uint32_t sum = head < 2 ? two & 0xffffu : two >> 16;
  return __uint_as_float(0x4b000000u | sum) - 0x1p23f;
}

// What the blocks that scored know of softmax. A warp per head.
template <uint32_t kWords>
__device__ void load_scales(const CodeSearchArgs& a, Shared<kWords>& s, uint32_t row, uint32_t pair,
                            uint32_t splits) {
  const uint32_t n_kv_head = a.rows.shape.n_kv_head, group = a.n_head / n_kv_head;
  const uint32_t head = threadIdx.x / 32, lane = threadIdx.x % 32;
  splits = Turn::turn_splits(a, splits, count_due(a.due, a.rows.count));
  if (head < group) {
    const uint32_t turn = count_due(a.due, row) * n_kv_head + pair % n_kv_head;
    const float2* parts = a.parts + size_t{turn} * splits * group + head;
    Part all;
#pragma unroll 4
    for (uint32_t i = lane; i < splits; i += 32) {
      const float2 part = parts[size_t{i} * group];
      all.add(Part{part.x, part.y});
    }
    all.merge_lanes(31);
    if (lane == 0) {
      const float unit = a.soft_cap > 0.0f ? 1.0f : kLog2OfE;
      const size_t first = size_t{row} * a.n_head + pair % n_kv_head * group;
      const float2 scale = a.scales[first + head];
      s.scales[head] = {scale.x * unit, scale.y * unit};
      s.bases[head] = all.base;
      s.shares[head] = 1.0f / all.sum;
    }
  } else if (head < Shared<kWords>::kHeads && lane == 0) {
    s.scales[head] = {};
    s.bases[head] = s.shares[head] = 0.0f;
  }
  __syncthreads();
}

// Weights of the pages that a thread asks for in turn, kThreads apart: what they are made of is on
// its way before the scales are known.
template <uint32_t kWords>
class Weights {
 public:
  __device__ Weights(const CodeSearchArgs& a, const Shared<kWords>& s, uint32_t pair,
                     uint32_t begin, uint32_t end)
      : a_(a), s_(s), tops_(a.tops + size_t{pair} * a.rows.capacity), end_(end) {
    for (uint32_t i = 0; i < kAhead; ++i) load(begin + threadIdx.x + i * kThreads, ahead_[i]);
  }

  __device__ float next(uint32_t page) {
    float weight = 0.0f;
#pragma unroll
    for (uint32_t word = 0; word < kWords; ++word) {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t head = 4 * word + i;
        float logit = s_.scales[head].x + s_.scales[head].y * sum_of(ahead_[0][word], i);
        if (a_.soft_cap > 0.0f) logit = scaled_logit(logit, 1.0f, a_.soft_cap);
        weight += exp2_fast(logit - s_.bases[head]) * s_.shares[head];
      }
    }
#pragma unroll
    for (uint32_t i = 1; i < kAhead; ++i) {
      for (uint32_t word = 0; word < kWords; ++word) ahead_[i - 1][word] = ahead_[i][word];
    }
    load(page + kAhead * kThreads, ahead_[kAhead - 1]);
    return weight;
  }

 private:
  static constexpr uint32_t kAhead = 4 / kWords;

  __device__ void load(uint32_t page, uint2 (&words)[kWords]) const {
    const size_t pairs = size_t{a_.rows.count} * a_.rows.shape.n_kv_head;
#pragma unroll
    for (uint32_t word = 0; word < kWords; ++word) {
      if (page < end_) words[word] = tops_[word * pairs * a_.rows.capacity + page];
    }
  }

  const CodeSearchArgs& a_;
  const Shared<kWords>& s_;
  const uint2* tops_;
  uint32_t end_;
  uint2 ahead_[kAhead][kWords] = {};
};

template <uint32_t kWords>
__global__ __launch_bounds__(kThreads) void choose_kernel(const __grid_constant__ CodeSearchArgs a,
                                                          uint32_t splits) {
  __shared__ __align__(16) Shared<kWords> s;
  allow_next_kernel();
  wait_for_kernels_before();
  const uint32_t n_kv_head = a.rows.shape.n_kv_head, pair = blockIdx.x;
  const uint32_t row = pair / n_kv_head, head = pair % n_kv_head;
  if (a.due != nullptr && a.due[row] == 0) return;
  const CodedRow& own = a.rows.rows[row];
  const CodeRange range = code_range(a.rows.rules, a.model_layer, a.rows.positions[row]);
  if (!a.rows.has_in_table(range)) {
    if (threadIdx.x == 0) a.keys[pair] = 0;
    return;
  }
  const PageList list(a, a.pages + size_t{row} * a.rows.capacity, pair);
  if (own.book == nullptr || a.layer >= own.ready || !range.chooses) {
    list.write(0, 0, page_count(range.end));
    if (threadIdx.x == 0) a.keys[pair] = range.end;
    return;
  }
  const PagesRead read(a.rows.rules, range, range);
  if (threadIdx.x == 0) {
    a.keys[pair] = read.keys();
    if (head == 0) own.coded[a.layer] = static_cast<int32_t>(read.recent);
    if (head == 0 && a.due != nullptr) own.searched[a.layer] = range.end;
  }
  read.list_others(list);
  if (!read.chooses()) return;
  const uint32_t sinks = read.sinks, recent = read.recent;
  Weights<kWords> weights(a, s, pair, sinks, recent);
  load_scales(a, s, row, pair, splits);
  float* far = a.weights + size_t{pair} * a.rows.capacity;  // of pages that are not kept at hand
  top::Competitors others(s.top, far, sinks, recent);
  const top::Cut cut = others.choose(read.chosen, [&](uint32_t page, bool at_hand) {
    const float weight = weights.next(page);
    if (!at_hand) far[page] = weight;
    return weight;
  });
  uint32_t* picks = own.picks + (a.rows.shape.heads(a.layer) + head) * a.pick_capacity;
  others.write(cut, [&](uint32_t at, uint32_t page) {
    list.write(sinks + at, page);
    if (a.due != nullptr) picks[at] = page;
  });
}

}  // namespace

cudaError_t choose_coded(const CodeSearchArgs& args, cudaStream_t stream) {
  const uint32_t pairs = args.rows.count * args.rows.shape.n_kv_head;
  if (pairs == 0) return cudaSuccess;
  if (args.list_capacity < args.rows.capacity) return cudaErrorInvalidValue;
  const uint32_t group = args.n_head / args.rows.shape.n_kv_head;
  if (group < 1 || group > 16) return cudaErrorNotSupported;
  const uint32_t words = code_words(group);
  const auto kernel = words == 1   ? choose_kernel<1>
                      : words == 2 ? choose_kernel<2>
                                   : choose_kernel<4>;
  return launch_overlapped(kernel, dim3(pairs), kThreads, stream, args, code_splits(args));
}

}  // namespace reprise::kernels::cuda
