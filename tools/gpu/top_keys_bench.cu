// Times the scan for the best keys (ReAttention) of decode rows and of prompts, over layers whose
// keys are more than the L2 cache holds, one after the other in a CUDA graph.
//
//     cmake --build build --target top_keys_bench
//     build/top_keys_bench [keys [k]]
//
// Columns: microseconds of a call; bytes of keys that it reads, in GB/s, and their share of
// kRoof; for prompts, products of keys and queries in TFLOP/s.
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "gpu/graph_timing.h"
#include "kernels/cuda/key_spans.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/top_keys.h"

using namespace reprise::kernels::cuda;

namespace {

constexpr double kRoof = 4650.0;    // GB/s that most kernels that only read reach on an H200
constexpr double kTouched = 480e6;  // bytes read in turn, at least

template <class T>
T* allocate(size_t count) {
  void* data = nullptr;
  check(cudaMalloc(&data, count * sizeof(T)));
  check(cudaMemset(data, 0, count * sizeof(T)));
  return static_cast<T*>(data);
}

template <class T>
T* upload(const std::vector<T>& host) {
  T* data = allocate<T>(host.size());
  check(cudaMemcpy(data, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  return data;
}

// Variance 1, from 64 bits of a counter.
__device__ float noise(uint64_t i) {
  i = (i ^ i >> 31) * 0x7fb5d329728ea185ull;
  i = (i ^ i >> 27) * 0x81dadef4bc2dd44dull;
  return (static_cast<float>((i ^ i >> 33) & 0xffffff) * 0x1p-24f - 0.5f) * 3.4641f;
}
__global__ void fill_pairs(uint32_t* pairs, size_t count) {
  for (size_t i = blockIdx.x * size_t{256} + threadIdx.x; i < count; i += gridDim.x * size_t{256}) {
    pairs[i] = pack<__nv_bfloat16>(noise(2 * i), noise(2 * i + 1));
  }
}
__global__ void fill_floats(float* values, size_t count) {
  const size_t i = blockIdx.x * size_t{256} + threadIdx.x;
  if (i < count) values[i] = noise(i + (uint64_t{1} << 40));
}

struct Model {
  const char* name;
  uint32_t n_head, n_kv_head, head_dim;
};

struct Rows {
  uint32_t rows = 1, stride = 1, k = 0;
};

class Bench {
 public:
  Bench(const Model& model, uint32_t keys)
      : model_(model), keys_(keys), pages_((keys + kPageTokens - 1) / kPageTokens) {
    tiles_ = size_t{pages_} * model.n_kv_head * 2;
    const size_t bytes = tiles_ * tile_bytes(KvType::kBF16, model.head_dim);
    layers_ = static_cast<uint32_t>(std::max(1.0, kTouched / (static_cast<double>(bytes) / 2)));
    kv_ = allocate<uint32_t>(bytes / 4 * layers_);
    fill_pairs<<<4096, 256>>>(kv_, bytes / 4 * layers_);
    std::vector<uint32_t> table(size_t{pages_} * layers_);
    std::iota(table.begin(), table.end(), 0u);
    table_ = upload(table);
    last_ = upload(std::vector<int32_t>{static_cast<int32_t>(keys) - 1});
  }
  ~Bench() {
    cudaFree(kv_);
    cudaFree(table_);
    cudaFree(last_);
  }

  void time(const Rows& rows) const {
    TopKeysArgs args;
    args.kv = {kv_, KvType::kBF16, model_.n_kv_head, model_.head_dim};
    args.positions = last_;
    args.batch = 1;
    args.capacity = pages_;
    args.rows = rows.rows;
    args.stride = rows.stride;
    args.middle = {32, 1024, 8192};
    args.n_head = model_.n_head;
    args.k = rows.k;
    const size_t queries = size_t{rows.rows} * model_.n_head * model_.head_dim;
    auto* q = allocate<float>(queries);
    fill_floats<<<static_cast<uint32_t>(queries / 256 + 1), 256>>>(q, queries);
    args.q = q;
    args.workspace = allocate<std::byte>(
        top_keys_workspace(1, args.voters(), model_.n_head, model_.n_kv_head, rows.k));
    args.floors = allocate<uint32_t>(size_t{args.voters()} * model_.n_head);
    const uint32_t slots = vote_slots(args.voters() * model_.n_head * rows.k);
    uint32_t* votes = allocate<uint32_t>(size_t{slots} * 4 + 1);
    args.votes = {
        slots, votes, votes + slots, votes + 2 * slots, votes + 3 * slots, votes + 4 * slots};
    KeySpansArgs spans;
    spans.votes = args.votes;
    spans.positions = last_;
    spans.batch = 1;
    spans.rows = rows.rows;
    spans.middle = args.middle;
    spans.spans = 95;
    spans.span = 32;
    spans.keys = allocate<int32_t>(1);
    spans.token_capacity = span_tokens(spans.middle, spans.spans, spans.span);
    spans.tokens = allocate<int32_t>(spans.token_capacity);
    const VoteTables tables = args.votes;
    const auto scan = [&](size_t i, cudaStream_t stream) {
      args.pages = table_ + i % layers_ * pages_;
      args.votes = {};
      check(top_keys(args, stream));
    };
    const auto choose = [&](size_t i, cudaStream_t stream) {
      args.pages = table_ + i % layers_ * pages_;
      args.votes = tables;
      check(top_keys(args, stream));
      check(key_spans(spans, stream));
    };
    const size_t count = rows.rows > 1 ? 4 : std::max(8u, layers_);
    const double us = time_graph(count, 2, scan), both = time_graph(count, 2, choose);
    const double bytes =
        static_cast<double>(tiles_ / 2) * tile_bytes(KvType::kBF16, model_.head_dim);
    const double flops = 2.0 * keys_ * model_.head_dim * model_.n_head * args.voters();
    std::printf(
        "%-12s %9u keys %5u rows / %-3u k %-3u %10.1f us, with spans %10.1f us %7.0f GB/s "
        "%5.1f %% %7.1f TFLOP/s\n",
        model_.name, keys_, rows.rows, rows.stride, rows.k, us, both, bytes / us * 1e-3,
        bytes / us * 1e-3 / kRoof * 100, flops / us * 1e-6);
    cudaFree(q);
    cudaFree(args.floors);
    cudaFree(args.workspace);
    cudaFree(votes);
    cudaFree(spans.keys);
    cudaFree(spans.tokens);
  }

 private:
  Model model_;
  uint32_t keys_, pages_, layers_;
  size_t tiles_;  // of a layer
  uint32_t *kv_ = nullptr, *table_ = nullptr;
  int32_t* last_ = nullptr;
};

}  // namespace

int main(int count, char** values) {
  std::vector<uint32_t> sizes = {16384, 131072, 1048576};
  if (count > 1) sizes = {static_cast<uint32_t>(std::stoul(values[1]))};
  const uint32_t k = count > 2 ? static_cast<uint32_t>(std::stoul(values[2])) : 0;
  for (const Model& model : {Model{"SmolLM2-135M", 9, 3, 64}, Model{"Llama-8B", 32, 8, 128}}) {
    for (const uint32_t keys : sizes) {
      const Bench bench(model, keys);
      bench.time({1, 1, k > 0 ? k : model.n_head == 9 ? 16u : 4u});
      for (const uint32_t stride : {1u, 4u, 16u}) bench.time({512, stride, 4});
      bench.time({1024, 16, 4});
    }
  }
  return 0;
}
