// Times MAC-Attention's decode step against full attention: layers, whose rings and read pages are
// more than the L2 cache holds, one after the other in a CUDA graph. Hit rates are synthetic: of KV
// heads, chosen independently; a match is 300 tokens back, other entries are far away.
//
//     cmake --build build --target mac_bench
//     build/mac_bench [context [batch [rate]]]
//
// Columns: microseconds a layer of full attention, of MAC where launches overlap ("o") and where
// not; how many times faster the former is; bytes that it had to read, in GB/s. "off": sequences
// without rings. "guard": no hits, after the guard has seen it.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gpu/bench_data.cuh"
#include "gpu/graph_timing.h"
#include "kernels/cuda/mac.h"
#include "kernels/cuda/mma.cuh"

using namespace reprise::kernels::cuda;

namespace {

constexpr uint32_t kHeads = 32, kKvHeads = 8, kDim = 128, kGroup = kHeads / kKvHeads, kWindow = 512;
constexpr size_t kPageBytes = size_t{kKvHeads} * 2 * tile_bytes(KvType::kBF16, kDim);
constexpr double kTouched = 480e6;  // bytes read in turn, at least
constexpr int32_t kLag = 300;

// Entries of the positions before one, all alike but for their positions.
__global__ void fill_entries(MacEntry* entries, size_t count, int32_t position) {
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    const auto slot = static_cast<int32_t>(i / kGroup % kWindow);
    int32_t at = position / kWindow * static_cast<int32_t>(kWindow) + slot;
    if (at >= position) at -= kWindow;
    entries[i] = {at, at, 8.0f, 0.5f, 0.0f, 0};
  }
}

// hits: [pairs]; ring_q: [pairs][window][group][dim]
__global__ void make_queries(const uint8_t* hits, const __nv_bfloat16* ring_q, int32_t position,
                             size_t count, uint64_t seed, float* plain) {
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    const size_t pair = i / (kGroup * kDim),
                 slot = static_cast<uint32_t>(position - kLag) % kWindow;
    const size_t from = (pair * kWindow + slot) * kGroup * kDim + i % (kGroup * kDim);
    const float x = noise(i + (seed << 40));
    plain[i] = hits[pair] != 0 ? __bfloat162float(ring_q[from]) + 0.1f * x : x;
  }
}

// Layers of a batch of sequences of one length.
class Bench {
 public:
  Bench(int32_t context, uint32_t batch)
      : context_(context),
        batch_(batch),
        layers_(static_cast<size_t>(std::clamp(kTouched / (batch * 7.7e6), 4.0, 64.0))),
        capacity_((static_cast<uint32_t>(context) + kPageTokens - 1) / kPageTokens),
        pool_pages_(std::max<size_t>(size_t{batch} * capacity_, kTouched / kPageBytes)),
        kv_(pool_pages_ * kPageBytes / 2),
        table_(tables()),
        positions_(std::vector<int32_t>(batch, context - 1)),
        keys_(std::vector<int32_t>(batch, context)),
        rings_(numbers()),
        no_rings_(std::vector<uint32_t>(batch, kNoRing)),
        entries_(layers_ * entries()),
        ring_q_(layers_ * entries() * kDim),
        ring_out_(layers_ * entries() * kDim),
        guards_(layers_ * pairs()),
        counters_(batch),
        plain_(layers_ * row_size()),
        out_(row_size()),
        lse_(size_t{batch} * kHeads),
        workspace_(mac_workspace(MacRules{}, batch, kHeads, kKvHeads, kDim)),
        decode_workspace_(paged_decode_workspace(batch, kHeads, kKvHeads, kDim)) {
    fill<<<1024, 256>>>(kv_.get(), kv_.size(), 1);
    fill<<<1024, 256>>>(ring_q_.get(), ring_q_.size(), 2);
    fill_entries<<<1024, 256>>>(entries_.get(), entries_.size(), context - 1);
    check(cudaDeviceSynchronize());
  }

  void run(const std::string& only) {
    const double full = time_full();
    for (const std::string name : {"off", "guard", "0", "0.5", "0.8", "0.95", "0.99", "1"}) {
      if (!only.empty() && name != only) continue;
      set_hits(name == "off" || name == "guard" ? 0.0 : std::stod(name));
      check(cudaMemset(counters_.get(), 0, batch_ * sizeof(MacCounters)));
      check(cudaMemset(guards_.get(), 0, guards_.size() * sizeof(MacGuardState)));
      const int warm_up = name == "guard" ? 320 / 4 : 2;
      const double us = time_mac(name, true, warm_up), apart = time_mac(name, false, warm_up);
      MacCounters counters;  // all sequences are alike
      check(cudaMemcpy(&counters, counters_.get(), sizeof counters, cudaMemcpyDeviceToHost));
      const double compared = static_cast<double>(std::max(1ull, counters.compared));
      std::printf(
          "%7d %5u %6s | full %8.2f | mac o %8.2f  %8.2f | %6.2fx | %5.0f GB/s | hits %.3f\n",
          context_, batch_, name.c_str(), full, us, apart, full / us,
          bytes(name == "off" || name == "guard", counters) / us / 1e3,
          static_cast<double>(counters.group_hits) / compared);
      std::fflush(stdout);
    }
  }

 private:
  size_t pairs() const { return size_t{batch_} * kKvHeads; }
  size_t entries() const { return pairs() * kWindow * kGroup; }
  size_t row_size() const { return size_t{batch_} * kHeads * kDim; }

  std::vector<uint32_t> tables() {
    std::vector<uint32_t> pool(pool_pages_), table;
    std::iota(pool.begin(), pool.end(), 0u);
    for (size_t layer = 0; layer < layers_; ++layer) {
      std::shuffle(pool.begin(), pool.end(), random_);
      table.insert(table.end(), pool.begin(), pool.begin() + size_t{batch_} * capacity_);
    }
    return table;
  }
  std::vector<uint32_t> numbers() const {
    std::vector<uint32_t> rings(batch_);
    std::iota(rings.begin(), rings.end(), 0u);
    return rings;
  }

  void set_hits(double rate) {
    std::vector<uint8_t> hits(layers_ * pairs());
    std::fill_n(hits.begin(), static_cast<size_t>(rate * static_cast<double>(hits.size()) + 0.5),
                uint8_t{1});
    std::shuffle(hits.begin(), hits.end(), random_);
    const Array<uint8_t> device(hits);
    make_queries<<<1024, 256>>>(device.get(), ring_q_.get(), context_ - 1, plain_.size(), 3,
                                plain_.get());
    check(cudaDeviceSynchronize());
  }

  double time_full() {
    return time_graph(layers_, 2, [&](size_t layer, cudaStream_t stream) {
      PagedDecodeArgs args;
      args.kv = {kv_.get(), KvType::kBF16, kKvHeads, kDim};
      args.lists.pages = table_.get() + layer * batch_ * capacity_;
      args.lists.keys = keys_.get();
      args.lists.capacity = capacity_;
      args.batch = batch_;
      args.n_head = kHeads;
      args.q = plain_.get() + layer * row_size();
      args.scale = 0.088f;
      args.out = out_.get();
      args.lse = lse_.get();
      args.workspace = decode_workspace_.get();
      check(paged_decode(args, stream));
    });
  }

  double time_mac(const std::string& name, bool overlap, int warm_up) {
    return time_graph(layers_, warm_up, [&](size_t layer, cudaStream_t stream) {
      MacArgs args;
      args.kv = {kv_.get(), KvType::kBF16, kKvHeads, kDim};
      args.pages = table_.get() + layer * batch_ * capacity_;
      args.positions = positions_.get();
      args.rings = name == "off" ? no_rings_.get() : rings_.get();
      args.batch = batch_;
      args.capacity = capacity_;
      args.n_head = kHeads;
      args.q_plain = plain_.get() + layer * row_size();
      args.q = plain_.get() + layer * row_size();
      args.scale = 0.088f;
      args.ring = {ring_q_.get() + layer * entries() * kDim,
                   ring_out_.get() + layer * entries() * kDim,
                   entries_.get() + layer * entries(),
                   guards_.get() + layer * pairs(),
                   counters_.get(),
                   kWindow};
      args.rules.distance2 = 2 * kDim * 0.4f * 0.4f;
      args.rules.guarded = name == "guard";
      args.out = out_.get();
      args.lse = lse_.get();
      args.workspace = workspace_.get();
      args.overlap = overlap;
      check(mac_decode(args, stream));
    });
  }

  // That a layer's step had to read.
  double bytes(bool off, const MacCounters& counters) const {
    const double steps = static_cast<double>(std::max(1ull, counters.steps));
    const double skipped = off ? 0.0 : static_cast<double>(counters.skipped) / steps;
    const double ring = off ? 0.0 : kWindow * kGroup * (kDim * 2.0 + 16.0);
    return static_cast<double>(pairs()) * ((context_ - skipped) * kDim * 4.0 + ring);
  }

  int32_t context_;
  uint32_t batch_;
  size_t layers_;
  uint32_t capacity_;
  size_t pool_pages_;
  std::mt19937 random_{1};
  Array<__nv_bfloat16> kv_;
  Array<uint32_t> table_;  // [layers, batch, capacity]
  Array<int32_t> positions_, keys_;
  Array<uint32_t> rings_, no_rings_;
  Array<MacEntry> entries_;
  Array<__nv_bfloat16> ring_q_;
  Array<float> ring_out_;
  Array<MacGuardState> guards_;
  Array<MacCounters> counters_;
  Array<float> plain_;
  Array<float> out_, lse_;
  Array<char> workspace_, decode_workspace_;
};

}  // namespace

int main(int argc, char** argv) {
  std::printf("context batch  rate (synthetic) | microseconds a layer\n");
  for (const int32_t context : {2048 + 512, 8192, 16384, 32768, 131072, 262144}) {
    if (argc > 1 && std::to_string(context) != argv[1]) continue;
    for (const uint32_t batch : {1, 8, 32}) {
      if (argc > 2 && std::to_string(batch) != argv[2]) continue;
      Bench(context, batch).run(argc > 3 ? argv[3] : "");
    }
  }
}
