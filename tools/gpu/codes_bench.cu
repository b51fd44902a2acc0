// Times attention to the pages that keys' codes promise most of (CSAttention) against full
// attention: layers, whose codes and read pages are more than the L2 cache holds, one after the
// other in a CUDA graph. Keys, queries, centroids and codes are noise: what is read does not depend
// on them, but for the planes that tell too little.
//
//     cmake --build build --target codes_bench
//     build/codes_bench [context [batch]]
//
// Columns: microseconds a layer of full attention, of scoring, choosing and reading apart, and of
// the three together; how many times faster that is; the rate at which codes were scored, all
// planes counted.
#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gpu/bench_data.cuh"
#include "kernels/cuda/key_codes.h"

using namespace reprise::kernels::cuda;

namespace {

constexpr uint32_t kHeads = 32, kKvHeads = 8, kDim = 128;
constexpr size_t kPageBytes = size_t{kKvHeads} * 2 * tile_bytes(KvType::kBF16, kDim);
constexpr double kTouched = 480e6;  // bytes read in turn, at least

__global__ void fill_floats(float* data, size_t count, uint64_t seed) {
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    data[i] = noise(i + (seed << 40));
  }
}

// Layers of a batch of sequences of one length.
class Bench {
 public:
  Bench(int32_t context, uint32_t batch)
      : context_(context),
        batch_(batch),
        shape_{static_cast<uint32_t>(std::clamp(
                   kTouched / (static_cast<double>(batch) * context * kKvHeads * 58), 4.0, 64.0)),
               kKvHeads, kDim},
        capacity_((static_cast<uint32_t>(context) + kPageTokens - 1) / kPageTokens),
        block_capacity_(capacity_ / kBlockPages + 1),
        pool_pages_(std::max<size_t>(size_t{batch} * capacity_, kTouched / kPageBytes)),
        kv_(pool_pages_ * kPageBytes / 2),
        table_(tables()),
        blocks_(block_table()),
        positions_(std::vector<int32_t>(batch, context - 1)),
        full_keys_(std::vector<int32_t>(batch, context)),
        codes_(size_t{batch} * block_capacity_ * shape_.block_bytes() / 2),
        book_(shape_.book_floats()),
        coded_(shape_.layers),
        rows_(std::vector<CodedRow>(batch, {book_.get(), nullptr, coded_.get(), shape_.layers})),
        q_(shape_.layers * row_size()),
        q_exact_(shape_.layers * row_size()),
        tops_(pairs() * capacity_),
        scales_(size_t{batch} * kHeads),
        parts_(code_parts(batch, kHeads, kKvHeads)),
        weights_(pairs() * capacity_),
        lists_(shape_.layers * pairs() * capacity_),
        keys_(shape_.layers * pairs()),
        out_(row_size()),
        lse_(size_t{batch} * kHeads),
        workspace_(paged_decode_workspace(batch, kHeads, kKvHeads, kDim)) {
    fill<<<1024, 256>>>(kv_.get(), kv_.size(), 1);
    fill<<<1024, 256>>>(q_.get(), q_.size(), 2);
    fill<<<1024, 256>>>(codes_.get(), codes_.size(), 3);
    fill_floats<<<1024, 256>>>(q_exact_.get(), q_exact_.size(), 2);
    fill_floats<<<1024, 256>>>(book_.get(), book_.size(), 4);
    check(cudaDeviceSynchronize());
  }

  void run() {
    const double full = time_graph(shape_.layers, 2, [&](size_t layer, cudaStream_t stream) {
      read({table(layer), nullptr, full_keys_.get(), 1, capacity_}, layer, stream);
    });
    for (const float skip : {0.0f, 0.05f}) {
      const double scored = time(skip, true, false, false), chosen = time(skip, false, true, false);
      const double read = time(skip, false, false, true), all = time(skip, true, true, true);
      const double bytes = static_cast<double>(pairs()) * context_ * shape_.planes();
      std::printf(
          "%7d %5u skip %.2f | full %8.2f | score %7.2f choose %6.2f read %7.2f | all %8.2f "
          "%6.2fx | %5.0f GB/s\n",
          context_, batch_, static_cast<double>(skip), full, scored, chosen, read, all, full / all,
          bytes / scored / 1e3);
      std::fflush(stdout);
    }
  }

 private:
  size_t pairs() const { return size_t{batch_} * kKvHeads; }
  size_t row_size() const { return size_t{batch_} * kHeads * kDim; }
  uint32_t* table(size_t layer) const { return table_.get() + layer * batch_ * capacity_; }

  std::vector<uint32_t> tables() {
    std::vector<uint32_t> pool(pool_pages_), table;
    std::iota(pool.begin(), pool.end(), 0u);
    for (size_t layer = 0; layer < shape_.layers; ++layer) {
      std::shuffle(pool.begin(), pool.end(), random_);
      table.insert(table.end(), pool.begin(), pool.begin() + size_t{batch_} * capacity_);
    }
    return table;
  }
  std::vector<uint32_t> block_table() {
    std::vector<uint32_t> blocks(size_t{batch_} * block_capacity_);
    std::iota(blocks.begin(), blocks.end(), 0u);
    std::shuffle(blocks.begin(), blocks.end(), random_);
    return blocks;
  }

  void read(const KeyLists& lists, size_t layer, cudaStream_t stream) {
    PagedDecodeArgs args;
    args.kv = {kv_.get(), KvType::kBF16, kKvHeads, kDim};
    args.lists = lists;
    args.batch = batch_;
    args.n_head = kHeads;
    args.q = q_exact_.get() + layer * row_size();
    args.scale = 0.088f;
    args.out = out_.get();
    args.lse = lse_.get();
    args.workspace = workspace_.get();
    check(paged_decode(args, stream));
  }

  double time(float skip, bool scores, bool chooses, bool reads) {
    return time_graph(shape_.layers, 2, [&](size_t layer, cudaStream_t stream) {
      CodeSearchArgs args;
      args.rows.shape = shape_;
      args.rows.rules = {1024, 16, 128, 0.05f, 0, 192, skip};
      args.rows.positions = positions_.get();
      args.rows.rows = rows_.get();
      args.rows.blocks = blocks_.get();
      args.rows.codes = reinterpret_cast<uint8_t*>(codes_.get());
      args.rows.count = batch_;
      args.rows.capacity = capacity_;
      args.rows.block_capacity = block_capacity_;
      args.layer = args.model_layer = static_cast<uint32_t>(layer);
      args.kv = {kv_.get(), KvType::kBF16, kKvHeads, kDim};
      args.pages = table(layer);
      args.n_head = kHeads;
      args.q = q_.get() + layer * row_size();
      args.scale = 0.088f;
      args.tops = tops_.get();
      args.scales = scales_.get();
      args.parts = parts_.get();
      args.weights = weights_.get();
      args.lists = lists_.get() + layer * pairs() * capacity_;
      args.keys = keys_.get() + layer * pairs();
      args.list_capacity = capacity_;
      if (scores) check(score_coded(args, stream));
      if (chooses) check(choose_coded(args, stream));
      if (reads) read({args.lists, nullptr, args.keys, kKvHeads, capacity_}, layer, stream);
    });
  }

  int32_t context_;
  uint32_t batch_;
  CodeShape shape_;
  uint32_t capacity_, block_capacity_;
  size_t pool_pages_;
  std::mt19937 random_{1};
  Array<__nv_bfloat16> kv_;
  Array<uint32_t> table_;   // [layers, batch, capacity]
  Array<uint32_t> blocks_;  // [batch, block_capacity]
  Array<int32_t> positions_, full_keys_;
  Array<__nv_bfloat16> codes_;  // bytes of noise
  Array<float> book_;
  Array<int32_t> coded_;
  Array<CodedRow> rows_;
  Array<__nv_bfloat16> q_;
  Array<float> q_exact_;
  Array<uint2> tops_;
  Array<float2> scales_, parts_;
  Array<float> weights_;
  Array<uint32_t> lists_;
  Array<int32_t> keys_;
  Array<float> out_, lse_;
  Array<char> workspace_;
};

}  // namespace

int main(int argc, char** argv) {
  for (const int32_t context : {4096, 8192, 16384, 32768, 65536, 131072}) {
    if (argc > 1 && std::to_string(context) != argv[1]) continue;
    for (const uint32_t batch : {1, 2, 8, 32}) {
      if (argc > 2 && std::to_string(batch) != argv[2]) continue;
      if (static_cast<int64_t>(context) * batch <= 131072 * 8) Bench(context, batch).run();
    }
  }
}
