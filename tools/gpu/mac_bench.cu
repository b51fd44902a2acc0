// Times MAC-Attention's decode step against full attention: layers, whose rings and read pages are
// more than the L2 cache holds, one after the other in a CUDA graph; graphs in turns, medians. Hit
// rates are synthetic: of KV heads, chosen independently; a match is 300 tokens back, other entries
// are far away.
//
//     cmake --build build --target mac_bench
//     build/mac_bench [context [batch]]
//
// Columns: microseconds a layer of full attention; of MAC without its guard, and with it once it
// has settled; how many times faster than full attention; the share of steps that compare then.
// "off": sequences without rings. "try": every step compares for the guard alone.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
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
        out_(row_size()),
        lse_(size_t{batch} * kHeads),
        workspace_(mac_workspace(MacRules{}, batch, kHeads, kKvHeads, kDim)),
        decode_workspace_(paged_decode_workspace(batch, kHeads, kKvHeads, kDim)) {
    fill<<<1024, 256>>>(kv_.get(), kv_.size(), 1);
    fill<<<1024, 256>>>(ring_q_.get(), ring_q_.size(), 2);
    fill_entries<<<1024, 256>>>(entries_.get(), entries_.size(), context - 1);
    check(cudaDeviceSynchronize());
  }

  void run() {
    std::vector<std::unique_ptr<Case>> cases;
    for (const double rate : {0.0, 0.5, 0.8, 0.9, 0.95, 0.99, 1.0}) {
      const size_t first = cases.size();
      for (const bool guarded : {false, true}) {
        cases.push_back(std::make_unique<Case>(layers_ * pairs(), batch_));
        cases.back()->rate = rate;
        cases.back()->guarded = guarded;
      }
      set_hits(rate, cases[first]->plain);
      cases[first + 1]->plain = cases[first]->plain;
    }
    for (const bool tries : {false, true}) {
      cases.push_back(std::make_unique<Case>(layers_ * pairs(), batch_));
      Case& each = *cases.back();
      each.plain = cases[0]->plain;
      each.has_rings = each.guarded = each.tries = tries;
    }
    const TimedGraph full(
        layers_, [&](size_t layer, cudaStream_t stream) { decode(*cases[0], layer, stream); });
    for (auto& each : cases) {
      each->graph = std::make_unique<TimedGraph>(
          layers_, [&](size_t layer, cudaStream_t stream) { reuse(*each, layer, stream); });
    }
    time(full, cases);
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

  // Queries of some rate of hits, and what guards know of them.
  struct Case {
    Case(size_t heads, uint32_t batch) : guards(heads), counters(batch) {
      check(cudaMemset(guards.get(), 0, guards.size() * sizeof(MacGuardState)));
    }

    double rate = 0.0;
    bool guarded = false, has_rings = true, tries = false;
    std::shared_ptr<Array<float>> plain;
    Array<MacGuardState> guards;
    Array<MacCounters> counters;
    std::unique_ptr<TimedGraph> graph;
    std::vector<double> times;
  };

  void time(const TimedGraph& full, std::vector<std::unique_ptr<Case>>& cases) {
    constexpr int kSettling = 9, kRounds = 15;
    std::vector<double> full_times;
    for (int round = 0; round < kSettling + kRounds; ++round) {
      const bool counts = round >= kSettling;
      if (counts) full_times.push_back(full.replay());
      for (auto& each : cases) {
        if (each->tries) {
          check(cudaMemset(each->guards.get(), 0, each->guards.size() * sizeof(MacGuardState)));
        }
        if (round <= kSettling) {
          check(cudaMemset(each->counters.get(), 0, batch_ * sizeof(MacCounters)));
        }
        check(cudaDeviceSynchronize());
        const double us = each->graph->replay();
        if (counts) each->times.push_back(us);
      }
    }
    const double all = median(full_times);
    for (size_t i = 0; i < cases.size(); i += 2) {
      const Case &one = *cases[i], &two = *cases[i + 1];
      const double us = median(one.times), guarded = median(two.times);
      const std::string name = one.has_rings ? std::to_string(one.rate).substr(0, 4) : "off/try";
      std::printf("%7d %5u %7s | full %8.2f | mac %8.2f %6.2fx | guard %8.2f %6.2fx | %.3f\n",
                  context_, batch_, name.c_str(), all, us, all / us, guarded, all / guarded,
                  compared(two));
    }
    std::fflush(stdout);
  }

  static double compared(const Case& of) {
    MacCounters counters;  // all sequences are alike
    check(cudaMemcpy(&counters, of.counters.get(), sizeof counters, cudaMemcpyDeviceToHost));
    return static_cast<double>(counters.compared) /
           static_cast<double>(std::max(1ull, counters.steps));
  }

  void set_hits(double rate, std::shared_ptr<Array<float>>& plain) {
    std::vector<uint8_t> hits(layers_ * pairs());
    std::fill_n(hits.begin(), static_cast<size_t>(rate * static_cast<double>(hits.size()) + 0.5),
                uint8_t{1});
    std::shuffle(hits.begin(), hits.end(), random_);
    const Array<uint8_t> device(hits);
    plain = std::make_shared<Array<float>>(layers_ * row_size());
    make_queries<<<1024, 256>>>(device.get(), ring_q_.get(), context_ - 1, plain->size(), 3,
                                plain->get());
    check(cudaDeviceSynchronize());
  }

  void decode(const Case& with, size_t layer, cudaStream_t stream) {
    PagedDecodeArgs args;
    args.kv = {kv_.get(), KvType::kBF16, kKvHeads, kDim};
    args.lists.pages = table_.get() + layer * batch_ * capacity_;
    args.lists.keys = keys_.get();
    args.lists.capacity = capacity_;
    args.batch = batch_;
    args.n_head = kHeads;
    args.q = with.plain->get() + layer * row_size();
    args.scale = 0.088f;
    args.out = out_.get();
    args.lse = lse_.get();
    args.workspace = decode_workspace_.get();
    check(paged_decode(args, stream));
  }

  void reuse(const Case& with, size_t layer, cudaStream_t stream) {
    MacArgs args;
    args.kv = {kv_.get(), KvType::kBF16, kKvHeads, kDim};
    args.pages = table_.get() + layer * batch_ * capacity_;
    args.lists = {args.pages, nullptr, keys_.get(), 1, capacity_};
    args.positions = positions_.get();
    args.rings = with.has_rings ? rings_.get() : no_rings_.get();
    args.batch = batch_;
    args.capacity = capacity_;
    args.n_head = kHeads;
    args.q_plain = with.plain->get() + layer * row_size();
    args.q = args.q_plain;
    args.scale = 0.088f;
    args.ring = {ring_q_.get() + layer * entries() * kDim,
                 ring_out_.get() + layer * entries() * kDim,
                 entries_.get() + layer * entries(),
                 with.guards.get() + layer * pairs(),
                 with.counters.get(),
                 kWindow};
    args.rules.distance2 = 2 * kDim * 0.4f * 0.4f;
    args.rules.guarded = with.guarded;
    args.out = out_.get();
    args.lse = lse_.get();
    args.workspace = workspace_.get();
    check(mac_decode(args, stream));
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
  Array<float> out_, lse_;
  Array<char> workspace_, decode_workspace_;
};

}  // namespace

int main(int argc, char** argv) {
  std::printf("context batch  rate (synthetic) | microseconds a layer\n");
  for (const int32_t context : {2048 + 512, 8192, 16384, 32768, 131072, 262144}) {
    if (argc > 1 && std::to_string(context) != argv[1]) continue;
    for (const uint32_t batch : {1, 8, 32, 64}) {
      if (argc > 2 && std::to_string(batch) != argv[2]) continue;
      if (static_cast<size_t>(context) * batch > 131072 * 64) continue;
      Bench(context, batch).run();
    }
  }
}
