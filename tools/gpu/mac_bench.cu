// Times MAC-Attention's decode step against full attention: layers, whose rings and read pages are
// more than the L2 cache holds, one after the other in a CUDA graph; graphs in turns, medians. Hit
// rates are synthetic: of KV heads, chosen independently; a match is 300 tokens back, other entries
// are far away.
//
//     cmake --build build --target mac_bench
//     build/mac_bench [context [batch]]
//
// Columns: how rings are kept; microseconds a layer of full attention; of MAC without its guard,
// and with it once it has settled; how many times faster than full attention; shares of keys that
// are not read without the guard, and of steps that compare with it. "off": sequences without
// rings. "try": every step compares for the guard alone. "1 %": all hit, and the band is so large
// that a hundredth of the keys is read.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gpu/graph_timing.h"
#include "gpu/mac_bench_data.cuh"

using namespace reprise::kernels::cuda;

namespace {

constexpr size_t kPageBytes = size_t{kKvHeads} * 2 * tile_bytes(KvType::kBF16, kDim);
constexpr double kTouched = 480e6;  // bytes read in turn, at least
constexpr int32_t kBand = 256;

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
        ring_q_codes_(ring_q_.size()),
        ring_out_codes_(ring_out_.size()),
        ring_q_scales_(ring_q_.size() / mac::kScaled),
        ring_out_scales_(ring_out_.size() / mac::kScaled),
        out_(row_size()),
        lse_(size_t{batch} * kHeads),
        workspace_(mac_workspace(rules(large_band()), batch, kHeads, kKvHeads, kDim)),
        decode_workspace_(paged_decode_workspace(batch, kHeads, kKvHeads, kDim)) {
    fill<<<1024, 256>>>(kv_.get(), kv_.size(), 1);
    fill<<<1024, 256>>>(ring_q_.get(), ring_q_.size(), 2);
    make_codes<<<1024, 256>>>(ring_q_.get(), ring_q_.size(), ring_q_codes_.get(),
                              ring_q_scales_.get());
    fill_entries<<<1024, 256>>>(entries_.get(), entries_.size(), context - 1);
    check(cudaDeviceSynchronize());
  }

  void run() {
    std::vector<std::unique_ptr<Case>> cases;
    for (const double rate : {0.0, 0.5, 0.8, 0.9, 0.95, 0.99, 1.0}) {
      const auto plain = queries(rate);
      for (const bool coded : {false, true}) {
        add(cases, std::to_string(rate).substr(0, 4), coded, plain);
        if (rate < 1.0 || large_band() <= kBand) continue;
        add(cases, "1 %", coded, plain);
        for (size_t i = cases.size() - 2; i < cases.size(); ++i) cases[i]->band = large_band();
      }
    }
    for (const bool coded : {false, true}) {
      add(cases, "off/try", coded, cases[0]->plain);
      cases[cases.size() - 2]->has_rings = false;
      cases.back()->tries = true;
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

    std::string name;
    int32_t band = kBand;
    bool coded = false, guarded = false, has_rings = true, tries = false;
    std::shared_ptr<Array<float>> plain;
    Array<MacGuardState> guards;
    Array<MacCounters> counters;
    std::unique_ptr<TimedGraph> graph;
    std::vector<double> times;
  };

  // Without and with the guard.
  void add(std::vector<std::unique_ptr<Case>>& cases, const std::string& name, bool coded,
           const std::shared_ptr<Array<float>>& plain) const {
    for (const bool guarded : {false, true}) {
      cases.push_back(std::make_unique<Case>(layers_ * pairs(), batch_));
      Case& each = *cases.back();
      each.name = name;
      each.coded = coded;
      each.guarded = guarded;
      each.plain = plain;
    }
  }

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
      std::printf(
          "%7d %5u %7s %s | full %8.2f | mac %8.2f %6.2fx | guard %8.2f %6.2fx | "
          "%.4f %.3f\n",
          context_, batch_, one.name.c_str(), one.coded ? "q8_0" : "f32 ", all, us, all / us,
          guarded, all / guarded, skipped(one), compared(two));
    }
    std::fflush(stdout);
  }

  static double compared(const Case& of) {
    MacCounters counters;  // all sequences are alike
    check(cudaMemcpy(&counters, of.counters.get(), sizeof counters, cudaMemcpyDeviceToHost));
    return static_cast<double>(counters.compared) /
           static_cast<double>(std::max(1ull, counters.steps));
  }
  static double skipped(const Case& of) {
    std::vector<MacCounters> counters(of.counters.size());
    check(cudaMemcpy(counters.data(), of.counters.get(), counters.size() * sizeof(MacCounters),
                     cudaMemcpyDeviceToHost));
    unsigned long long keys = 0, skipped = 0;
    for (const MacCounters& each : counters) {
      keys += each.keys;
      skipped += each.skipped;
    }
    return static_cast<double>(skipped) / static_cast<double>(std::max(1ull, keys));
  }

  // With which a hundredth of the keys is read where all hit.
  int32_t large_band() const { return context_ / 100 - MacRules{}.sink - kLag; }
  static MacRules rules(int32_t band) {
    MacRules rules;
    rules.band = std::max(kBand, band);
    rules.distance2 = 2 * kDim * 0.4f * 0.4f;
    rules.max_error = 1e9f;  // asked for, as by default, and never exceeded
    return rules;
  }

  // At some rate of hits.
  std::shared_ptr<Array<float>> queries(double rate) {
    std::vector<uint8_t> hits(layers_ * pairs());
    std::fill_n(hits.begin(), static_cast<size_t>(rate * static_cast<double>(hits.size()) + 0.5),
                uint8_t{1});
    std::shuffle(hits.begin(), hits.end(), random_);
    const Array<uint8_t> device(hits);
    const auto plain = std::make_shared<Array<float>>(layers_ * row_size());
    make_queries<<<1024, 256>>>(device.get(), ring_q_.get(), context_ - 1, plain->size(), 3,
                                plain->get());
    check(cudaDeviceSynchronize());
    return plain;
  }

  MacRings rings(const Case& with, size_t layer) const {
    const size_t first = layer * entries() * kDim;
    MacRings rings;
    rings.q = ring_q_.get() + first;
    rings.out = ring_out_.get() + first;
    if (with.coded) {
      rings.q = ring_q_codes_.get() + first;
      rings.out = ring_out_codes_.get() + first;
      rings.q_scales = ring_q_scales_.get() + first / mac::kScaled;
      rings.out_scales = ring_out_scales_.get() + first / mac::kScaled;
    }
    rings.entries = entries_.get() + layer * entries();
    rings.guards = with.guards.get() + layer * pairs();
    rings.counters = with.counters.get();
    rings.window = kWindow;
    return rings;
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
    args.ring = rings(with, layer);
    args.rules = rules(with.band);
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
  Array<int8_t> ring_q_codes_, ring_out_codes_;
  Array<float> ring_q_scales_, ring_out_scales_;
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
