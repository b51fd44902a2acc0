#include "kernels/cuda/page_bounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>

#include "base/float16.h"
#include "cuda/device_testing.h"
#include "cuda/page_testing.h"

namespace reprise::kernels::cuda {
namespace {

constexpr uint16_t kUntouched = 0xa5a5;
constexpr uint32_t kNoPage = ~0u;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Heads {
  uint32_t n_head, n_kv_head, head_dim;
};
// Groups of 1, 3, 4 and 16 query heads.
constexpr Heads kHeads[] = {{32, 8, 128}, {9, 3, 64},   {2, 2, 96},   {16, 1, 256}, {8, 8, 64},
                            {16, 1, 128}, {32, 2, 64},  {12, 4, 256}, {16, 4, 96},  {5, 5, 128},
                            {32, 2, 96},  {16, 4, 256}, {11, 1, 128}, {10, 2, 128}};

std::string name_of(const Heads& heads) {
  return std::to_string(heads.n_head) + "_" + std::to_string(heads.n_kv_head) + "_" +
         std::to_string(heads.head_dim);
}

__nv_bfloat16* bf16(const DeviceArray<uint16_t>& array) {
  return reinterpret_cast<__nv_bfloat16*>(array.get());
}

// The least bf16 that is not below value.
uint16_t rounded_up(float value) {
  uint16_t bits = to_bf16(value).bits;
  if (to_float(Bf16{bits}) >= value) return bits;
  return static_cast<uint16_t>(bits & 0x8000 ? bits - 1 : bits + 1);
}

// Largest and smallest keys of a page's K tile: [2][head_dim].
std::vector<float> page_bounds(const TestTiles& tiles, size_t tile, uint32_t head_dim) {
  std::vector<float> bounds(2 * head_dim);
  for (uint32_t d = 0; d < head_dim; ++d) {
    float high = -kInfinity, low = kInfinity;
    for (uint32_t token = 0; token < kPageTokens; ++token) {
      const auto value = static_cast<float>(tiles.value(tile, token, d));
      high = std::max(high, value);
      low = std::min(low, value);
    }
    bounds[d] = to_float(Bf16{rounded_up(high)});
    bounds[head_dim + d] = -to_float(Bf16{rounded_up(-low)});
  }
  return bounds;
}

// Checks the bounds of all pages; those of pages that are not in filled are untouched.
void expect_bounds(const TestTiles& tiles, const Heads& heads, const std::vector<uint16_t>& bounds,
                   const std::vector<bool>& filled) {
  const size_t size = 2 * heads.head_dim;
  for (size_t unit = 0; unit < bounds.size() / size; ++unit) {
    const bool is_filled = filled[unit / heads.n_kv_head];
    const auto expected = page_bounds(tiles, unit * 2, heads.head_dim);
    for (size_t i = 0; i < size; ++i) {
      const uint16_t got = bounds[unit * size + i];
      if (is_filled) {
        ASSERT_EQ(to_float(Bf16{got}), expected[i]) << "page and head " << unit << ", " << i;
      } else {
        ASSERT_EQ(got, kUntouched) << "page and head " << unit << ", " << i;
      }
    }
  }
}

class PageBounds : public testing::TestWithParam<Heads> {};
INSTANTIATE_TEST_SUITE_P(Heads, PageBounds, testing::ValuesIn(kHeads),
                         [](const auto& test) { return name_of(test.param); });

TEST_P(PageBounds, AreThoseOfPagesThatRowsFilled) {
  REPRISE_NEEDS_DEVICE();
  const Heads heads = GetParam();
  constexpr uint32_t kPages = 9, kCapacity = 3;
  const std::vector<uint32_t> table = {7, 2, 8, 4, 5, 6, 0, 3, 1};  // [3, kCapacity]
  const std::vector<int32_t> positions = {14, 15, 16, 30, 31, 47, 63, -1, (1 << 30) + 15, 47};
  const std::vector<uint32_t> sequences = {0, 0, 0, 1, 1, 1, 1, 2, 2, 2};
  std::vector<bool> filled(kPages);
  for (const uint32_t page : {7, 5, 6, 1}) filled[page] = true;
  std::mt19937 random(3);
  for (const KvType type : {KvType::kBF16, KvType::kF16, KvType::kFP8}) {
    SCOPED_TRACE("type " + std::to_string(static_cast<int>(type)));
    TestTiles tiles(type, heads.head_dim, kPages * heads.n_kv_head * 2);
    tiles.fill(random);
    const DeviceArray<uint8_t> kv(tiles.bytes());
    const DeviceArray<int32_t> device_positions(positions);
    const DeviceArray<uint32_t> device_sequences(sequences), device_table(table);
    const DeviceArray<uint16_t> bounds(size_t{kPages} * heads.n_kv_head * 2 * heads.head_dim, 0xa5);
    PageBoundsArgs args;
    args.kv = {kv.get(), type, heads.n_kv_head, heads.head_dim};
    args.positions = device_positions.get();
    args.sequences = device_sequences.get();
    args.rows = static_cast<uint32_t>(positions.size());
    args.pages = device_table.get();
    args.capacity = kCapacity;
    args.bounds = bf16(bounds);
    ASSERT_EQ(update_page_bounds(args, nullptr), cudaSuccess);
    expect_bounds(tiles, heads, bounds.host(), filled);
    if (HasFatalFailure()) return;
    const DeviceArray<uint32_t> listed(std::vector<uint32_t>{3, 0});
    ASSERT_EQ(bound_pages(args.kv, {listed.get(), 0, 2}, args.bounds, nullptr), cudaSuccess);
    filled[3] = filled[0] = true;
    expect_bounds(tiles, heads, bounds.host(), filled);
    if (HasFatalFailure()) return;
    filled[3] = filled[0] = false;
    ASSERT_EQ(bound_pages(args.kv, {nullptr, 1, kPages - 1}, args.bounds, nullptr), cudaSuccess);
    ASSERT_EQ(bound_pages(args.kv, {nullptr, 0, 1}, args.bounds, nullptr), cudaSuccess);
    expect_bounds(tiles, heads, bounds.host(), std::vector<bool>(kPages, true));
    if (HasFatalFailure()) return;
  }
}

// Rows that begin a page: the pages before them, in every layer.
TEST(PageBoundsArgs, PagesBeforeRowsAreBoundInAllLayers) {
  REPRISE_NEEDS_DEVICE();
  constexpr Heads kShape = {6, 2, 64};
  constexpr uint32_t kPages = 9, kCapacity = 3, kLayers = 2, kTableRows = 2;
  const std::vector<uint32_t> tables = {7, 2, 8, 4,       5, 6,  // [kLayers, kTableRows, kCapacity]
                                        0, 3, 1, kNoPage, 7, 2};
  const std::vector<int32_t> positions = {32, 16, 15, 0, 47};
  const std::vector<uint32_t> sequences = {0, 1, 1, 0, 1};
  std::vector<bool> filled(kPages);
  for (const uint32_t page : {2, 4, 3}) filled[page] = true;
  std::mt19937 random(3);
  TestTiles tiles(KvType::kBF16, kShape.head_dim, kPages * kShape.n_kv_head * 2);
  tiles.fill(random);
  const DeviceArray<uint8_t> kv(tiles.bytes());
  const DeviceArray<int32_t> device_positions(positions);
  const DeviceArray<uint32_t> device_sequences(sequences), device_tables(tables);
  const DeviceArray<uint16_t> bounds(size_t{kPages} * kShape.n_kv_head * 2 * kShape.head_dim, 0xa5);
  PageBoundsArgs args;
  args.kv = {kv.get(), KvType::kBF16, kShape.n_kv_head, kShape.head_dim};
  args.positions = device_positions.get();
  args.sequences = device_sequences.get();
  args.rows = static_cast<uint32_t>(positions.size());
  args.pages = device_tables.get();
  args.layers = kLayers;
  args.table_rows = kTableRows;
  args.capacity = kCapacity;
  args.before = true;
  args.bounds = bf16(bounds);
  ASSERT_EQ(update_page_bounds(args, nullptr), cudaSuccess);
  expect_bounds(tiles, kShape, bounds.host(), filled);
}

// q: [group, head_dim]; bounds: [2][head_dim].
struct Score {
  double value, error;
};
template <typename Bound>
Score expected_score(const uint16_t* q, uint32_t group, uint32_t head_dim, Bound&& bound) {
  Score best = {-kInfinity, 0};
  for (uint32_t head = 0; head < group; ++head) {
    double sum = 0, magnitude = 0;
    for (uint32_t d = 0; d < head_dim; ++d) {
      const double value = to_float(Bf16{q[head * head_dim + d]});
      const double term = std::max(value * bound(d), value * bound(head_dim + d));
      sum += term;
      magnitude += std::abs(term);
    }
    // Products are exact; each of 2 head_dim additions may be cut off at 2^-23 of the magnitude.
    best = {std::max(best.value, sum), std::max(best.error, 2 * head_dim * 0x1p-23 * magnitude)};
  }
  return best;
}

TEST_P(PageBounds, ScoresAreTheLargestBoundOfAGroup) {
  REPRISE_NEEDS_DEVICE();
  const Heads heads = GetParam();
  constexpr uint32_t kCapacity = 300, kBudget = 2;
  const std::vector<int32_t> positions = {-1,   5,   16,  31,   32,   47,   16 * 15 + 3,
                                          4799, 256, 257, 1000, 4800, 1111, 2222};
  const auto count = static_cast<uint32_t>(positions.size());
  const uint32_t group = heads.n_head / heads.n_kv_head, dim = heads.head_dim;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<uint32_t> table(size_t{count} * kCapacity);
  std::iota(table.begin(), table.end(), 0u);
  std::shuffle(table.begin(), table.end(), random);
  std::vector<uint16_t> q(size_t{count} * heads.n_head * dim);
  for (uint16_t& value : q) value = to_bf16(normal(random)).bits;
  std::vector<uint16_t> noise(1 << 16);  // pairs of a larger and a smaller value
  for (size_t i = 0; i < noise.size(); i += 2) {
    const float middle = normal(random), radius = std::abs(normal(random));
    noise[i] = to_bf16(middle + radius).bits;
    noise[i + 1] = to_bf16(middle - radius).bits;
  }
  std::vector<uint16_t> slab(table.size() * heads.n_kv_head * 2 * dim);
  for (size_t unit = 0; unit < slab.size() / (2 * dim); ++unit) {
    const size_t from = random() % (noise.size() / 2 - dim) * 2;
    for (size_t d = 0; d < dim; ++d) {
      slab[unit * 2 * dim + d] = noise[from + 2 * d];
      slab[unit * 2 * dim + dim + d] = noise[from + 2 * d + 1];
    }
  }
  const DeviceArray<int32_t> device_positions(positions);
  const DeviceArray<uint32_t> device_table(table);
  const DeviceArray<uint16_t> device_q(q), bounds(slab);
  const DeviceArray<float> device_scores(size_t{count} * heads.n_kv_head * kCapacity, 0xff);
  PageScoreArgs args;
  args.rows = {device_positions.get(), device_table.get(), count, kCapacity, kBudget};
  args.bounds = bf16(bounds);
  args.n_head = heads.n_head;
  args.n_kv_head = heads.n_kv_head;
  args.head_dim = dim;
  args.q = bf16(device_q);
  args.scores = device_scores.get();
  ASSERT_EQ(score_pages(args, nullptr), cudaSuccess);
  const std::vector<float> scores = device_scores.host();
  for (size_t i = 0; i < scores.size(); ++i) {
    const size_t row = i / kCapacity / heads.n_kv_head, head = i / kCapacity % heads.n_kv_head;
    const auto page = static_cast<int32_t>(i % kCapacity), full = positions[row] / 16;
    if (positions[row] < 0 || full >= int32_t{kCapacity} || full < int32_t{kBudget} ||
        page >= full) {
      ASSERT_TRUE(std::isnan(scores[i])) << "row " << row << ", page " << page;
      continue;
    }
    const size_t id = table[row * kCapacity + static_cast<size_t>(page)];
    const uint16_t* own = &slab[(id * heads.n_kv_head + head) * 2 * dim];
    const Score expected =
        expected_score(&q[(row * heads.n_head + head * group) * dim], group, dim,
                       [&](uint32_t d) { return double{to_float(Bf16{own[d]})}; });
    ASSERT_NEAR(scores[i], expected.value, expected.error) << "row " << row << ", page " << page;
  }
}

// Chosen ones of the first pages: those of sinks, then by score, then by index.
std::vector<uint32_t> expected_pages(const float* scores, uint32_t pages, uint32_t budget,
                                     uint32_t sinks) {
  std::vector<uint32_t> order(pages);
  std::iota(order.begin(), order.end(), 0u);
  if (pages >= budget) {
    const auto rank = [&](uint32_t page) {  // NaN is less than -infinity
      const float score = page < sinks ? kInfinity : scores[page];
      return std::isnan(score) ? std::pair(0, 0.0f) : std::pair(1, score);
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return rank(a) > rank(b); });
    order.resize(budget - 1);
    std::sort(order.begin(), order.end());
  }
  order.push_back(pages);
  return order;
}

struct Choice {
  std::vector<int32_t> positions;
  uint32_t n_kv_head, capacity, budget, sinks;
};

void expect_lists(const Choice& choice, const std::vector<float>& scores,
                  const std::vector<uint32_t>& table, const std::vector<uint32_t>& lists,
                  const std::vector<int32_t>& keys) {
  const size_t stride = lists.size() / keys.size();
  for (size_t i = 0; i < keys.size(); ++i) {
    const size_t row = i / choice.n_kv_head;
    const int32_t position = choice.positions[row];
    const auto pages = static_cast<uint32_t>(position) / kPageTokens;
    std::vector<uint32_t> expected;
    if (pages < choice.capacity) {
      expected = expected_pages(&scores[i * choice.capacity], pages, choice.budget, choice.sinks);
    }
    const auto full = static_cast<int32_t>(expected.size()) - 1;
    ASSERT_EQ(keys[i], full < 0 ? 0 : full * 16 + position % 16 + 1) << "list " << i;
    for (uint32_t& page : expected) page = table[row * choice.capacity + page];
    expected.resize(stride, kNoPage);
    for (size_t n = 0; n < stride; ++n) {
      ASSERT_EQ(lists[i * stride + n], expected[n]) << "list " << i << ", place " << n;
    }
  }
}

void choose_and_check(const Choice& choice, const std::vector<float>& scores) {
  SCOPED_TRACE("budget " + std::to_string(choice.budget) + ", sinks " +
               std::to_string(choice.sinks));
  const auto count = static_cast<uint32_t>(choice.positions.size());
  std::vector<uint32_t> table(size_t{count} * choice.capacity);
  std::iota(table.begin(), table.end(), 5u);
  std::shuffle(table.begin(), table.end(), std::mt19937(1));
  const DeviceArray<int32_t> positions(choice.positions), keys(count * choice.n_kv_head, 0xff);
  const DeviceArray<uint32_t> device_table(table);
  const DeviceArray<float> device_scores(scores);
  const uint32_t list_capacity = std::min(choice.budget, choice.capacity) + 3;
  const DeviceArray<uint32_t> lists(size_t{count} * choice.n_kv_head * list_capacity, 0xff);
  TopPagesArgs args;
  args.rows = {positions.get(), device_table.get(), count, choice.capacity, choice.budget};
  args.n_kv_head = choice.n_kv_head;
  args.sink_pages = choice.sinks;
  args.scores = device_scores.get();
  args.lists = lists.get();
  args.keys = keys.get();
  args.list_capacity = list_capacity;
  ASSERT_EQ(top_pages(args, nullptr), cudaSuccess);
  expect_lists(choice, scores, table, lists.host(), keys.host());
}

// Scores of several kinds, one after another; kinds differ between the lists of a sequence.
std::vector<float> some_scores(size_t lists, uint32_t capacity, unsigned seed) {
  const float special[] = {0.0f, -0.0f, kInfinity, -kInfinity, kNaN, 1.0f, -1.0f, 0x1p-149f};
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> scores(lists * capacity);
  for (size_t i = 0; i < scores.size(); ++i) {
    const auto nth = static_cast<float>(i % capacity);
    float& score = scores[i];
    switch ((i / capacity + seed) % 8) {
      case 0:
        score = 30.0f + normal(random);
        break;
      case 1:  // ties
        score = static_cast<float>(random() % 7) - 3.0f;
        break;
      case 2:
        score = special[random() % std::size(special)];
        break;
      case 3:
        score = 2.5f;
        break;
      case 4:
        score = nth - 100.0f;
        break;
      case 5:
        score = -nth;
        break;
      case 6:  // of every size
        score = std::ldexp(normal(random), static_cast<int>(random() % 240) - 120);
        break;
      default:  // neighbours of one value
        score = 1.0f + static_cast<float>(random() % 3000) * 0x1p-23f;
        break;
    }
  }
  return scores;
}

TEST(TopPages, AreTheBestInOrder) {
  REPRISE_NEEDS_DEVICE();
  constexpr uint32_t kCapacity = 1200, kLists = 8;
  std::vector<int32_t> positions = {-1, 0, 15, 16, 17, 19200, 1 << 30};
  for (const int32_t pages : {2, 31, 32, 33, 63, 64, 65, 511, 1000, 1199}) {
    positions.push_back(pages * 16 + pages % 16);
  }
  unsigned seed = 0;
  const std::vector<float> scores = some_scores(positions.size() * kLists, kCapacity, ++seed);
  for (const uint32_t budget : {1u, 2u, 33u, 64u, 65u, 1000u, 1199u, 1200u, 5000u}) {
    for (const uint32_t sinks : {0u, 1u, 3u, 63u, 2000u}) {
      choose_and_check({positions, kLists, kCapacity, budget, sinks}, scores);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(TopPages, OfLongSequences) {
  REPRISE_NEEDS_DEVICE();
  constexpr uint32_t kCapacity = 65536, kLists = 4;
  std::vector<int32_t> positions;
  for (const int32_t pages : {8191, 8192, 8193, 8195, 20000, 65535}) {
    positions.push_back(pages * 16 + 7);
  }
  for (const unsigned seed : {0u, 4u}) {  // of each kind of scores some
    const auto scores = some_scores(positions.size() * kLists, kCapacity, seed);
    for (const uint32_t budget : {64u, 8192u, 65000u}) {
      choose_and_check({positions, kLists, kCapacity, budget, 2}, scores);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// Pages of the last keys are chosen before those with the best scores, which any row may have.
TEST(TopPages, RecentPagesAreAmongThem) {
  REPRISE_NEEDS_DEVICE();
  constexpr uint32_t kCapacity = 400, kLists = 2, kSinks = 2;
  const std::vector<int32_t> positions = {16 * 300 + 3, 16 * 60, 16 * 250 + 15, 16 * 399 + 8};
  const std::vector<uint32_t> score_rows = {3, 1, 0, 2};
  const auto count = static_cast<uint32_t>(positions.size());
  std::vector<float> scores = some_scores(positions.size() * kLists, kCapacity, 3);
  for (float& score : scores) {  // so that what stands for recent pages is more
    if (!(std::abs(score) < 1e20f)) score = 7.0f;
  }
  std::vector<uint32_t> table(size_t{count} * kCapacity);
  std::iota(table.begin(), table.end(), 9u);
  const DeviceArray<int32_t> device_positions(positions), keys(count * kLists);
  const DeviceArray<uint32_t> device_table(table), device_rows(score_rows);
  const DeviceArray<float> device_scores(scores);
  for (const uint32_t budget : {4u, 20u, 50u, 399u}) {
    for (const uint32_t recent : {0u, 1u, 32u, 40u, 2000u}) {
      const DeviceArray<uint32_t> lists(size_t{count} * kLists * budget, 0xff);
      TopPagesArgs args;
      args.rows = {device_positions.get(), device_table.get(), count, kCapacity, budget};
      args.n_kv_head = kLists;
      args.sink_pages = kSinks;
      args.recent_tokens = recent;
      args.scores = device_scores.get();
      args.score_rows = device_rows.get();
      args.lists = lists.get();
      args.keys = keys.get();
      args.list_capacity = budget;
      ASSERT_EQ(top_pages(args, nullptr), cudaSuccess);
      std::vector<float> ranked(scores.size());
      for (size_t i = 0; i < scores.size(); ++i) {
        const size_t row = i / kCapacity / kLists, page = i % kCapacity;
        const auto end = static_cast<uint32_t>(positions[row]) + 1;
        const size_t list = score_rows[row] * kLists + i / kCapacity % kLists;
        const bool is_recent = page >= kSinks && page >= (end - std::min(end, recent)) / 16;
        // Of recent pages the last.
        ranked[i] =
            is_recent ? 1e30f * static_cast<float>(1 + page) : scores[list * kCapacity + page];
      }
      SCOPED_TRACE("budget " + std::to_string(budget) + ", recent " + std::to_string(recent));
      expect_lists({positions, kLists, kCapacity, budget, kSinks}, ranked, table, lists.host(),
                   keys.host());
      if (HasFatalFailure()) return;
    }
  }
}

// One sequence whose keys are there from the start; a captured step is replayed at each position.
TEST(TopPages, CapturedStepsFollowASequence) {
  REPRISE_NEEDS_DEVICE();
  constexpr Heads kShape = {6, 2, 64};
  constexpr uint32_t kCapacity = 16, kPages = 20, kBudget = 4, kGroup = 3;
  std::mt19937 random(5);
  std::vector<uint32_t> table(kPages);
  std::iota(table.begin(), table.end(), 0u);
  std::shuffle(table.begin(), table.end(), random);
  table.resize(kCapacity);
  TestTiles tiles(KvType::kF16, kShape.head_dim, kPages * kShape.n_kv_head * 2);
  tiles.fill(random);
  std::vector<uint16_t> q(kShape.n_head * kShape.head_dim);
  for (uint16_t& value : q) value = to_bf16(std::normal_distribution<float>()(random)).bits;
  const DeviceArray<uint8_t> kv(tiles.bytes());
  const DeviceArray<uint16_t> device_q(q),
      bounds(size_t{kPages} * kShape.n_kv_head * 2 * kShape.head_dim);
  const DeviceArray<uint32_t> device_table(table), sequences(1), lists(2 * kBudget, 0xff);
  const DeviceArray<int32_t> position(1), keys(2);
  const DeviceArray<float> scores(2 * kCapacity);
  PageBoundsArgs update;
  update.kv = {kv.get(), KvType::kF16, kShape.n_kv_head, kShape.head_dim};
  update.positions = position.get();
  update.sequences = sequences.get();
  update.rows = 1;
  update.pages = device_table.get();
  update.capacity = kCapacity;
  update.bounds = bf16(bounds);
  PageScoreArgs score;
  score.rows = {position.get(), device_table.get(), 1, kCapacity, kBudget};
  score.bounds = update.bounds;
  score.n_head = kShape.n_head;
  score.n_kv_head = kShape.n_kv_head;
  score.head_dim = kShape.head_dim;
  score.q = bf16(device_q);
  score.scores = scores.get();
  TopPagesArgs top;
  top.rows = score.rows;
  top.n_kv_head = kShape.n_kv_head;
  top.scores = score.scores;
  top.lists = lists.get();
  top.keys = keys.get();
  top.list_capacity = kBudget;
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t step = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  EXPECT_EQ(update_page_bounds(update, stream), cudaSuccess);
  EXPECT_EQ(score_pages(score, stream), cudaSuccess);
  EXPECT_EQ(top_pages(top, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&step, graph, 0), cudaSuccess);
  for (int32_t at = 0; at < int32_t{kCapacity * kPageTokens} && !HasFailure(); ++at) {
    SCOPED_TRACE("position " + std::to_string(at));
    ASSERT_EQ(cudaMemcpy(position.get(), &at, sizeof at, cudaMemcpyHostToDevice), cudaSuccess);
    ASSERT_EQ(cudaMemset(lists.get(), 0xff, 2 * kBudget * sizeof(uint32_t)), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    ASSERT_EQ(cudaGraphLaunch(step, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    const std::vector<float> got = scores.host();
    const auto full = static_cast<uint32_t>(at) / kPageTokens;
    for (uint32_t i = 0; full >= kBudget && i < 2 * full; ++i) {
      const uint32_t head = i / full, page = i % full;
      const auto own = page_bounds(tiles, (table[page] * kShape.n_kv_head + head) * 2, 64);
      const Score expected = expected_score(&q[head * kGroup * 64], kGroup, 64,
                                            [&](uint32_t d) { return double{own[d]}; });
      EXPECT_NEAR(got[head * kCapacity + page], expected.value, expected.error) << i;
    }
    expect_lists({{at}, kShape.n_kv_head, kCapacity, kBudget, 0}, got, table, lists.host(),
                 keys.host());
  }
  cudaGraphExecDestroy(step);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

TEST(PageBoundsArgs, WhatIsNotServedIsSaid) {
  PageBoundsArgs update;
  update.rows = 1;
  update.kv = {nullptr, KvType::kFP8, 1, 72};
  EXPECT_EQ(update_page_bounds(update, nullptr), cudaErrorNotSupported);
  EXPECT_EQ(bound_pages(update.kv, {nullptr, 0, 1}, nullptr, nullptr), cudaErrorNotSupported);
  const PagedKv nobody_set_it = {nullptr, KvType::kBF16, 1, 64};
  EXPECT_EQ(bound_pages(nobody_set_it, {nullptr, 0, 1}, nullptr, nullptr), cudaErrorInvalidValue);
  PageScoreArgs score;
  score.rows = {nullptr, nullptr, 1, 16, 4};
  score.n_head = 17;
  score.n_kv_head = 1;
  score.head_dim = 64;
  EXPECT_EQ(score_pages(score, nullptr), cudaErrorNotSupported);
  score.n_head = 1;
  score.head_dim = 80;
  EXPECT_EQ(score_pages(score, nullptr), cudaErrorNotSupported);
  TopPagesArgs top;
  top.rows = score.rows;
  top.n_kv_head = 1;
  top.list_capacity = 3;
  EXPECT_EQ(top_pages(top, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace reprise::kernels::cuda
