// Codes of keys. A block has some pages of one KV head, a thread a plane of a token.
#include <algorithm>

#include "kernels/cuda/code_metric.cuh"
#include "kernels/cuda/code_turns.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/key_codes.h"
#include "kernels/cuda/kv_dispatch.cuh"
#include "kernels/cuda/kv_load.cuh"
#include "kernels/cuda/launch.cuh"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kJobPages = 16;  // of a block of threads

template <uint32_t D>
struct Shared {
  Candidate candidates[D / 2][kCodeEntries];
};

template <uint32_t D>
__device__ void load_book(const float* book, Shared<D>& s) {
  for (uint32_t i = threadIdx.x; i < D / 2 * kCodeEntries; i += kThreads) {
    const uint32_t part = i / kCodeEntries, entry = i % kCodeEntries;
    const float* from = book + size_t{part} * kBookPart;
    const float* metric = from + 2 * kCodeEntries;
    s.candidates[part][entry] =
        candidate_of({metric[0], metric[1], metric[2]}, {from[entry], from[kCodeEntries + entry]});
  }
  __syncthreads();
}

// The codes of a KV head in one layer: where the block of a page begins.
struct HeadCodes {
  uint8_t* codes;
  const uint32_t* blocks;
  size_t block_bytes, offset;

  __device__ HeadCodes(const CodeShape& shape, uint8_t* all, const uint32_t* table, uint32_t layer,
                       uint32_t head)
      : codes(all),
        blocks(table),
        block_bytes(shape.block_bytes()),
        offset((shape.heads(layer) + head) * shape.plane_bytes()) {}
  __device__ uint8_t* of_page(uint32_t page) const {
    return codes + blocks[page / kBlockPages] * block_bytes + offset +
           page % kBlockPages * kPageTokens;
  }
};

template <uint32_t D>
__device__ void code_page(const PagedKv& kv, const unsigned char* tile, const Shared<D>& s,
                          uint8_t* codes) {
  for (uint32_t i = threadIdx.x; i < kPageTokens * D / 4; i += kThreads) {
    const uint32_t token = i % kPageTokens, plane = i / kPageTokens;
    uint32_t byte = 0;
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t part = 2 * plane + half;
      const float2 x = load_two(kv.type, tile, D, token, 2 * part);
      byte |= nearest(s.candidates[part], kCodeEntries, x) << 4 * half;
    }
    codes[plane * kCodeBlock + token] = static_cast<uint8_t>(byte);
  }
}

template <uint32_t D>
__global__ __launch_bounds__(kThreads) void code_kernel(const __grid_constant__ CodeKeysArgs a) {
  __shared__ Shared<D> s;
  const uint32_t head = blockIdx.y;
  if (blockIdx.x == 0 && head == 0 && threadIdx.x == 0) {
    a.coded[a.layer] = static_cast<int32_t>(a.end);
  }
  load_book<D>(a.book + (a.shape.heads(a.layer) + head) * (D / 2) * kBookPart, s);
  const HeadCodes codes(a.shape, a.codes, a.blocks, a.layer, head);
  const uint32_t first = a.first + blockIdx.x * kJobPages, end = min(a.end, first + kJobPages);
  for (uint32_t page = first; page < end; ++page) {
    code_page<D>(a.kv, key_tile(a.kv, a.pages[page], head), s, codes.of_page(page));
  }
}

// Whether the row searches in this step; if not, lists what it reads.
__device__ void take_turn(const CodeNewKeysArgs& a, const CodeRange& range, bool chooses,
                          const uint32_t* table) {
  const uint32_t head = blockIdx.x, layer = blockIdx.y, row = blockIdx.z;
  const CodedRow& own = a.rows.rows[row];
  const int32_t searched = chooses ? own.searched[layer] : 0;
  const bool due =
      chooses && !search_holds(a.rows.rules, a.model_layers[layer], searched, range.end);
  if (head == 0 && threadIdx.x == 0) a.due[layer * a.due_rows + row] = due ? 1 : 0;
  if (due) return;
  const uint32_t n_kv_head = a.rows.shape.n_kv_head;
  const size_t at = (size_t{layer} * a.due_rows + row) * n_kv_head + head;
  const PageList list(a, table, at);
  if (!chooses) {
    const int32_t keys = a.rows.has_in_table(range) ? range.end : 0;
    list.write(0, 0, page_count(keys));
    if (threadIdx.x == 0) a.keys[at] = keys;
    return;
  }
  const PagesRead read(a.rows.rules, range,
                       code_range(a.rows.rules, a.model_layers[layer], searched - 1));
  if (threadIdx.x == 0) a.keys[at] = read.keys();
  read.list_others(list);
  const size_t picks = (size_t{layer} * n_kv_head + head) * a.pick_capacity;
  for (uint32_t i = threadIdx.x; read.chooses() && i < read.chosen; i += kThreads) {
    list.write(read.sinks + i, own.picks[picks + i]);
  }
}

// The grid: KV heads, layers, rows.
template <uint32_t D>
__global__ __launch_bounds__(kThreads) void new_kernel(const __grid_constant__ CodeNewKeysArgs a) {
  __shared__ Shared<D> s;
  allow_next_kernel();
  wait_for_kernels_before();
  const uint32_t head = blockIdx.x, layer = blockIdx.y, row = blockIdx.z;
  const CodedRow& own = a.rows.rows[row];
  const uint32_t model_layer = a.model_layers[layer];
  const uint32_t* table = a.tables + (size_t{model_layer} * a.table_rows + row) * a.rows.capacity;
  const CodeRange range = code_range(a.rows.rules, model_layer, a.rows.positions[row]);
  const bool chooses =
      own.book != nullptr && layer < own.ready && range.chooses && a.rows.has_in_table(range);
  if (a.due != nullptr) take_turn(a, range, chooses, table);
  if (!chooses) return;
  const auto end = static_cast<uint32_t>(range.recent) / kPageTokens;
  auto page = static_cast<uint32_t>(own.coded[layer]);
  if (page >= end) return;
  load_book<D>(own.book + (a.rows.shape.heads(layer) + head) * (D / 2) * kBookPart, s);
  const uint32_t* blocks = a.rows.blocks + size_t{row} * a.rows.block_capacity;
  const HeadCodes codes(a.rows.shape, a.rows.codes, blocks, layer, head);
  for (; page < end; ++page) {
    code_page<D>(a.kv, key_tile(a.kv, table[page], head), s, codes.of_page(page));
  }
}

}  // namespace

cudaError_t code_keys(const CodeKeysArgs& args, cudaStream_t stream) {
  if (args.first >= args.end) return cudaSuccess;
  const dim3 grid((args.end - args.first + kJobPages - 1) / kJobPages, args.shape.n_kv_head);
  return with_head_dim(args.shape.head_dim, [&](auto dim) {
    code_kernel<dim><<<grid, kThreads, 0, stream>>>(args);
    return cudaGetLastError();
  });
}

cudaError_t code_new_keys(const CodeNewKeysArgs& args, cudaStream_t stream) {
  const CodeShape& shape = args.rows.shape;
  if (args.rows.count == 0 || shape.layers == 0) return cudaSuccess;
  const dim3 grid(shape.n_kv_head, shape.layers, args.rows.count);
  return with_head_dim(shape.head_dim, [&](auto dim) {
    return launch_overlapped(new_kernel<dim>, grid, kThreads, stream, args);
  });
}

}  // namespace reprise::kernels::cuda
