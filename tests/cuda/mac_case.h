// Steps of MAC-Attention on the device, held to its model.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <string>

#include "cuda/device_testing.h"
#include "cuda/mac_model.h"

namespace reprise::kernels::cuda {

class MacGraph {
 public:
  explicit MacGraph(const MacArgs& args) {
    cudaGraph_t graph;
    EXPECT_EQ(cudaStreamCreate(&stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(mac_decode(args, stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&exec_, graph, 0), cudaSuccess);
    cudaGraphDestroy(graph);
  }
  ~MacGraph() {
    cudaGraphExecDestroy(exec_);
    cudaStreamDestroy(stream_);
  }
  MacGraph(const MacGraph&) = delete;
  MacGraph& operator=(const MacGraph&) = delete;

  void run() const {
    ASSERT_EQ(cudaGraphLaunch(exec_, stream_), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
};

/// Steps of some sequences, each with a ring but for the last one, by one CUDA graph.
class MacCase {
 public:
  /// sparse: heads without a match read half of the pages. capacity: of tables and lists, at least.
  MacCase(const MacShape& shape, const MacRules& rules, std::vector<int32_t> starts, unsigned seed,
          int32_t steps = 24, bool sparse = false, uint32_t capacity = 0)
      : shape_(shape),
        rules_(rules),
        steps_(steps),
        sparse_(sparse),
        overlap_(seed % 2 == 0),
        positions_(std::move(starts)),
        batch_(static_cast<uint32_t>(positions_.size())),
        random_(seed),
        tiles_(shape.type, shape.head_dim, 0),
        themes_(size_t{shape.n_head} * shape.head_dim) {
    const int32_t last = *std::max_element(positions_.begin(), positions_.end()) + steps;
    const uint32_t used = static_cast<uint32_t>(last) / kPageTokens + 1;
    capacity_ = std::max(capacity, used);
    std::vector<uint32_t> ids(size_t{batch_} * used);
    std::iota(ids.begin(), ids.end(), 0u);
    std::shuffle(ids.begin(), ids.end(), random_);
    pages_.resize(size_t{batch_} * capacity_);
    for (uint32_t row = 0; row < batch_; ++row) {
      std::copy_n(&ids[size_t{row} * used], used, &pages_[size_t{row} * capacity_]);
    }
    tiles_ = TestTiles(shape.type, shape.head_dim, ids.size() * shape.n_kv_head * 2);
    tiles_.fill(random_);
    std::normal_distribution<float> normal(0.0f, 1.5f);
    for (float& x : themes_) x = normal(random_);
    for (uint32_t row = 0; row < batch_; ++row) {
      rings_.push_back(row + 1 < batch_ ? batch_ - 2 - row : kNoRing);
      models_.emplace_back(shape, rules);
      models_.back().seed(positions_[row], themes_, random_);
    }
  }

  /// shared: a workspace that others have used.
  void run(const DeviceArray<char>* shared = nullptr) {
    const size_t ring_entries = models_[0].entries.size(), dim = shape_.head_dim;
    const DeviceArray<uint8_t> kv(tiles_.bytes());
    const DeviceArray<uint32_t> pages(pages_), rings(rings_);
    const size_t rings_of_all = size_t{batch_} * kLayers;
    const DeviceArray<MacEntry> entries(ring_entries * rings_of_all, 0xff);
    MacTestRings kept(shape_.coded, ring_entries * dim, rings_of_all);
    const DeviceArray<MacGuardState> guards(rings_of_all * shape_.n_kv_head);
    const DeviceArray<MacCounters> counters(rings_of_all);
    for (uint32_t row = 0; row < batch_; ++row) {
      if (rings_[row] == kNoRing) continue;
      const MacModel& model = models_[row];
      copy(entries.get() + place_of(row) * ring_entries, model.entries);
      kept.set(place_of(row), model.q, model.out);
    }
    const size_t rows = size_t{batch_} * shape_.n_head;
    const DeviceArray<int32_t> positions(batch_), keys(size_t{batch_} * list_heads());
    const DeviceArray<uint32_t> list(keys_of_lists()), numbers(keys_of_lists());
    const DeviceArray<float> plain(rows * dim), out(rows * dim, 0xff), lse(rows, 0xff);
    const DeviceArray<float> q(rows * dim);
    const DeviceArray<char> workspace(
        mac_workspace(rules_, batch_, shape_.n_head, shape_.n_kv_head, shape_.head_dim));
    MacArgs args;
    args.kv = {kv.get(), shape_.type, shape_.n_kv_head, shape_.head_dim};
    args.pages = pages.get();
    args.positions = positions.get();
    args.lists = {pages.get(), nullptr, keys.get(), 1, capacity_};
    if (sparse_) {
      args.lists = {list.get(), nullptr, keys.get(), shape_.n_kv_head, capacity_};
      args.numbers = numbers.get();
    }
    args.rings = rings.get();
    args.batch = batch_;
    args.capacity = capacity_;
    args.n_head = shape_.n_head;
    args.q_plain = plain.get();
    args.q = q.get();
    args.scale = scale();
    kept.describe(args.ring, kLayer);
    args.ring.entries = entries.get() + kLayer * ring_entries;
    args.ring.guards = guards.get() + size_t{kLayer} * shape_.n_kv_head;
    args.ring.counters = counters.get() + kLayer;
    args.ring.window = shape_.window;
    args.ring.layers = kLayers;
    args.rules = rules_;
    args.out = out.get();
    args.lse = lse.get();
    args.workspace = shared != nullptr ? shared->get() : workspace.get();
    args.overlap = overlap_;
    const MacGraph graph(args);
    for (int32_t step = 0; step < steps_; ++step) {
      make_queries();
      copy(positions.get(), positions_);
      make_lists();
      copy(keys.get(), list_keys_);
      copy(list.get(), list_);
      copy(numbers.get(), numbers_);
      mode_ = find_mode();
      ++modes_[static_cast<size_t>(mode_)];
      copy(plain.get(), plain_);
      copy(q.get(), bf16_floats(rotated_));
      graph.run();
      check_step(step, out.host(), lse.host(), entries.host(), kept.results());
      if (testing::Test::HasFailure()) return;
      for (int32_t& position : positions_) position += position >= 0 ? 1 : 0;
    }
    MacCounters all = {};
    for (const MacCounters& each : counters.host()) add(each, all);
    check_counters(all);
  }

  /// Steps that a launch spent so.
  int32_t steps(MacMode mode) const { return modes_[static_cast<size_t>(mode)]; }

 private:
  // The layer that is computed, among those of a ring.
  static constexpr uint32_t kLayers = 3, kLayer = 1;

  // Of a row's ring, among the layers of all rings.
  size_t place_of(uint32_t row) const { return size_t{rings_[row]} * kLayers + kLayer; }
  uint32_t list_heads() const { return sparse_ ? shape_.n_kv_head : 1; }
  size_t keys_of_lists() const { return size_t{batch_} * list_heads() * capacity_; }

  // What a step left on the device: outputs, and rings of all layers.
  void check_step(int32_t step, const std::vector<float>& outs, const std::vector<float>& lses,
                  const std::vector<MacEntry>& all_entries, const std::vector<float>& all_out) {
    const size_t ring_entries = models_[0].entries.size(), dim = shape_.head_dim;
    for (uint32_t row = 0; row < batch_; ++row) {
      SCOPED_TRACE("step " + std::to_string(step) + " row " + std::to_string(row) + " position " +
                   std::to_string(positions_[row]));
      check_row(row, &outs[row * shape_.n_head * dim], &lses[row * shape_.n_head]);
      if (rings_[row] != kNoRing && positions_[row] >= 0) {
        const float* out_of = &all_out[place_of(row) * ring_entries * dim];
        check_ring(models_[row], &all_entries[place_of(row) * ring_entries], out_of);
        // So that codes which rounding moved are reused alike.
        if (shape_.coded) std::copy_n(out_of, ring_entries * dim, models_[row].out.begin());
      }
      if (testing::Test::HasFailure()) return;
    }
  }

  // What is read where nothing is reused.
  void make_lists() {
    list_keys_.clear();
    list_.assign(keys_of_lists(), 0);
    numbers_.assign(keys_of_lists(), 0);
    for (uint32_t row = 0; row < batch_; ++row) {
      const int32_t position = positions_[row], own = position / static_cast<int32_t>(kPageTokens);
      for (uint32_t head = 0; head < list_heads(); ++head) {
        const size_t first = (size_t{row} * list_heads() + head) * capacity_;
        size_t count = 0;
        for (int32_t page = 0; position >= 0 && page <= own; ++page) {
          if (sparse_ && page < own && random_() % 2 == 0) continue;
          list_[first + count] = pages_[size_t{row} * capacity_ + static_cast<uint32_t>(page)];
          numbers_[first + count++] = static_cast<uint32_t>(page);
        }
        const auto after = own * static_cast<int32_t>(kPageTokens) - position - 1;
        const auto all = static_cast<int32_t>(count * kPageTokens);
        list_keys_.push_back(position < 0 ? 0 : all - static_cast<int32_t>(kPageTokens) - after);
      }
      if (!sparse_) continue;
      models_[row].listed_pages.clear();
      for (uint32_t head = 0; head < list_heads(); ++head) {
        const int32_t keys = list_keys_[size_t{row} * list_heads() + head];
        models_[row].listed_pages.push_back((keys + 15) / static_cast<int32_t>(kPageTokens));
      }
      models_[row].listed = [this, row](uint32_t kv_head, int32_t token) {
        const size_t list = size_t{row} * shape_.n_kv_head + kv_head;
        const auto begin = numbers_.begin() + static_cast<std::ptrdiff_t>(list * capacity_);
        const int32_t pages = (list_keys_[list] + 15) / static_cast<int32_t>(kPageTokens);
        return std::binary_search(begin, begin + pages, static_cast<uint32_t>(token) / kPageTokens);
      };
    }
  }

  MacMode find_mode() const {
    double gain = 0.0, missed = 0.0, hope = 0.0;
    bool due = false, stores = false;
    for (uint32_t row = 0; row < batch_; ++row) {
      const bool has_ring = rings_[row] != kNoRing;
      stores = stores || (has_ring && models_[row].stores(positions_[row]));
      for (uint32_t kv_head = 0; kv_head < shape_.n_kv_head; ++kv_head) {
        const auto own = models_[row].prospect(positions_[row], has_ring, kv_head);
        gain += own.gain;
        missed += own.missed;
        hope += own.hope;
        due = due || own.due;
      }
    }
    if (!rules_.guarded) return stores ? MacMode::kReuse : MacMode::kRest;
    const MacCosts& costs = rules_.costs;
    const double far = double{costs.far} * std::min(1.0, missed);
    if (gain > 1.1 * (double{costs.meeting} + far)) return MacMode::kReuse;
    return due && hope > 1.1 * double{costs.meeting} ? MacMode::kTry : MacMode::kRest;
  }

  float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)); }

  template <class T>
  static void copy(T* to, const std::vector<T>& from) {
    EXPECT_EQ(cudaMemcpy(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
  }

  // Most heads are near their theme; sometimes the same query comes again.
  void make_queries() {
    std::normal_distribution<float> normal;
    const size_t dim = shape_.head_dim;
    const bool again = !plain_.empty() && random_() % 5 == 0;
    plain_.resize(size_t{batch_} * shape_.n_head * dim);
    rotated_.resize(plain_.size());
    for (size_t i = 0; i < plain_.size(); i += dim) {
      const float away = random_() % 12 == 0 ? 2.0f : 0.05f;
      for (size_t d = 0; d < dim; ++d) {
        if (!again) plain_[i + d] = themes_[(i + d) % themes_.size()] + away * normal(random_);
        rotated_[i + d] = to_bf16(plain_[i + (d + 7) % dim]).bits;
      }
    }
  }

  double element(uint32_t row, uint32_t kv_head, int32_t token, uint32_t tile, uint32_t d) const {
    const auto at = static_cast<uint32_t>(token);
    const size_t page = pages_[size_t{row} * capacity_ + at / kPageTokens];
    return tiles_.value((page * shape_.n_kv_head + kv_head) * 2 + tile, at % kPageTokens, d);
  }

  void check_row(uint32_t row, const float* out, const float* lse) {
    const size_t dim = shape_.head_dim, first = size_t{row} * shape_.n_head * dim;
    if (positions_[row] < 0) {
      for (uint32_t head = 0; head < shape_.n_head; ++head) {
        ASSERT_EQ(lse[head], -std::numeric_limits<float>::infinity()) << head;
        ASSERT_EQ(out[head * dim], 0.0f) << head;
      }
      return;
    }
    std::vector<double> expected(shape_.n_head * dim), expected_lse(shape_.n_head);
    largest_ = 4.0;  // of the stored results
    models_[row].step(
        positions_[row], rings_[row] != kNoRing, mode_, &plain_[first], &rotated_[first], scale(),
        [&](uint32_t kv_head, int32_t token, uint32_t d) {
          return element(row, kv_head, token, 0, d);
        },
        [&](uint32_t kv_head, int32_t token, uint32_t d) {
          const double value = element(row, kv_head, token, 1, d);
          largest_ = std::max(largest_, std::fabs(value));
          return value;
        },
        expected.data(), expected_lse.data());
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(out[i], expected[i], tolerance()) << "head " << i / dim << " dim " << i % dim;
    }
    for (uint32_t head = 0; head < shape_.n_head; ++head) {
      ASSERT_NEAR(lse[head], expected_lse[head], 0x1p-10) << head;
    }
  }

  // Weights are rounded to bf16, by 2^-8 of each at most; every link of a chain is.
  double tolerance() const { return 0x1p-8 * largest_; }

  // A code may be the next one.
  double stored_tolerance() const {
    return 2 * tolerance() + (shape_.coded ? largest_ / 127 : 0.0);
  }

  void check_ring(const MacModel& model, const MacEntry* entries, const float* out) const {
    const size_t dim = shape_.head_dim;
    for (size_t i = 0; i < model.entries.size(); ++i) {
      const MacEntry &expected = model.entries[i], &entry = entries[i];
      const size_t group = shape_.group();
      SCOPED_TRACE("entry " + std::to_string(i) + ": KV head " +
                   std::to_string(i / group / shape_.window) + " slot " +
                   std::to_string(i / group % shape_.window) + " head " +
                   std::to_string(i % group));
      ASSERT_EQ(entry.position, expected.position);
      if (expected.position < 0) continue;
      ASSERT_EQ(entry.anchor, expected.anchor);
      ASSERT_EQ(entry.depth, expected.depth);
      if (std::isinf(expected.lse)) {
        ASSERT_EQ(entry.lse, expected.lse);
      } else {
        ASSERT_NEAR(entry.lse, expected.lse, 0x1p-9);
      }
      ASSERT_NEAR(entry.share, expected.share, 0x1p-9);
      ASSERT_NEAR(entry.peak, expected.peak, 0x1p-9);
      ASSERT_NEAR(entry.drift, expected.drift, 1e-4f * (1.0f + expected.drift));
      for (size_t d = 0; d < dim; ++d) {
        ASSERT_NEAR(out[i * dim + d], model.out[i * dim + d], stored_tolerance()) << "dim " << d;
      }
    }
  }

  static void add(const MacCounters& from, MacCounters& to) {
    to.steps += from.steps;
    to.compared += from.compared;
    to.group_hits += from.group_hits;
    to.head_hits += from.head_hits;
    to.reused_heads += from.reused_heads;
    to.keys += from.keys;
    to.skipped += from.skipped;
    to.lag += from.lag;
    to.nonfinite += from.nonfinite;
  }

  void check_counters(const MacCounters& counters) const {
    MacCounters sums = {};
    for (const MacModel& model : models_) add(model.counters, sums);
    EXPECT_EQ(counters.group_hits, sums.group_hits);
    EXPECT_EQ(counters.head_hits, sums.head_hits);
    EXPECT_EQ(counters.reused_heads, sums.reused_heads);
    EXPECT_EQ(counters.skipped, sums.skipped);
    EXPECT_EQ(counters.lag, sums.lag);
    EXPECT_EQ(counters.keys, sums.keys);
    EXPECT_EQ(counters.steps, sums.steps);
    EXPECT_EQ(counters.compared, sums.compared);
    EXPECT_EQ(counters.nonfinite, 0u);
    std::printf("  %u/%u/%u: %llu of %llu groups hit, %llu heads\n", shape_.n_head,
                shape_.n_kv_head, shape_.head_dim, counters.group_hits, counters.compared,
                counters.head_hits);
  }

  MacShape shape_;
  MacRules rules_;
  int32_t steps_;
  bool sparse_;
  bool overlap_;
  std::vector<int32_t> positions_;
  uint32_t batch_, capacity_ = 0;
  std::mt19937 random_;
  TestTiles tiles_;
  std::vector<float> themes_, plain_;
  std::vector<uint16_t> rotated_;
  std::vector<uint32_t> pages_, rings_, list_, numbers_;
  std::vector<int32_t> list_keys_;
  std::vector<MacModel> models_;
  double largest_ = 0.0;
  MacMode mode_ = MacMode::kRest;
  std::array<int32_t, 3> modes_ = {};
};

}  // namespace reprise::kernels::cuda
