#include "kernels/cuda/centroid_lists.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "cuda/device_testing.h"
#include "cuda/page_testing.h"
#include "methods/csattention/score_list.h"
#include "methods/csattention/spherical_kmeans.h"

namespace reprise::kernels::cuda {
namespace {

struct ListHeads {
  uint32_t n_head, n_kv_head, head_dim, parts, centroids;
  KvType type = KvType::kBF16;
};

constexpr uint32_t kRows = 3, kLayers = 2, kLayer = 1, kModelLayer = 5;
constexpr float kScale = 0.3f;
constexpr ListHeads kHeads[] = {{8, 2, 128, 8, 128},
                                {9, 3, 64, 8, 40, KvType::kFP8},
                                {2, 2, 96, 8, 16, KvType::kF16},
                                {8, 1, 256, 8, 200},
                                {4, 4, 128, 4, 32}};

/// Random pages and queries of some rows, with an index of each; lists have up to stride entries.
struct ListCase {
  ListCase(const ListHeads& own, uint32_t tokens, uint32_t entries)
      : heads(own),
        shape{kLayers, own.n_head, own.n_kv_head, own.head_dim, own.parts, own.centroids},
        capacity((tokens + kPageTokens - 1) / kPageTokens + 2),
        stride(entries),
        tiles(own.type, own.head_dim, size_t{kRows} * capacity * own.n_kv_head * 2),
        table(size_t{kRows} * capacity),
        kv((tiles.fill(random), tiles.bytes())),
        centroids(kRows * shape.lists(kLayers) * shape.dims()),
        usual(kRows * shape.tasks(kLayers) * 2),
        cosines(kRows * shape.cosines(kLayers)),
        keys(kRows * shape.lists(kLayers) * stride),
        scores(kRows * shape.lists(kLayers) * stride),
        listed(size_t{kRows} * kLayers),
        lengths(size_t{kRows} * kLayers) {
    std::iota(table.begin(), table.end(), 0u);
    std::shuffle(table.begin(), table.end(), random);
  }

  PagedKv paged() const { return {kv.get(), heads.type, heads.n_kv_head, heads.head_dim}; }
  ListIndex index(uint32_t row) const {
    return {centroids.get() + row * shape.lists(kLayers) * shape.dims(),
            reinterpret_cast<float2*>(usual.get()) + row * shape.tasks(kLayers),
            cosines.get() + row * shape.cosines(kLayers),
            keys.get() + row * shape.lists(kLayers) * stride,
            reinterpret_cast<__half*>(scores.get()) + row * shape.lists(kLayers) * stride,
            listed.get() + size_t{row} * kLayers,
            lengths.get() + size_t{row} * kLayers,
            stride};
  }
  /// Of the layer.
  size_t list(uint32_t row, uint32_t head, uint32_t part, uint32_t centroid) const {
    const size_t task =
        row * shape.tasks(kLayers) + shape.tasks(kLayer) + head * shape.parts + part;
    return task * shape.centroids + centroid;
  }

  /// Centroids of all rows from random queries, which are returned: [rows, n_head, head_dim].
  std::vector<uint16_t> train(uint32_t rows, uint32_t iterations) {
    std::vector<uint16_t> q(size_t{rows} * shape.n_head * shape.head_dim);
    std::normal_distribution<float> normal;
    for (uint16_t& value : q) value = to_bf16(normal(random)).bits;
    std::mt19937_64 draws(1);
    std::vector<uint64_t> bits(shape.centroids + 1);
    for (uint64_t& draw : bits) draw = draws();
    const DeviceArray<uint16_t> device_q(q);
    const DeviceArray<uint64_t> device_draws(bits);
    const DeviceArray<float> points(size_t{kMostDirections} * shape.n_kv_head * shape.head_dim);
    for (uint32_t row = 0; row < kRows; ++row) {
      TrainCentroidsArgs args;
      args.shape = shape;
      args.index = index(row);
      args.layer = kLayer;
      args.q = reinterpret_cast<const __nv_bfloat16*>(device_q.get());
      args.rows = rows;
      args.iterations = iterations;
      args.draws = device_draws.get();
      args.points = points.get();
      EXPECT_EQ(train_centroids(args, nullptr), cudaSuccess);
    }
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return q;
  }
  void fill(uint32_t end, uint32_t length) {
    const DeviceArray<uint32_t> pages(table);
    const size_t room = 3 * list_products(shape, end);  // parts take turns
    const DeviceArray<uint16_t> products(room);
    for (uint32_t row = 0; row < kRows; ++row) {
      FillListsArgs args;
      args.kv = paged();
      args.shape = shape;
      args.index = index(row);
      args.layer = kLayer;
      args.pages = pages.get() + row * capacity;
      args.end = end;
      args.length = length;
      args.scale = kScale;
      args.products = reinterpret_cast<__half*>(products.get());
      args.product_room = room;
      ASSERT_EQ(fill_lists(args, nullptr), cudaSuccess);
    }
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  void offer(int32_t begin, int32_t end) {
    const DeviceArray<uint32_t> pages(table);
    for (uint32_t row = 0; row < kRows; ++row) {
      OfferKeysArgs args;
      args.kv = paged();
      args.shape = shape;
      args.index = index(row);
      args.layer = kLayer;
      args.pages = pages.get() + row * capacity;
      args.begin = begin;
      args.end = end;
      args.scale = kScale;
      ASSERT_EQ(offer_keys(args, nullptr), cudaSuccess);
    }
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  double key(uint32_t row, uint32_t token, uint32_t head, uint32_t dim) const {
    const size_t page = table[row * capacity + token / kPageTokens];
    return tiles.value((page * heads.n_kv_head + head) * 2, token % kPageTokens, dim);
  }
  double product(const std::vector<float>& all, uint32_t row, uint32_t head, uint32_t part,
                 uint32_t centroid, uint32_t token) const {
    const float* c = &all[list(row, head, part, centroid) * shape.dims()];
    double sum = 0.0;
    for (uint32_t d = 0; d < shape.dims(); ++d) {
      sum += c[d] * key(row, token, head, part * shape.dims() + d);
    }
    return kScale * sum;
  }

  /// Every list of some rows holds what the host's would, but for scores that rounding moves.
  void expect_best(uint32_t end, uint32_t length) const {
    const auto all_centroids = centroids.host();
    const auto all_keys = keys.host();
    const auto all_scores = scores.host();
    for (uint32_t task = 0; task < shape.n_kv_head * shape.parts; ++task) {
      const uint32_t head = task / shape.parts, part = task % shape.parts;
      const uint32_t row = task % kRows, centroid = task * 7 % shape.centroids;
      ScoreList want;
      want.reset(length);
      double largest = 0.0;
      for (uint32_t token = 0; token < end; ++token) {
        const double score = product(all_centroids, row, head, part, centroid, token);
        want.offer(token, static_cast<float>(score));
        largest = std::max(largest, std::abs(score));
      }
      std::map<uint32_t, float> held;
      float worst = INFINITY;
      const size_t at = list(row, head, part, centroid) * stride;
      for (uint32_t i = 0; i < length; ++i) {
        const float score = to_float(F16{all_scores[at + i]});
        held[all_keys[at + i]] = score;
        worst = std::min(worst, score);
        const uint32_t parent = i > 0 ? (i - 1) / 2 : 0;
        ASSERT_LE(to_float(F16{all_scores[at + parent]}), score) << i;
      }
      ASSERT_EQ(held.size(), length);
      ASSERT_EQ(want.keys().size(), length);
      const double tolerance = 0x1p-10 * largest;
      for (uint32_t i = 0; i < length; ++i) {
        const auto found = held.find(want.keys()[i]);
        if (found == held.end()) {
          EXPECT_NEAR(want.score(i), worst, tolerance);
          continue;
        }
        EXPECT_NEAR(found->second, want.score(i), tolerance);
      }
    }
  }

  std::mt19937 random{5};
  ListHeads heads;
  ListShape shape;
  uint32_t capacity, stride;
  TestTiles tiles;
  std::vector<uint32_t> table;
  DeviceArray<uint8_t> kv;
  DeviceArray<float> centroids, usual, cosines;
  DeviceArray<uint32_t> keys;
  DeviceArray<uint16_t> scores;
  DeviceArray<int32_t> listed, lengths;
};

/// A search of all rows.
struct ListSearch {
  ListSearch(ListCase& c, const std::vector<int32_t>& at, const std::vector<ListIndex>& own)
      : q([&] {
          std::vector<float> values(size_t{kRows} * c.shape.n_head * c.shape.head_dim);
          std::normal_distribution<float> normal;
          for (float& value : values) value = normal(c.random);
          return values;
        }()),
        pick_capacity(160),
        positions(at),
        pages(c.table),
        indexes(own),
        device_q(q),
        atoms(size_t{kRows} * c.shape.n_head * c.shape.parts),
        sums(size_t{kRows} * c.shape.n_head * c.capacity * kPageTokens),
        scores(size_t{kRows} * c.shape.n_head * c.capacity * kPageTokens),
        picks(size_t{kRows} * c.shape.n_head * pick_capacity, 0xff),
        picked(size_t{kRows} * c.shape.n_head, 0xff),
        lists(size_t{kRows} * c.capacity, 0xff),
        keys(kRows, 0xff) {
    args.rows.shape = c.shape;
    args.rows.rules.budget = 128;
    args.rows.rules.sink = 16;
    args.rows.rules.window = 20;
    args.rows.rules.staggered = 1 << 20;
    args.rows.scale = kScale;
    args.rows.positions = positions.get();
    args.rows.indexes = indexes.get();
    args.rows.count = kRows;
    args.rows.capacity = c.capacity;
    args.layer = kLayer;
    args.model_layer = kModelLayer;
    args.pages = pages.get();
    args.q = device_q.get();
    args.most_entries = c.stride;
    args.atoms = atoms.get();
    args.sums = sums.get();
    args.scores = scores.get();
    args.picks = picks.get();
    args.picked = picked.get();
    args.pick_capacity = pick_capacity;
    args.lists = lists.get();
    args.keys = keys.get();
  }
  void run() {
    ASSERT_EQ(choose_listed(args, nullptr), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  std::vector<float> q;
  uint32_t pick_capacity;
  DeviceArray<int32_t> positions;
  DeviceArray<uint32_t> pages;
  DeviceArray<ListIndex> indexes;
  DeviceArray<float> device_q;
  DeviceArray<ListAtoms> atoms;
  DeviceArray<uint64_t> sums;
  DeviceArray<float> scores;
  DeviceArray<uint32_t> picks;
  DeviceArray<int32_t> picked;
  DeviceArray<uint32_t> lists;
  DeviceArray<int32_t> keys;
  ListSearchArgs args;
};

/// What the host adds up for a query head; keys that no list has are left out. far: of every part
/// two centroids are taken (CentroidLists::atoms).
std::map<uint32_t, double> sums_of(const ListCase& c, const ListSearch& search, uint32_t row,
                                   uint32_t head, uint32_t end, bool far) {
  const auto centroids = c.centroids.host();
  const auto keys = c.keys.host();
  const auto scores = c.scores.host();
  const uint32_t kv_head = head / c.shape.group(), dims = c.shape.dims();
  std::map<uint32_t, double> sums;
  for (uint32_t part = 0; part < c.shape.parts; ++part) {
    const float* q =
        &search.q[(size_t{row} * c.shape.n_head + head) * c.shape.head_dim + part * dims];
    const double norm = std::sqrt(std::inner_product(q, q + dims, q, 0.0));
    const auto dot = [&](const float* a, uint32_t centroid) {
      const float* b = &centroids[c.list(row, kv_head, part, centroid) * dims];
      return std::inner_product(a, a + dims, b, 0.0);
    };
    std::vector<uint32_t> order(c.shape.centroids);
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return dot(q, a) > dot(q, b); });
    double weight[2] = {1.0, 0.0};
    if (far) {
      const double best = dot(q, order[0]) / norm, second = dot(q, order[1]) / norm;
      const double between = dot(&centroids[c.list(row, kv_head, part, order[0]) * dims], order[1]);
      const double diagonal = 1.0 + 1e-4, determinant = diagonal * diagonal - between * between;
      weight[0] = (diagonal * best - between * second) / determinant;
      weight[1] = (diagonal * second - between * best) / determinant;
    }
    for (uint32_t atom = 0; atom < (far ? 2u : 1u); ++atom) {
      const size_t at = c.list(row, kv_head, part, order[atom]) * c.stride;
      for (uint32_t i = 0; i < c.stride; ++i) {
        if (keys[at + i] < 16 || keys[at + i] >= end) continue;
        sums[keys[at + i]] += weight[atom] * to_float(F16{scores[at + i]});
      }
    }
  }
  return sums;
}

/// Picks are the keys with the largest sums, but for sums that rounding moves.
void expect_picks(const ListCase& c, const ListSearch& search, uint32_t row, uint32_t end,
                  uint32_t wanted, bool far) {
  const auto picks = search.picks.host();
  const auto picked = search.picked.host();
  for (uint32_t head = 0; head < c.shape.n_head; ++head) {
    const auto sums = sums_of(c, search, row, head, end, far);
    std::vector<double> sorted;
    double largest = 0.0;
    for (const auto& [key, sum] : sums) {
      sorted.push_back(sum);
      largest = std::max(largest, std::abs(sum));
    }
    std::sort(sorted.rbegin(), sorted.rend());
    const size_t list = size_t{row} * c.shape.n_head + head;
    const auto count = static_cast<uint32_t>(picked[list]);
    ASSERT_EQ(count, std::min<size_t>(wanted, sorted.size())) << "head " << head;
    ASSERT_GT(count, 0u);
    const double least = sorted[count - 1] - 1e-4 * largest;
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t key = picks[list * search.pick_capacity + i];
      if (i > 0) {
        ASSERT_GT(key, picks[list * search.pick_capacity + i - 1]);
      }
      const auto found = sums.find(key);
      ASSERT_NE(found, sums.end()) << "key " << key;
      EXPECT_GE(found->second, least) << "key " << key;
    }
  }
}

class CentroidLists : public testing::TestWithParam<ListHeads> {};
INSTANTIATE_TEST_SUITE_P(Heads, CentroidLists, testing::ValuesIn(kHeads), [](const auto& test) {
  const ListHeads& heads = test.param;
  return std::to_string(heads.n_head) + "_" + std::to_string(heads.n_kv_head) + "_" +
         std::to_string(heads.head_dim) + "_" + std::to_string(heads.parts);
});

// A seed that rounding moves makes other centroids, which are as near on average.
TEST_P(CentroidLists, CentroidsAreThoseOfTheCpu) {
  REPRISE_NEEDS_DEVICE();
  constexpr uint32_t kQueries = 100, kIterations = 10;
  ListCase c(GetParam(), 32, 1);
  const auto q = c.train(kQueries, kIterations);
  const auto got = c.centroids.host();
  const auto usual = c.usual.host();
  const uint32_t dims = c.shape.dims(), group = c.shape.group();
  size_t equal = 0;
  double own = 0.0, cpu = 0.0;
  const uint32_t tasks = c.shape.n_kv_head * c.shape.parts;
  for (uint32_t task = 0; task < tasks; ++task) {
    const uint32_t head = task / c.shape.parts, part = task % c.shape.parts;
    std::vector<float> points;
    for (uint32_t i = 0; i < kQueries * group; ++i) {
      const size_t query = size_t{i / group} * c.shape.n_head + head * group + i % group;
      std::vector<float> x(dims);
      for (uint32_t d = 0; d < dims; ++d) {
        x[d] = to_float(Bf16{q[query * c.shape.head_dim + part * dims + d]});
      }
      const float norm = std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0f));
      for (const float value : x) points.push_back(value / norm);
    }
    std::vector<float> want(size_t{c.shape.centroids} * dims);
    spherical_kmeans(points, dims, {c.shape.centroids, kIterations, 1}, want.data());
    const float* centroids = &got[c.list(0, head, part, 0) * dims];
    bool same = true;
    for (size_t i = 0; i < want.size(); ++i) same = same && std::abs(want[i] - centroids[i]) < 1e-3;
    equal += same ? 1 : 0;
    double mean = 0.0;
    for (size_t i = 0; i < points.size(); i += dims) {
      float product = 0.0f;
      nearest_direction(&points[i], centroids, c.shape.centroids, dims, &product);
      mean += product * dims / static_cast<double>(points.size());
      nearest_direction(&points[i], want.data(), c.shape.centroids, dims, &product);
      cpu += product;
    }
    own += mean * static_cast<double>(points.size()) / dims;
    EXPECT_NEAR(usual[(c.shape.tasks(kLayer) + task) * 2], mean, 1e-4);
  }
  std::printf("  equal in %zu of %u parts, cosines %.5f of the CPU's\n", equal, tasks, own / cpu);
  EXPECT_NEAR(own, cpu, 0.01 * cpu);
}

TEST_P(CentroidLists, HoldTheBestKeys) {
  REPRISE_NEEDS_DEVICE();
  ListCase c(GetParam(), 700, 130);
  c.train(60, 3);
  c.fill(523, 130);
  if (!HasFatalFailure()) c.expect_best(523, 130);
  EXPECT_EQ(c.listed.host()[kLayer], 523);
}

TEST_P(CentroidLists, TakeInWhatIsBetterThanTheirWorst) {
  REPRISE_NEEDS_DEVICE();
  ListCase c(GetParam(), 700, 130);
  c.train(60, 3);
  c.fill(400, 100);
  c.offer(400, 417);
  c.offer(417, 690);
  if (!HasFatalFailure()) c.expect_best(690, 100);
  EXPECT_EQ(c.listed.host()[kLayer], 690);
}

TEST_P(CentroidLists, ListsOfAllKeysLackNone) {
  REPRISE_NEEDS_DEVICE();
  ListCase c(GetParam(), 100, 64);
  c.train(60, 3);
  c.fill(64, 64);
  if (!HasFatalFailure()) c.expect_best(64, 64);
}

// Rows of other lengths: the second reads everything, the third has no index.
TEST_P(CentroidLists, SearchesFindWhatTheCpuFinds) {
  REPRISE_NEEDS_DEVICE();
  ListCase c(GetParam(), 700, 150);
  c.train(60, 3);
  c.fill(592, 150);
  if (HasFatalFailure()) return;
  ListSearch search(c, {611, 127, 400}, {c.index(0), c.index(1), {}});
  for (const bool backoff : {false, true}) {
    SCOPED_TRACE(backoff);
    search.args.backoff = backoff;
    if (backoff) {  // no cosine is usual
      std::vector<float> usual(kRows * c.shape.tasks(kLayers) * 2, 0.0f);
      for (size_t i = 0; i < usual.size(); i += 2) usual[i] = 1.0f;
      ASSERT_EQ(cudaMemcpy(c.usual.get(), usual.data(), usual.size() * sizeof(float),
                           cudaMemcpyHostToDevice),
                cudaSuccess);
    }
    search.run();
    if (HasFatalFailure()) return;
    // Of 612 keys sinks, 592 to 611, and what is left of the budget.
    expect_picks(c, search, 0, 592, 128 - 16 - 20, backoff);
    const auto keys = search.keys.host();
    EXPECT_EQ(keys, (std::vector<int32_t>{16 + 20, 128, 401}));
    const auto lists = search.lists.host();
    EXPECT_EQ(lists[0], c.table[0]);
    EXPECT_EQ(lists[1], c.table[37]);
    EXPECT_EQ(lists[2], c.table[38]);
    for (uint32_t page = 0; page < 8; ++page) {
      EXPECT_EQ(lists[c.capacity + page], c.table[c.capacity + page]);
    }
    for (uint32_t head = 0; head < 2 * c.shape.n_head; ++head) {
      EXPECT_EQ(search.picked.host()[c.shape.n_head + head], 0);
    }
    const auto sums = search.sums.host();
    EXPECT_TRUE(std::all_of(sums.begin(), sums.end(), [](uint64_t sum) { return sum == 0; }));
  }
}

TEST_P(CentroidLists, GatheredKeysAreThoseThatWerePicked) {
  REPRISE_NEEDS_DEVICE();
  ListCase c(GetParam(), 300, 1);
  constexpr uint32_t kPicks = 48;
  const uint32_t n_head = c.shape.n_head;
  std::vector<uint32_t> picks(size_t{kRows} * n_head * kPicks);
  std::vector<int32_t> picked(size_t{kRows} * n_head);
  for (uint32_t& pick : picks) pick = static_cast<uint32_t>(c.random() % 300);
  for (int32_t& count : picked) count = static_cast<int32_t>(c.random() % (kPicks + 1));
  const size_t side_pages = size_t{kRows} * kPicks / kPageTokens;
  const DeviceArray<uint8_t> side(side_pages * n_head * 2 *
                                  tile_bytes(c.heads.type, c.shape.head_dim));
  const DeviceArray<uint32_t> pages(c.table), device_picks(picks);
  const DeviceArray<int32_t> device_picked(picked);
  GatherKeysArgs args;
  args.kv = c.paged();
  args.side = {side.get(), c.heads.type, n_head, c.shape.head_dim};
  args.pages = pages.get();
  args.picks = device_picks.get();
  args.picked = device_picked.get();
  args.count = kRows;
  args.capacity = c.capacity;
  args.pick_capacity = kPicks;
  ASSERT_EQ(gather_keys(args, nullptr), cudaSuccess);
  TestTiles got(c.heads.type, c.shape.head_dim, side_pages * n_head * 2);
  got.bytes() = side.host();
  for (uint32_t list = 0; list < kRows * n_head; ++list) {
    const uint32_t row = list / n_head, head = list % n_head;
    for (uint32_t i = 0; i < static_cast<uint32_t>(picked[list]); ++i) {
      const uint32_t key = picks[list * kPicks + i];
      const size_t page = row * (kPicks / kPageTokens) + i / kPageTokens;
      const size_t from = c.table[row * c.capacity + key / kPageTokens];
      for (uint32_t side_tile = 0; side_tile < 2; ++side_tile) {
        const size_t tile = (from * c.heads.n_kv_head + head / c.shape.group()) * 2 + side_tile;
        for (uint32_t dim = 0; dim < c.shape.head_dim; ++dim) {
          ASSERT_EQ(got.value((page * n_head + head) * 2 + side_tile, i % kPageTokens, dim),
                    c.tiles.value(tile, key % kPageTokens, dim));
        }
      }
    }
  }
}

// More query heads in all than a grid has places along y and z; rows read everything.
TEST(CentroidListShapes, ManyRowsAreSearchedTogether) {
  REPRISE_NEEDS_DEVICE();
  constexpr uint32_t kMany = 8192, kHeadsOfRow = 8;
  std::vector<uint32_t> table(kMany);
  std::iota(table.begin(), table.end(), 0u);
  const DeviceArray<uint32_t> pages(table), lists(kMany, 0xff);
  const DeviceArray<int32_t> positions(std::vector<int32_t>(kMany, 5));
  const DeviceArray<int32_t> keys(kMany, 0xff), picked(size_t{kMany} * kHeadsOfRow, 0xff);
  const DeviceArray<ListIndex> indexes(kMany);
  ListSearchArgs args;
  args.rows.shape = {1, kHeadsOfRow, 2, 64, 8, 16};
  args.rows.rules.budget = 128;
  args.rows.rules.sink = 16;
  args.rows.rules.window = 20;
  args.rows.positions = positions.get();
  args.rows.indexes = indexes.get();
  args.rows.count = kMany;
  args.rows.capacity = 1;
  args.pages = pages.get();
  args.most_entries = 1;
  args.picked = picked.get();
  args.lists = lists.get();
  args.keys = keys.get();
  ASSERT_EQ(choose_listed(args, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(keys.host(), std::vector<int32_t>(kMany, 6));
  EXPECT_EQ(lists.host(), table);
  EXPECT_EQ(picked.host(), std::vector<int32_t>(size_t{kMany} * kHeadsOfRow, 0));
}

TEST(CentroidListShapes, OtherPartsAreNotThere) {
  REPRISE_NEEDS_DEVICE();
  TrainCentroidsArgs args;
  args.shape = {1, 8, 2, 128, 2, 16};  // of 64 dims
  EXPECT_EQ(train_centroids(args, nullptr), cudaErrorNotSupported);
  args.shape = {1, 8, 2, 128, 8, kMostCentroids + 1};
  EXPECT_EQ(train_centroids(args, nullptr), cudaErrorNotSupported);
}

}  // namespace
}  // namespace reprise::kernels::cuda
