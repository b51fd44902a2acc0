#include "cuda/mac_case.h"
#include "kernels/key_tile.h"

namespace reprise::kernels::cuda {
namespace {

MacRules rules(int32_t sink, int32_t band, int32_t align, uint32_t window, float distance2) {
  MacRules rules;
  rules.sink = sink;
  rules.band = band;
  rules.align = align;
  rules.min_context = 40;
  rules.max_gap = static_cast<int32_t>(window) - 1;
  rules.distance2 = distance2;
  return rules;
}

const std::vector<int32_t> kStarts = {300, 0, 35, -1, 500, 120};

TEST(Mac, SaysWhatItDoesNotServe) {
  REPRISE_NEEDS_DEVICE();
  MacArgs args;
  args.batch = 1;
  args.n_head = 4;
  args.kv.n_kv_head = 4;
  args.kv.head_dim = 80;
  args.ring.window = 16;
  EXPECT_EQ(mac_decode(args, nullptr), cudaErrorNotSupported);
  args.kv.head_dim = 64;
  args.n_head = 4 * 17;
  EXPECT_EQ(mac_decode(args, nullptr), cudaErrorNotSupported);
}

TEST(Mac, EqualsDoublePrecision) {
  REPRISE_NEEDS_DEVICE();
  unsigned seed = 0;
  for (const MacShape& shape :
       {MacShape{32, 8, 128, 64}, MacShape{9, 3, 64, 16}, MacShape{8, 8, 96, 33},
        MacShape{16, 1, 128, 64}, MacShape{8, 2, 256, 100}, MacShape{16, 1, 256, 4},
        MacShape{8, 1, 64, 64, KvType::kF16}, MacShape{8, 2, 128, 64, KvType::kFP8},
        MacShape{32, 8, 128, 64, KvType::kBF16, true}, MacShape{9, 3, 64, 16, KvType::kBF16, true},
        MacShape{8, 8, 96, 33, KvType::kF16, true}, MacShape{8, 2, 256, 100, KvType::kFP8, true},
        MacShape{16, 1, 256, 4, KvType::kBF16, true}}) {
    SCOPED_TRACE(std::to_string(shape.n_head) + " heads, " + std::to_string(shape.head_dim));
    MacCase(shape, rules(64, 32, 16, shape.window, 20.0f), kStarts, ++seed).run();
    if (HasFailure()) return;
  }
}

TEST(Mac, ServesAllRules) {
  REPRISE_NEEDS_DEVICE();
  const MacShape shape{12, 4, 64, 64};
  std::vector<MacRules> all = {rules(0, 32, 1, 64, 20.0f),  rules(1, 0, 1, 64, 20.0f),
                               rules(64, 8, 64, 64, 20.0f), rules(20, 100, 24, 64, 20.0f),
                               rules(0, 0, 16, 64, 20.0f),  rules(64, 32, 16, 64, 0.0f)};
  for (const bool split : {false, true}) {
    MacRules each = rules(16, 17, 16, 64, 20.0f);
    each.split = split;
    each.anchored = !split;
    each.max_age = 30;
    all.push_back(each);
    each.max_error = 0.02f;
    each.max_gap = 20;
    all.push_back(each);
  }
  unsigned seed = 100;
  for (const MacRules& each : all) {
    SCOPED_TRACE("rules " + std::to_string(seed - 100));
    MacCase(shape, each, kStarts, ++seed).run();
    if (HasFailure()) return;
  }
}

// Nothing matches: it looks a few times and rests.
TEST(Mac, RestsWhereNothingMatches) {
  REPRISE_NEEDS_DEVICE();
  MacRules each = rules(16, 32, 16, 16, 0.0f);
  each.guarded = true;
  each.costs = {1e3f, 1e3f, 0.0f};
  for (const bool coded : {false, true}) {
    MacCase steps({4, 2, 64, 16, KvType::kBF16, coded}, each, {160, 200, -1, 90}, 9, 50);
    steps.run();
    EXPECT_EQ(steps.steps(MacMode::kTry), 4);
    EXPECT_EQ(steps.steps(MacMode::kReuse), 0);
  }
}

// Nor does it look where contexts are too short to gain.
TEST(Mac, ShortContextsRest) {
  REPRISE_NEEDS_DEVICE();
  MacRules each = rules(16, 32, 16, 16, 20.0f);
  each.guarded = true;
  MacCase steps({4, 2, 64, 16}, each, {160, 200, -1, 90}, 9, 20);
  steps.run();
  EXPECT_EQ(steps.steps(MacMode::kRest), 20);
}

// It begins, and goes on as long as it pays: where it must read far it does not.
TEST(Mac, GuardWeighsCosts) {
  REPRISE_NEEDS_DEVICE();
  unsigned seed = 200;
  for (const uint32_t batch : {2u, 5u, 70u}) {
    for (const MacCosts& costs : {MacCosts{1e3f, 1e3f, 0.0f}, MacCosts{2e4f, 1e5f, 0.0f}}) {
      SCOPED_TRACE(std::to_string(batch) + " rows, far " + std::to_string(costs.far));
      MacRules each = rules(16, 32, 16, 16, 20.0f);
      each.guarded = true;
      each.costs = costs;
      std::vector<int32_t> starts;
      for (uint32_t i = 0; i < batch; ++i) {
        starts.push_back(i % 9 == 4 ? -1 : 300 + static_cast<int32_t>(i) * 37 % 211);
      }
      const bool coded = ++seed % 2 == 0;
      MacCase steps({8, 4, 64, 16, KvType::kBF16, coded}, each, starts, seed, batch > 5 ? 30 : 120);
      steps.run();
      std::printf("  rests %d, tries %d, reuses %d\n", steps.steps(MacMode::kRest),
                  steps.steps(MacMode::kTry), steps.steps(MacMode::kReuse));
      EXPECT_GE(steps.steps(MacMode::kTry), 4);
      EXPECT_GT(steps.steps(MacMode::kReuse), 0);
      if (HasFailure()) return;
    }
  }
}

// What reuse saves over a list is at most what the list names.
TEST(Mac, RestsOverShortLists) {
  REPRISE_NEEDS_DEVICE();
  MacRules each = rules(16, 32, 16, 16, 20.0f);
  each.guarded = true;
  each.costs = {1e3f, 1e3f, 0.0f};
  const MacShape shape{8, 4, 64, 16};
  const std::vector<int32_t> starts = {300, 330, -1, 410, 20};
  for (const float meeting : {1e3f, 5e5f}) {
    each.costs.meeting = meeting;
    for (const bool sparse : {false, true}) {
      SCOPED_TRACE((sparse ? "lists, meeting " : "meeting ") + std::to_string(meeting));
      MacCase steps(shape, each, starts, 7, 60, sparse);
      steps.run();
      std::printf("  rests %d, tries %d, reuses %d\n", steps.steps(MacMode::kRest),
                  steps.steps(MacMode::kTry), steps.steps(MacMode::kReuse));
      if (HasFailure()) return;
      if (sparse && meeting > 1e5f) {
        EXPECT_EQ(steps.steps(MacMode::kRest), 60);
      } else {
        EXPECT_GT(steps.steps(MacMode::kReuse), 0);
      }
    }
  }
}

// What must be computed is read through lists, in any mode and with any rules.
TEST(Mac, ReadsListedPages) {
  REPRISE_NEEDS_DEVICE();
  unsigned seed = 300;
  for (const MacShape& shape : {MacShape{12, 4, 64, 64}, MacShape{32, 8, 128, 64}}) {
    for (const int32_t align : {1, 16}) {
      for (const bool split : {false, true}) {
        SCOPED_TRACE("rules " + std::to_string(++seed));
        MacRules each = rules(20, 33, align, 64, 20.0f);
        each.split = split;
        MacCase(shape, each, kStarts, seed, 24, true).run();
        if (HasFailure()) return;
      }
    }
  }
  MacRules each = rules(16, 32, 16, 16, 0.0f);
  each.guarded = true;
  MacCase({4, 2, 64, 16}, each, {160, 200, -1, 90}, ++seed, 20, true).run();
}

// Entries of lists are counted beyond 16 bits.
TEST(Mac, ReadsListedPagesOfLongTables) {
  REPRISE_NEEDS_DEVICE();
  constexpr uint32_t kCapacity = 1 << 16;
  MacCase({12, 4, 64, 64}, rules(20, 33, 16, 64, 20.0f), {5000, 300, 90}, 350, 8, true, kCapacity)
      .run();
}

TEST(Mac, PublishedSizes) {
  REPRISE_NEEDS_DEVICE();
  MacRules each = rules(64, 256, 16, 512, 60.0f);
  each.min_context = 2048;
  for (const bool coded : {false, true}) {
    MacCase({8, 2, 128, 512, KvType::kBF16, coded}, each, {3000, 2040, 5}, 7).run();
  }
}

// Codes and scales are those of the CPU's rings, number by number.
TEST(Mac, KeepsTheNumbersOfTheCpu) {
  REPRISE_NEEDS_DEVICE();
  for (const uint32_t dim : {64u, 96u, 128u, 256u}) {
    SCOPED_TRACE(dim);
    const uint32_t n_head = 6, n_kv_head = 2, window = 8, rows = 5;
    const int32_t first = 20;
    std::vector<float> q(size_t{rows} * n_head * dim), out(q.size());
    std::mt19937 random(dim);
    std::normal_distribution<float> normal;
    for (float& x : q) x = normal(random) * std::exp(4.0f * normal(random));
    for (float& x : out) x = normal(random);
    std::fill_n(q.begin() + dim, 32, 0.0f);
    const DeviceArray<float> device_q(q), device_out(out), lse(size_t{rows} * n_head);
    const DeviceArray<MacEntry> entries(size_t{window} * n_head, 0xff);
    const DeviceArray<MacCounters> counters(1);
    const MacTestRings kept(true, size_t{window} * n_head * dim, 1);
    MacSeedArgs args;
    kept.describe(args.ring);
    args.ring.entries = entries.get();
    args.ring.counters = counters.get();
    args.ring.window = window;
    args.rows = {0, rows, first};
    args.n_head = n_head;
    args.n_kv_head = n_kv_head;
    args.head_dim = dim;
    args.q_plain = device_q.get();
    args.out = device_out.get();
    args.lse = args.full_lse = lse.get();
    ASSERT_EQ(mac_seed(args, nullptr), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const std::vector<float> queries = kept.queries(), results = kept.results();
    const KvLayout layout{reprise::kernels::KvType::kQ8_0, 1, dim};
    std::vector<std::byte> tile(layout.tile_bytes());
    std::vector<float> expected(dim);
    for (uint32_t i = 0; i < rows * n_head; ++i) {
      const uint32_t head = i % n_head, group = n_head / n_kv_head;
      const uint32_t slot = (static_cast<uint32_t>(first) + i / n_head) % window;
      const size_t at = ((size_t{head / group} * window + slot) * group + head % group) * dim;
      for (const bool is_query : {true, false}) {
        store_k(layout, tile.data(), 3, &(is_query ? q : out)[size_t{i} * dim]);
        load_k(layout, tile.data(), 3, expected.data());
        const auto begin = (is_query ? queries : results).begin() + static_cast<ptrdiff_t>(at);
        EXPECT_EQ(std::vector<float>(begin, begin + dim), expected) << "row and head " << i;
      }
    }
  }
}

// Shares of rows of a prompt, and peaks that follow from an entry before them, or do not.
TEST(Mac, RowsOfAPromptKnowWhatTheyWeigh) {
  REPRISE_NEEDS_DEVICE();
  constexpr uint32_t kHeads = 6, kKvHeads = 2, kGroup = 3, kDim = 64, kWindow = 40, kRows = 39;
  constexpr int32_t kFirst = 25;
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> lse(size_t{kRows} * kHeads), full(lse.size());
  for (float& x : lse) x = normal(random);
  for (size_t i = 0; i < full.size(); ++i) full[i] = lse[i] + std::abs(3.0f * normal(random));
  const DeviceArray<float> rows(size_t{kRows} * kHeads * kDim), device_lse(lse), device_full(full);
  const DeviceArray<MacCounters> counters(1);
  const MacTestRings kept(false, size_t{kWindow} * kHeads * kDim, 1);
  const auto slot = [](int32_t position, uint32_t head) {
    const uint32_t at = static_cast<uint32_t>(position) % kWindow;
    return (size_t{head / kGroup} * kWindow + at) * kGroup + head % kGroup;
  };
  for (const bool follows : {true, false}) {
    std::vector<MacEntry> start(size_t{kWindow} * kHeads, MacEntry{-1, -1, 0, 0, 0, 0, 0});
    for (uint32_t head = 0; head < kHeads; ++head) {
      start[slot(kFirst - 1, head)] = {kFirst - 1, kFirst - 1, 0, 0, 0, 0.99f, 0};
    }
    const DeviceArray<MacEntry> entries(start);
    MacSeedArgs args;
    kept.describe(args.ring);
    args.ring.entries = entries.get();
    args.ring.counters = counters.get();
    args.ring.window = kWindow;
    args.follows = follows;
    args.rows = {0, kRows, kFirst};
    args.n_head = kHeads;
    args.n_kv_head = kKvHeads;
    args.head_dim = kDim;
    args.q_plain = args.out = rows.get();
    args.lse = device_lse.get();
    args.full_lse = device_full.get();
    ASSERT_EQ(mac_seed(args, nullptr), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const std::vector<MacEntry> got = entries.host();
    for (uint32_t head = 0; head < kHeads; ++head) {
      double peak = follows ? double{0.99f} : 0.0;
      for (uint32_t row = 0; row < kRows; ++row) {
        const size_t i = size_t{row} * kHeads + head;
        const double share = std::exp(double{lse[i]} - full[i]);
        peak = std::max(share, peak * (1.0 - 1.0 / kWindow));
        const MacEntry& entry = got[slot(kFirst + static_cast<int32_t>(row), head)];
        ASSERT_EQ(entry.position, kFirst + static_cast<int32_t>(row));
        ASSERT_NEAR(entry.share, share, 1e-5) << "row " << row << " head " << head;
        ASSERT_NEAR(entry.peak, peak, 1e-5) << "row " << row << " head " << head;
      }
    }
  }
}

// More pairs than multiprocessors: a block serves many.
TEST(Mac, ManySequencesShareBlocks) {
  REPRISE_NEEDS_DEVICE();
  std::vector<int32_t> starts;
  for (int32_t i = 0; i < 80; ++i) starts.push_back(i % 7 == 3 ? -1 : i * 37 % 211);
  for (const bool coded : {false, true}) {
    MacCase({8, 4, 64, 16, KvType::kBF16, coded}, rules(16, 32, 16, 16, 20.0f), starts, 8).run();
  }
}

// Shares hold some chunks of a band, of one row or of two.
TEST(Mac, LongBandsAreReadInFewerPieces) {
  REPRISE_NEEDS_DEVICE();
  for (const int32_t rows : {12, 40}) {
    SCOPED_TRACE(std::to_string(rows) + " rows");
    std::vector<int32_t> starts;
    for (int32_t i = 0; i < rows; ++i) starts.push_back(i % 9 == 5 ? -1 : i * 137 % 900);
    const bool coded = rows == 12;
    MacCase({16, 8, 64, 64, KvType::kBF16, coded}, rules(16, 700, 16, 64, 20.0f), starts, 11, 6)
        .run();
    if (HasFailure()) return;
  }
}

// Nothing that launches of other batches left in a workspace is taken for a message.
TEST(Mac, BatchesShareAWorkspace) {
  REPRISE_NEEDS_DEVICE();
  const MacShape shape{8, 4, 64, 64};
  const MacRules each = rules(16, 32, 16, 64, 20.0f);
  const DeviceArray<char> workspace(mac_workspace(each, 40, 8, 4, 64));
  unsigned seed = 400;
  for (const int32_t rows : {40, 2, 4, 40, 3, 2}) {
    SCOPED_TRACE(std::to_string(rows) + " rows");
    std::vector<int32_t> starts;
    for (int32_t i = 0; i < rows; ++i) starts.push_back(100 + i * 37 % 211);
    MacCase(shape, each, starts, ++seed, 6).run(&workspace);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace reprise::kernels::cuda
