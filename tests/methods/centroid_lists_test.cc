#include "methods/csattention/centroid_lists.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

#include "methods/csattention/spherical_kmeans.h"
#include "methods/kmeans.h"
#include "methods/selecting.h"

namespace reprise {
namespace {

using kernels::Phase;
using testing::Toy;

TEST(ScoreList, HoldsTheBestWhateverTheOrder) {
  std::mt19937 random(5);
  std::vector<std::pair<float, uint32_t>> offers;
  for (uint32_t key = 0; key < 400; ++key) {  // few distinct scores: many ties
    offers.emplace_back(static_cast<float>(random() % 60) - 30.0f, key);
  }
  auto best = offers;
  std::ranges::sort(best, [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  for (const size_t length : {0u, 1u, 2u, 40u, 400u, 500u}) {
    ScoreList list;
    list.reset(length);
    std::ranges::shuffle(offers, random);
    for (const auto& [score, key] : offers) list.offer(key, score);
    list.offer(999, NAN);
    double others = 0.0;
    for (size_t i = length; i < best.size(); ++i) others += best[i].first;
    EXPECT_FLOAT_EQ(list.mean_of_others(),
                    length < 400 ? static_cast<float>(others / (400.0 - length)) : 0.0f);
    std::map<uint32_t, float> held, want;
    for (size_t i = 0; i < list.keys().size(); ++i) held[list.keys()[i]] = list.score(i);
    for (size_t i = 0; i < std::min<size_t>(length, 400); ++i) want[best[i].second] = best[i].first;
    EXPECT_EQ(held, want) << length;
  }
}

// What a prompt's queries take until its index is made does not grow with the prompt.
TEST(QuerySamples, AreAsManyOfALongPromptAndEvenlySpread) {
  const ModelConfig config = testing::toy_config({1, 4, 2, 8});
  constexpr size_t kRows = 1024;  // of 2048 queries of each KV head
  const uint16_t pairs[] = {0};
  for (const int32_t length : {1500, 6000}) {
    const auto count = static_cast<size_t>(length);
    std::vector<Row> all(count);
    std::vector<float> q(count * 4 * 8);
    for (size_t i = 0; i < count; ++i) {
      const float angle = static_cast<float>(i) / static_cast<float>(count);
      all[i].position = static_cast<int32_t>(i);
      for (size_t head = 0; head < 4; ++head) {
        q[(4 * i + head) * 8] = std::cos(angle);
        q[(4 * i + head) * 8 + 1] = std::sin(angle);
      }
    }
    QuerySamples samples(config);
    for (size_t first = 0; first < count; first += 500) {
      QueryRows rows;
      rows.phase = Phase::kPrefill;
      rows.rows = std::span(all).subspan(first, 500);
      rows.q_rotated = &q[first * 4 * 8];
      samples.take(rows, {0, length});
    }
    EXPECT_LE(samples.bytes(), 2 * kRows * 4 * 8 * sizeof(float));
    const auto directions = samples.directions(1, pairs);
    ASSERT_EQ(directions.size(), 2 * 2 * kRows);  // of both heads of the group
    float last = 0.0f;
    for (size_t i = 0; i < directions.size(); i += 4) {
      const float angle = std::atan2(directions[i + 1], directions[i]);
      EXPECT_LT(angle - last, 2.1f / kRows);
      last = angle;
    }
    EXPECT_GT(last, 1.0f - 2.1f / kRows);
  }
}

TEST(SphericalKMeans, FindsDirections) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  std::vector<float> points;
  for (size_t i = 0; i < 300; ++i) {
    float point[4], norm = 0.0f;
    for (size_t d = 0; d < 4; ++d) point[d] = normal(random) + (d == i % 3 ? 1.0f : 0.0f);
    for (const float x : point) norm += x * x;
    for (const float x : point) points.push_back(x / std::sqrt(norm));
  }
  std::vector<float> centroids(3 * 4);
  spherical_kmeans(points, 4, {3, 10, 1}, centroids.data());
  std::set<size_t> found;
  for (size_t c = 0; c < 3; ++c) {
    for (size_t d = 0; d < 4; ++d) {
      if (centroids[c * 4 + d] > 0.99f) found.insert(d);
    }
  }
  EXPECT_EQ(found, (std::set<size_t>{0, 1, 2}));
}

TEST(SphericalKMeans, FewerPointsThanClustersAreAllFound) {
  const std::vector<float> points = {1, 0, 0, 1, -1, 0};
  std::vector<float> centroids(8 * 2);
  spherical_kmeans(points, 2, {8, 10, 1}, centroids.data());
  for (size_t i = 0; i < 3; ++i) {
    float cosine = 0.0f;
    nearest_direction(&points[2 * i], centroids.data(), 8, 2, &cosine);
    EXPECT_FLOAT_EQ(cosine, 1.0f);
  }
  for (size_t c = 0; c < 8; ++c)
    EXPECT_FLOAT_EQ(std::hypot(centroids[2 * c], centroids[2 * c + 1]), 1.0f);
}

TEST(KMeans, MeasuresInTheMetric) {
  const kernels::KvLayout layout = {kernels::KvType::kF32, 1, 8};
  std::vector<std::vector<std::byte>> memory(12, std::vector<std::byte>(layout.page_bytes()));
  std::vector<kernels::PageSpan> pages;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < 12 * kPageTokens; ++i) {  // dims 2, 3 hardly count, and vary most
    std::vector<float> key(8);
    for (float& value : key) value = 100 * normal(random);
    key[4] = (i % 2 == 0 ? 1.0f : -1.0f) + 0.05f * normal(random);
    key[5] = key[4] * 0.5f;
    kernels::store_token(layout, memory[i / kPageTokens].data(), i % kPageTokens, key.data(),
                         key.data());
  }
  for (const auto& page : memory) pages.push_back({page.data()});
  const uint16_t pairs[] = {1, 2};
  const float metric[] = {1e-6f, 0, 0, 0, 0, 1e-6f, 0, 0, 0, 0, 1.0f, 0.2f, 0, 0, 0.2f, 1.0f};
  const KeyPoints points = {&layout, pages, pairs, metric};
  std::vector<float> centroids(2 * 8);
  kmeans(points, {2, 10, 1}, centroids.data());
  EXPECT_NEAR(std::fabs(centroids[4]), 1.0f, 0.05f);
  EXPECT_NEAR(centroids[4], -centroids[8 + 4], 0.05f);
  std::vector<int32_t> nearest(12 * kPageTokens);
  nearest_centroids(points, centroids.data(), 2, nearest.data());
  for (size_t i = 2; i < nearest.size(); ++i) EXPECT_EQ(nearest[i], nearest[i % 2]);
  EXPECT_NE(nearest[0], nearest[1]);
}

/// A sequence of one layer and index, with queries that are given.
struct Index {
  explicit Index(const CentroidListsOptions& options, size_t tokens = 300)
      : toy({1, 4, 2, 32}, tokens), lists(options, toy.config()), kv(toy.new_sequence()) {
    toy.step(kv, *testing::make_policy(toy, "full"), tokens, Phase::kPrefill);
    for (size_t i = 0; i < tokens; ++i) all.push_back({0, static_cast<int32_t>(i), 0});
    q.assign(toy.q(0, 0), toy.q(0, 0) + tokens * toy.width());
  }
  QueryRows rows(size_t first, size_t end, Phase phase) {
    return {0,
            phase,
            std::span(all).subspan(first, end - first),
            nullptr,
            &q[first * toy.width()],
            static_cast<int32_t>(end),
            &kv,
            &pool};
  }
  void build(size_t queries, int32_t keys) {
    lists.take_queries(rows(0, queries, Phase::kPrefill), {0, static_cast<int32_t>(queries)});
    lists.build(rows(0, queries, Phase::kPrefill), {0, keys});
    lists.extend(rows(0, queries, Phase::kPrefill), keys);
  }
  void move_keys(float by) {
    const kernels::KvLayout& layout = kv.pool().layout();
    for (int32_t token = 0; token < kv.length(); ++token) {
      std::vector<float> k, v;
      for (size_t head = 0; head < 2; ++head) {
        for (const float x : testing::stored(kv, 0, head, token)) k.push_back(x + by);
        for (const float x : testing::stored(kv, 0, head, token, true)) v.push_back(x);
      }
      const auto at = static_cast<size_t>(token);
      kernels::store_token(layout, kv.page(0, at / kPageTokens), at % kPageTokens, k.data(),
                           v.data());
    }
  }
  Toy toy;
  CentroidLists lists;
  ThreadPool pool{2};
  SequenceKv kv;
  std::vector<Row> all;
  std::vector<float> q;  // [tokens, n_head, head_dim] rotated
};

std::map<uint32_t, float> entries(const ScoreList& list) {
  std::map<uint32_t, float> held;
  for (size_t i = 0; i < list.keys().size(); ++i) held[list.keys()[i]] = list.score(i);
  return held;
}

TEST(CentroidLists, ListTheKeysWithTheLargestProducts) {
  Index index({4, 6, 0.25f, true, 5, 1});
  index.build(100, 200);
  for (int32_t end = 201; end <= 300; ++end) {  // one by one; lists keep their length
    index.lists.extend(index.rows(0, 300, Phase::kPrefill), end);
  }
  for (size_t kv_head = 0; kv_head < 2; ++kv_head) {
    for (size_t part = 0; part < 4; ++part) {
      for (size_t c = 0; c < 6; ++c) {
        const auto centroid = index.lists.centroid(0, kv_head, part, c);
        std::vector<double> scores;
        for (int32_t key = 0; key < 300; ++key) {
          const auto k = testing::stored(index.kv, 0, kv_head, key);
          scores.push_back(testing::dot(centroid.data(), &k[8 * part], 8) / std::sqrt(32.0));
        }
        const auto held = entries(index.lists.list(0, kv_head, part, c));
        std::vector<int32_t> picks;
        for (const auto& [key, score] : held) {
          picks.push_back(static_cast<int32_t>(key));
          EXPECT_NEAR(score, scores[key], 1e-6 + std::fabs(scores[key]) / 2048);
        }
        testing::expect_best(picks, scores, 50, 2e-3);  // two roundings to half precision
      }
    }
  }
}

// Parts of the query are far from equally long: without their norms the ranking is another one.
TEST(CentroidLists, WholeListsAndEveryQueryACentroidRankByParts) {
  for (const bool norms : {false, true}) {
    CentroidListsOptions options = {4, 60, 1.0f, false, 10, 1};
    options.norms = norms;
    Index index(options);
    for (size_t i = 0; i < index.q.size(); ++i) index.q[i] *= i % 32 < 8 ? 10.0f : 1.0f;
    index.build(20, 300);  // 40 queries per KV head
    KeyPicks picks;
    index.lists.find(index.rows(7, 8, Phase::kDecode), {10, 280}, 30, picks);
    ASSERT_EQ(picks.size(), 4u);
    for (size_t head = 0; head < 4; ++head) {
      std::vector<double> scores;
      for (int32_t key = 10; key < 280; ++key) {
        const auto k = testing::stored(index.kv, 0, head / 2, key);
        double sum = 0.0;
        for (size_t part = 0; part < 4; ++part) {
          const float* q = &index.q[(7 * 4 + head) * 32 + part * 8];
          const double norm = norms ? 1.0 : std::sqrt(testing::dot(q, q, 8));
          sum += testing::dot(q, &k[8 * part], 8) / norm / std::sqrt(32.0);
        }
        scores.push_back(sum);
      }
      testing::expect_best(picks[head], scores, 30, norms ? 1e-1 : 1e-2);
    }
  }
}

TEST(CentroidLists, OnlyListedKeysAreFound) {
  Index index({1, 1, 0.1f, false, 10, 1});
  index.build(20, 300);
  KeyPicks picks;
  index.lists.find(index.rows(7, 8, Phase::kDecode), {0, 300}, 100, picks);
  const auto held = entries(index.lists.list(0, 0, 0, 0));
  EXPECT_EQ(held.size(), 30u);
  ASSERT_EQ(picks[0].size(), held.size());
  for (const int32_t key : picks[0]) EXPECT_TRUE(held.contains(static_cast<uint32_t>(key)));
}

/// Every set of repairs of the published rule.
std::vector<CentroidListsOptions> repaired(const CentroidListsOptions& published) {
  std::vector<CentroidListsOptions> all(8, published);
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].norms = (i & 1) > 0;
    all[i].absent_mean = (i & 2) > 0;
    all[i].centred = (i & 4) > 0;
  }
  return all;
}

/// Scores of the index's keys for a part of a query, word by word: those of the nearest centroid's
/// list of a quarter of the keys. listed: whether a key is in it.
std::vector<double> part_scores(const Index& index, const CentroidListsOptions& options,
                                const float* q, size_t kv_head, size_t part,
                                std::vector<bool>& listed) {
  const auto centroid = [&](size_t c) { return index.lists.centroid(0, kv_head, part, c); };
  size_t best = 0;
  for (size_t c = 1; c < options.centroids; ++c) {
    if (testing::dot(q, centroid(c).data(), 8) > testing::dot(q, centroid(best).data(), 8)) {
      best = c;
    }
  }
  std::vector<double> scores;
  for (int32_t key = 0; key < 300; ++key) {
    const auto k = testing::stored(index.kv, 0, kv_head, key);
    scores.push_back(testing::dot(centroid(best).data(), &k[8 * part], 8) / std::sqrt(32.0));
  }
  if (options.centred) {
    const double mean = std::accumulate(scores.begin(), scores.end(), 0.0) / 300;
    for (double& score : scores) score -= mean;
  }
  std::vector<size_t> order(300);
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, std::greater<>(), [&](size_t key) { return scores[key]; });
  double others = 0.0;
  for (size_t i = 75; i < 300; ++i) others += scores[order[i]] / 225;
  for (size_t i = 75; i < 300; ++i) scores[order[i]] = options.absent_mean ? others : 0.0;
  for (size_t i = 0; i < 75; ++i) listed[order[i]] = true;
  const double norm = std::sqrt(testing::dot(q, q, 8));
  for (double& score : scores) score *= options.norms ? norm : 1.0;
  return scores;
}

// The nearest centroid of every part, its list of the alpha N keys with the largest products, the
// sum over lists that hold a key, and the K keys with the largest sums.
TEST(CentroidLists, FindWhatThePublishedRuleAndItsRepairsFind) {
  for (const CentroidListsOptions& options : repaired({4, 8, 0.25f, false, 10, 1})) {
    Index index(options);
    index.build(200, 300);
    KeyPicks picks;
    for (size_t row = 200; row < 210; ++row) {
      index.lists.find(index.rows(row, row + 1, Phase::kDecode), {0, 300}, 30, picks);
      for (size_t head = 0; head < 4; ++head) {
        std::vector<double> sums(300);
        std::vector<bool> listed(300);
        for (size_t part = 0; part < 4; ++part) {
          const auto scores = part_scores(
              index, options, &index.q[(row * 4 + head) * 32 + 8 * part], head / 2, part, listed);
          for (size_t key = 0; key < 300; ++key) sums[key] += scores[key];
        }
        for (size_t key = 0; key < 300 && !options.absent_mean; ++key) {
          if (!listed[key]) sums[key] = -1e30;
        }
        testing::expect_best(picks[head], sums, 30, 1e-2);  // scores are in half precision
      }
    }
  }
}

/// How many of the 30 best keys of each head stay the same when all keys are moved by a vector.
size_t same_when_moved(const CentroidListsOptions& options, float by) {
  KeyPicks picks[2];
  for (const bool moved : {false, true}) {
    Index index(options);
    if (moved) index.move_keys(by);
    index.build(200, 300);
    index.lists.find(index.rows(210, 211, Phase::kDecode), {0, 300}, 30, picks[moved]);
  }
  size_t same = 0;
  for (size_t head = 0; head < 4; ++head) {
    std::vector<int32_t> both;
    std::ranges::set_intersection(picks[0][head], picks[1][head], std::back_inserter(both));
    same += both.size();
  }
  return same;
}

TEST(CentroidLists, RepairedScoresDoNotChangeWhereSoftmaxDoesNot) {
  const CentroidListsOptions published = {4, 8, 0.25f, false, 10, 1};
  for (const CentroidListsOptions& options : repaired(published)) {
    if (options.centred || options.absent_mean) {
      EXPECT_GE(same_when_moved(options, 3.0f), 4u * 28);  // ties in half precision
    } else {
      EXPECT_LT(same_when_moved(options, 3.0f), 4u * 20);
    }
  }
}

TEST(CentroidLists, AbsentKeysWithAMeanAreFound) {
  CentroidListsOptions options = {1, 1, 0.1f, false, 10, 1};
  options.absent_mean = true;
  Index index(options);
  index.build(20, 300);
  KeyPicks picks;
  index.lists.find(index.rows(7, 8, Phase::kDecode), {0, 300}, 100, picks);
  ASSERT_EQ(picks[0].size(), 100u);
  for (const auto& [key, score] : entries(index.lists.list(0, 0, 0, 0))) {
    EXPECT_TRUE(std::ranges::binary_search(picks[0], static_cast<int32_t>(key)));
  }
}

TEST(CentroidLists, DriftTakesTwoCentroidsThatCountKeysOnce) {
  Index index({1, 2, 1.0f, true, 10, 1});
  // Prompt queries point to one of two dims, drifted ones between them.
  std::fill(index.q.begin(), index.q.end(), 0.0f);
  for (size_t row = 0; row < 300; ++row) {
    for (size_t head = 0; head < 4; ++head) {
      float* q = &index.q[(row * 4 + head) * 32];
      q[0] = row % 2 == 0 || row >= 150 ? 1.0f : 0.0f;
      q[4] = row % 2 == 1 || row >= 150 ? 2.0f : 0.0f;
    }
  }
  index.build(100, 300);
  KeyPicks picks;
  for (size_t row = 100; row < 110; ++row) {
    index.lists.find(index.rows(row, row + 1, Phase::kDecode), {0, 300}, 20, picks);
  }
  EXPECT_EQ(index.lists.stats().at(0).second, 0.0);
  index.lists.clear_stats();
  for (size_t row = 150; row < 160; ++row) {
    index.lists.find(index.rows(row, row + 1, Phase::kDecode), {0, 300}, 20, picks);
  }
  EXPECT_EQ(index.lists.stats().at(0).second, 1.0);
  std::vector<double> scores;
  for (int32_t key = 0; key < 300; ++key) {  // q is in the span of both centroids: exact
    const auto k = testing::stored(index.kv, 0, 0, key);
    scores.push_back((k[0] + 2 * k[4]) / std::sqrt(5.0 * 32));
  }
  testing::expect_best(picks[0], scores, 20, 2e-3);
}

}  // namespace
}  // namespace reprise
