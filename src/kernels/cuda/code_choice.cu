// From tops of pages to lists. A block has the pages of one KV head of a row.
#include "kernels/cuda/code_turns.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/page_keys.cuh"
#include "kernels/cuda/softmax_part.cuh"
#include "kernels/cuda/top_pages.cuh"

namespace reprise::kernels::cuda {
namespace {

using top::kThreads, top::kWarps;

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
  const uint32_t lane = threadIdx.x % 32;
  splits = Turn::turn_splits(a, splits, count_due(a.due, a.rows.count));
  const uint32_t turn = count_due(a.due, row) * n_kv_head + pair % n_kv_head;
  for (uint32_t head = threadIdx.x / 32; head < Shared<kWords>::kHeads; head += kWarps) {
    if (head >= group) {
      if (lane == 0) s.scales[head] = {};
      if (lane == 0) s.bases[head] = s.shares[head] = 0.0f;
      continue;
    }
    const float2* parts = a.parts + size_t{turn} * splits * group + head;
    const float2 scale = a.scales[size_t{row} * a.n_head + pair % n_kv_head * group + head];
    Part all;
#pragma unroll 2
    for (uint32_t i = lane; i < splits; i += 32) {
      const float2 part = parts[size_t{i} * group];
      all.add(Part{part.x, part.y});
    }
    all.merge_lanes(31);
    if (lane == 0) {
      const float unit = a.soft_cap > 0.0f ? 1.0f : kLog2OfE;
      s.scales[head] = {scale.x * unit, scale.y * unit};
      s.bases[head] = all.base;
      s.shares[head] = 1.0f / all.sum;
    }
  }
  __syncthreads();
}

// Apart, as few models want it.
__device__ __noinline__ float capped(float logit, float soft_cap) {
  return scaled_logit(logit, 1.0f, soft_cap);
}

// Weights of the pages that a thread asks for in turn, kThreads apart: what they are made of is
// on its way before the scales are known.
template <uint32_t kWords>
class Weights {
 public:
  __device__ Weights(const CodeSearchArgs& a, const Shared<kWords>& s, uint32_t pair,
                     uint32_t begin)
      : soft_cap_(a.soft_cap),
        s_(s),
        tops_({a.tops + size_t{pair} * a.rows.capacity,
               size_t{a.rows.count} * a.rows.shape.n_kv_head * a.rows.capacity, begin + threadIdx.x,
               a.rows.capacity}) {}

  __device__ float next() {
    const Tops tops = tops_.next();
    float weight = 0.0f;
#pragma unroll
    for (uint32_t word = 0; word < kWords; ++word) {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t head = 4 * word + i;
        float logit = s_.scales[head].x + s_.scales[head].y * sum_of(tops.words[word], i);
        if (soft_cap_ > 0.0f) logit = capped(logit, soft_cap_);
        weight += exp2_fast(logit - s_.bases[head]) * s_.shares[head];
      }
    }
    return weight;
  }

 private:
  struct Tops {
    uint2 words[kWords] = {};
  };
  struct Load {
    const uint2* from;
    size_t word_stride;
    uint32_t first, end;

    __device__ void operator()(uint32_t n, Tops& tops) const {
      const uint32_t page = first + n * kThreads;
      if (page >= end) return;
#pragma unroll
      for (uint32_t word = 0; word < kWords; ++word) {
        tops.words[word] = from[word * word_stride + page];
      }
    }
  };

  float soft_cap_;
  const Shared<kWords>& s_;
  LoadedAhead<Tops, 4 / kWords, Load> tops_;
};

// Whether a row has an index of the layer, and where it stands.
struct Standing {
  bool indexed;
  int32_t position;

  __device__ Standing(const CodeSearchArgs& a, uint32_t row)
      : indexed(a.rows.rows[row].book != nullptr && a.layer < a.rows.rows[row].ready),
        position(a.rows.positions[row]) {}
};

template <uint32_t kWords>
__device__ void choose(const CodeSearchArgs& a, const Standing& standing, uint32_t splits,
                       Shared<kWords>& s) {
  const uint32_t n_kv_head = a.rows.shape.n_kv_head, pair = blockIdx.x;
  const uint32_t row = pair / n_kv_head, head = pair % n_kv_head;
  const uint32_t sinks = static_cast<uint32_t>(a.rows.rules.sink) / kPageTokens;
  // Loads go out before anything is asked of the row, which may have to come, too.
  Weights<kWords> weights(a, s, pair, sinks);
  load_scales(a, s, row, pair, splits);
  const CodeRange range = code_range(a.rows.rules, a.model_layer, standing.position);
  if (!a.rows.has_in_table(range)) {
    if (threadIdx.x == 0) a.keys[pair] = 0;
    return;
  }
  const PageList list(a, a.pages + size_t{row} * a.rows.capacity, pair);
  const auto write = [&](uint32_t at, uint32_t page, uint32_t entry) {
    list.write_entry(at, page, entry);
  };
  if (!standing.indexed || !range.chooses) {
    if (threadIdx.x == 0) a.keys[pair] = range.end;
    return top::SurePages(list.table, 0, 0, page_count(range.end)).write(0, write);
  }
  const CodedRow& own = a.rows.rows[row];
  const PagesRead read(a.rows.rules, range, range);
  top::SurePages sure(list.table, read.chooses() ? sinks : read.recent, read.recent, read.end);
  float* far = a.weights + size_t{pair} * a.rows.capacity;  // of pages that are not kept at hand
  top::Competitors others(s.top, far, sinks, read.recent);
  auto entries = others.entries_of(list.table);
  if (threadIdx.x == 0) {
    a.keys[pair] = read.keys();
    if (head == 0) own.coded[a.layer] = static_cast<int32_t>(read.recent);
    if (head == 0 && a.due != nullptr) own.searched[a.layer] = range.end;
  }
  if (!read.chooses()) return sure.write(0, write);
  const top::Cut cut = others.choose(read.chosen, [&](uint32_t page, bool at_hand) {
    const float weight = weights.next();
    if (!at_hand) far[page] = weight;
    return weight;
  });
  sure.write(read.chosen, write);
  uint32_t* picks = own.picks + (a.rows.shape.heads(a.layer) + head) * a.pick_capacity;
  others.write(cut, entries, [&](uint32_t at, uint32_t page, uint32_t entry) {
    write(sinks + at, page, entry);
    if (a.due != nullptr) picks[at] = page;
  });
}

template <uint32_t kWords>
__global__ __launch_bounds__(kThreads) void choose_kernel(const __grid_constant__ CodeSearchArgs a,
                                                          uint32_t splits) {
  __shared__ __align__(16) Shared<kWords> s;
  allow_next_kernel();
  const uint32_t row = blockIdx.x / a.rows.shape.n_kv_head;
  const Standing standing(a, row);
  wait_for_kernels_before();
  if (a.due == nullptr || a.due[row] != 0) choose(a, standing, splits, s);
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
