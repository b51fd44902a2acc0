// Searches that serve several rows.
#include <gtest/gtest.h>

#include <cmath>

#include "cuda/key_codes_case.h"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kCapacity = 64;  // of picks

// A case whose rows keep their searches.
struct TurnsCase : CodeCase {
  TurnsCase(const CodeHeads& own, uint32_t tokens)
      : CodeCase(own, tokens),
        searched(size_t{kRows} * kLayers),
        kept(size_t{kRows} * kLayers * q.size() / kRows),
        picks(size_t{kRows} * kLayers * own.n_kv_head * kCapacity),
        due(std::vector<uint32_t>(size_t{kLayers} * kRows, 1)) {
    rules.period = 4;
    rules.budget = 400;
  }
  CodedRow row(uint32_t index) const {
    CodedRow row = CodeCase::row(index);
    row.searched = searched.get() + index * kLayers;
    row.queries = reinterpret_cast<__nv_bfloat16*>(kept.get()) +
                  size_t{index} * kLayers * heads.n_head * heads.head_dim;
    row.picks = picks.get() + size_t{index} * kLayers * heads.n_kv_head * kCapacity;
    return row;
  }
  void set_due(const std::vector<uint32_t>& rows) const {
    ASSERT_EQ(cudaMemcpy(due_of_layer(), rows.data(), rows.size() * 4, cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  uint32_t* due_of_layer() const { return due.get() + size_t{kLayer} * kRows; }

  DeviceArray<int32_t> searched;
  DeviceArray<uint16_t> kept;
  DeviceArray<uint32_t> picks, due;
};

// A step of all rows, some of them due.
struct TurnsSearch : CodeSearch {
  TurnsSearch(TurnsCase& c, const std::vector<int32_t>& at, const std::vector<CodedRow>& own)
      : CodeSearch(c, at, own),
        all_lists(kLayers * lists.host().size(), 0xff),
        all_numbers(kLayers * lists.host().size(), 0xff),
        all_keys(kLayers * keys.host().size(), 0xff),
        tables(all_tables(c)),
        model_layers(std::vector<uint32_t>{0, kModelLayer}) {
    args.due = c.due_of_layer();
    args.pick_capacity = kCapacity;
    const size_t first = size_t{kLayer} * kRows * c.heads.n_kv_head * c.capacity;
    args.lists = all_lists.get() + first;
    args.numbers = all_numbers.get() + first;
    args.keys = all_keys.get() + size_t{kLayer} * kRows * c.heads.n_kv_head;
    new_keys.rows = args.rows;
    new_keys.kv = args.kv;
    new_keys.tables = tables.get();
    new_keys.table_rows = kRows;
    new_keys.model_layers = model_layers.get();
    new_keys.due = c.due.get();
    new_keys.lists = all_lists.get();
    new_keys.numbers = all_numbers.get();
    new_keys.keys = all_keys.get();
    new_keys.due_rows = kRows;
    new_keys.list_capacity = c.capacity;
    new_keys.pick_capacity = kCapacity;
  }
  TurnsSearch(TurnsCase& c, const std::vector<int32_t>& at)
      : TurnsSearch(c, at, {c.row(0), c.row(1), c.row(2)}) {}
  static std::vector<uint32_t> all_tables(const TurnsCase& c) {
    std::vector<uint32_t> tables(size_t{kModelLayer + 1} * kRows * c.capacity);
    std::copy(c.table.begin(), c.table.end(), tables.end() - static_cast<long>(c.table.size()));
    return tables;
  }
  std::vector<uint32_t> list(const TurnsCase& c, uint32_t row, uint32_t head) const {
    const size_t pair = (size_t{kLayer} * kRows + row) * c.heads.n_kv_head + head;
    const auto all = all_lists.host(), places = all_numbers.host();
    const auto count = static_cast<size_t>(all_keys.host()[pair] + 15) / 16;
    std::vector<uint32_t> list;
    for (size_t i = pair * c.capacity; list.size() < count; ++i) {
      EXPECT_EQ(c.table[row * c.capacity + places[i]], all[i]);
      list.push_back(all[i]);
    }
    return list;
  }
  int32_t keys_of(const TurnsCase& c, uint32_t row, uint32_t head) const {
    return all_keys.host()[(size_t{kLayer} * kRows + row) * c.heads.n_kv_head + head];
  }

  DeviceArray<uint32_t> all_lists, all_numbers;
  DeviceArray<int32_t> all_keys;
  DeviceArray<uint32_t> tables, model_layers;
  CodeNewKeysArgs new_keys;
};

class CodeTurns : public testing::TestWithParam<CodeHeads> {};
INSTANTIATE_TEST_SUITE_P(Heads, CodeTurns,
                         testing::Values(CodeHeads{32, 8, 128}, CodeHeads{9, 3, 64, KvType::kFP8},
                                         CodeHeads{16, 1, 256}),
                         [](const auto& test) { return std::to_string(test.param.head_dim); });

// tests/methods/csattention_test.cc has the same table, of layers that begin at 301.
TEST(CodeTurns, LayersTakeTurns) {
  CodeRules rules;
  rules.period = 4;
  const std::vector<std::vector<int>> want = {{0, 3, 7, 11}, {0, 2, 6, 10}, {0, 1, 5, 9},
                                              {0, 4, 8},     {0, 3, 7, 11}, {0, 2, 6, 10}};
  for (uint32_t layer = 0; layer < 6; ++layer) {
    std::vector<int> searches;
    int32_t searched = 0;
    for (int step = 0; step < 12; ++step) {
      if (search_holds(rules, layer, searched, 301 + step)) continue;
      searched = 301 + step;
      searches.push_back(step);
    }
    EXPECT_EQ(searches, want[layer]) << layer;
  }
  EXPECT_FALSE(search_holds(rules, 0, 303, 302));
}

// Layer 5 of the table.
TEST(CodeTurns, RowsBecomeDueWhenSearchesHaveServedTheirTime) {
  REPRISE_NEEDS_DEVICE();
  TurnsCase c({2, 2, 64}, 1000);
  c.rules.budget = 128;
  c.train(c.q, kRows, 512);
  c.code(16);
  if (testing::Test::HasFatalFailure()) return;
  CodedRow bookless = c.row(1);
  bookless.book = nullptr;
  std::vector<int> searches;
  for (int step = 0; step < 12; ++step) {
    TurnsSearch search(c, {300 + step, 300 + step, 90}, {c.row(0), bookless, c.row(2)});
    ASSERT_EQ(code_new_keys(search.new_keys, nullptr), cudaSuccess);
    const auto due = c.due.host();
    EXPECT_EQ(due[kLayer * kRows + 1], 0u);  // has no codebook
    EXPECT_EQ(due[kLayer * kRows + 2], 0u);  // reads everything
    if (due[kLayer * kRows] != 0) searches.push_back(step);
    search.run();
    EXPECT_EQ(c.searched.host()[kLayer], 301 + searches.back());
    for (uint32_t head = 0; head < c.heads.n_kv_head; ++head) {
      EXPECT_EQ(search.keys_of(c, 1, head), 301 + step);
      EXPECT_EQ(search.keys_of(c, 2, head), 91);
      EXPECT_TRUE(std::equal(c.table.begin() + 2 * c.capacity, c.table.begin() + 2 * c.capacity + 6,
                             search.list(c, 2, head).begin()));
    }
  }
  EXPECT_EQ(searches, (std::vector<int>{0, 2, 6, 10}));
  ASSERT_EQ(forget_searches(c.row(0).searched, kLayers, 311, nullptr), cudaSuccess);
  EXPECT_EQ(c.searched.host()[kLayer], 311);
  ASSERT_EQ(forget_searches(c.row(0).searched, kLayers, 310, nullptr), cudaSuccess);
  EXPECT_EQ(c.searched.host()[kLayer], 0);
}

// Whoever is due, the lists of those that are do not change by a bit.
TEST_P(CodeTurns, RowsThatAreDueShareTheBlocks) {
  REPRISE_NEEDS_DEVICE();
  TurnsCase c(GetParam(), 3000);
  c.train(c.q, kRows, 512);
  c.code(2999 / kPageTokens);
  if (HasFatalFailure()) return;
  const std::vector<int32_t> positions = {2990, 1500, 2222};
  TurnsSearch all(c, positions);
  c.set_due({1, 1, 1});
  all.run();
  for (const std::vector<uint32_t>& due :
       std::vector<std::vector<uint32_t>>{{1, 0, 1}, {0, 0, 1}, {0, 1, 0}, {1, 0, 0}, {0, 0, 0}}) {
    c.set_due(due);
    TurnsSearch some(c, positions);
    some.run();
    if (HasFatalFailure()) return;
    for (uint32_t row = 0; row < kRows; ++row) {
      for (uint32_t head = 0; due[row] != 0 && head < c.heads.n_kv_head; ++head) {
        EXPECT_EQ(some.list(c, row, head), all.list(c, row, head)) << row << ", " << head;
      }
    }
  }
}

// Picks of the last search, and what has come since then, in the row's own place of the table.
TEST_P(CodeTurns, OthersReadWhatTheyChoseAndWhatIsNewer) {
  REPRISE_NEEDS_DEVICE();
  TurnsCase c(GetParam(), 3000);
  c.train(c.q, kRows, 512);
  c.code(2999 / kPageTokens);
  if (HasFatalFailure()) return;
  const std::vector<int32_t> then = {2799, 1500, 2222};
  c.set_due({1, 1, 1});
  TurnsSearch first(c, then);
  first.run();
  // The same turns; the first row begins a page.
  const std::vector<int32_t> now = {2801, 1501, 2222};
  std::reverse(c.q.begin(), c.q.end());  // other queries
  TurnsSearch second(c, now);
  ASSERT_EQ(code_new_keys(second.new_keys, nullptr), cudaSuccess);
  second.run();
  if (HasFatalFailure()) return;
  for (uint32_t row = 0; row < kRows; ++row) {
    for (uint32_t head = 0; head < c.heads.n_kv_head; ++head) {
      auto want = first.list(c, row, head);
      for (int32_t page = then[row] / 16 + 1; page <= now[row] / 16; ++page) {
        want.push_back(c.table[row * c.capacity + static_cast<uint32_t>(page)]);
      }
      EXPECT_EQ(second.list(c, row, head), want) << row << ", " << head;
      EXPECT_EQ(second.keys_of(c, row, head), first.keys_of(c, row, head) + now[row] - then[row]);
    }
    EXPECT_EQ(c.due.host()[kLayer * kRows + row], 0u);
  }
}

// As the CPU decides (CsAttentionPolicy::still_holds).
TEST_P(CodeTurns, QueriesThatTurnMakeRowsDue) {
  REPRISE_NEEDS_DEVICE();
  TurnsCase c(GetParam(), 3000);
  c.rules.cosine = 0.8f;
  const std::vector<int32_t> positions = {2990, 1500, 2222};
  c.set_due({1, 1, 1});
  ASSERT_EQ(compare_queries(TurnsSearch(c, positions).args, nullptr), cudaSuccess);
  const auto before = c.q;
  const size_t width = size_t{c.heads.n_head} * c.heads.head_dim, dim = c.heads.head_dim;
  std::normal_distribution<float> noise(0.0f, 0.2f);
  for (size_t i = 0; i < width; ++i) {  // row 0 stays within a cosine of 0.8
    c.q[i] = to_bf16(to_float(Bf16{c.q[i]}) * (1.5f + noise(c.random))).bits;
  }
  for (size_t i = 0; i < dim; ++i) c.q[2 * width - 1 - i] ^= 0x8000;  // row 1's last head turns
  c.q[2 * width + dim] = 0x7fc0;                                      // row 2 has a NaN
  c.set_due({0, 0, 0});
  ASSERT_EQ(compare_queries(TurnsSearch(c, positions).args, nullptr), cudaSuccess);
  const auto due = c.due.host(), kept_due = std::vector<uint32_t>{0, 1, 1};
  const auto kept = c.kept.host();
  for (uint32_t row = 0; row < kRows; ++row) {
    EXPECT_EQ(due[kLayer * kRows + row], kept_due[row]) << row;
    const auto& want = row == 0 ? before : c.q;
    const auto own = kept.begin() + static_cast<long>((row * kLayers + kLayer) * width);
    EXPECT_TRUE(std::equal(own, own + static_cast<long>(width),
                           want.begin() + static_cast<long>(row * width)));
  }
}

}  // namespace
}  // namespace reprise::kernels::cuda
