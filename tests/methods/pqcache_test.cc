#include "methods/baselines/pqcache.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "methods/kmeans.h"
#include "methods/selecting.h"

namespace reprise {
namespace {

using kernels::KvType;
using kernels::Phase;
using testing::Recorder;
using testing::Toy;
using testing::ToyShape;

/// A sequence of a toy, filled by full attention, and rows to give to index structures.
struct Filled {
  explicit Filled(const ToyShape& shape, size_t tokens)
      : toy(shape, tokens), kv(toy.new_sequence()), last{0, static_cast<int32_t>(tokens) - 1, 0} {
    toy.step(kv, *testing::make_policy(toy, "full"), tokens, Phase::kPrefill);
  }
  QueryRows rows(ThreadPool& pool) {
    return {0, Phase::kDecode, {&last, 1}, nullptr, nullptr, 0, &kv, &pool};
  }
  Toy toy;
  SequenceKv kv;
  Row last;
};

TEST(KMeans, FindsSeparateClusters) {
  const kernels::KvLayout layout = {KvType::kF32, 1, 8};
  constexpr size_t kPages = 12;
  std::vector<std::vector<std::byte>> memory(kPages, std::vector<std::byte>(layout.page_bytes()));
  std::vector<kernels::PageSpan> pages;
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.0f, 0.1f);
  for (size_t i = 0; i < kPages * kPageTokens; ++i) {  // 3 clusters in dims 2..5, noise elsewhere
    std::vector<float> key(8);
    for (float& value : key) value = 30 * normal(random);
    for (size_t d = 2; d < 6; ++d) {
      key[d] = normal(random) + (d - 2 == i % 3 ? 10.0f : 0.0f);
    }
    kernels::store_token(layout, memory[i / kPageTokens].data(), i % kPageTokens, key.data(),
                         key.data());
  }
  for (const auto& page : memory) pages.push_back({page.data()});
  pages.back().slots = 0x0ff0;
  const uint16_t pairs[] = {1, 2};
  std::vector<float> centroids(3 * 8, -7.0f);
  kmeans({&layout, pages, pairs}, {3, 10, 1}, centroids.data());
  std::set<size_t> found;
  for (size_t c = 0; c < 3; ++c) {
    for (size_t d = 0; d < 8; ++d) {
      const float value = centroids[c * 8 + d];
      if (d < 2 || d > 5) {
        EXPECT_EQ(value, -7.0f);  // not of these pairs
        continue;
      }
      if (value > 5) found.insert(d);
      EXPECT_NEAR(value, value > 5 ? 10.0f : 0.0f, 0.1f);  // 5 standard errors
    }
  }
  EXPECT_EQ(found, (std::set<size_t>{2, 3, 4}));
}

void check_lookups(const ToyShape& shape, uint32_t bits, double tolerance) {
  constexpr uint32_t kParts = 6;
  const size_t group = shape.n_head / shape.n_kv_head;
  Filled filled(shape, 200);
  ThreadPool pool(1);
  KeyCodes codes({kParts, bits, 3, 1}, filled.toy.config());
  codes.train(filled.rows(pool), 0, 200);
  codes.encode(filled.rows(pool), 200);
  for (size_t head = 0; head < shape.n_kv_head; ++head) {
    const float* q = filled.toy.q(0, 0) + head * group * shape.head_dim;
    std::vector<float> logits(group * 160);
    codes.logits(0, head, q, 30, 190, logits.data(), 160);
    for (size_t i = 0; i < 160; ++i) {
      std::vector<float> key(shape.head_dim);
      for (size_t part = 0; part < kParts; ++part) {
        const size_t code = codes.code(0, head, part, 30 + i);
        for (const size_t pair : codes.part_pairs(part)) {
          for (const size_t d : {2 * pair, 2 * pair + 1}) {
            key[d] = codes.centroids(0, head)[code * shape.head_dim + d];
          }
        }
      }
      for (size_t r = 0; r < group; ++r) {
        EXPECT_NEAR(logits[r * 160 + i],
                    testing::dot(q + r * shape.head_dim, key.data(), key.size()), tolerance);
      }
    }
  }
}

class Codes : public ::testing::TestWithParam<ToyShape> {};

INSTANTIATE_TEST_SUITE_P(Shapes, Codes,
                         ::testing::Values(ToyShape{1, 2, 2, 64}, ToyShape{1, 6, 2, 80},
                                           ToyShape{1, 9, 1, 128, KvType::kBF16},
                                           ToyShape{1, 4, 2, 64, KvType::kQ8_0},
                                           ToyShape{1, 6, 2, 64, KvType::kBF12}));

TEST_P(Codes, AreTheNearestCentroids) {
  const ToyShape& shape = GetParam();
  Filled filled(shape, 300);
  ThreadPool pool(2);
  KeyCodes codes({3, 4, 5, 1}, filled.toy.config());
  codes.train(filled.rows(pool), 7, 200);
  for (const int32_t end : {50, 51, 67, 290}) codes.encode(filled.rows(pool), end);
  codes.truncate(250);
  filled.kv.truncate(250);
  testing::change_tokens(filled.toy, 250, 300);
  const auto full = testing::make_policy(filled.toy, "full");
  filled.toy.step(filled.kv, *full, 50, Phase::kPrefill);
  codes.encode(filled.rows(pool), 290);
  for (size_t head = 0; head < shape.n_kv_head; ++head) {
    for (size_t part = 0; part < 3; ++part) {
      for (int32_t key = 0; key < 290; ++key) {
        const auto k = testing::stored(filled.kv, 0, head, key);
        std::vector<double> distances;
        for (size_t c = 0; c < 16; ++c) {
          double sum = 0.0;
          for (const size_t pair : codes.part_pairs(part)) {
            for (const size_t d : {2 * pair, 2 * pair + 1}) {
              sum += std::pow(k[d] - codes.centroids(0, head)[c * shape.head_dim + d], 2.0);
            }
          }
          distances.push_back(sum);
        }
        const double least = *std::min_element(distances.begin(), distances.end());
        const size_t code = codes.code(0, head, part, static_cast<size_t>(key));
        ASSERT_NEAR(distances[code], least, 1e-4 * least);
      }
    }
  }
}

TEST_P(Codes, LookupsEqualProductsWithReconstructedKeys) { check_lookups(GetParam(), 6, 2e-5); }

// Products of a part span at most 60 here; each of 6 parts is rounded to half of a 127th of that.
TEST_P(Codes, PackedLookupsAreClose) { check_lookups(GetParam(), 3, 6 * 60 / 254.0); }

TEST_P(Codes, TopsAreTheLargestLookupsOfAPage) {
  const ToyShape& shape = GetParam();
  const size_t group = shape.n_head / shape.n_kv_head;
  Filled filled(shape, 200);
  ThreadPool pool(1);
  KeyCodes codes({5, 4, 3, 1}, filled.toy.config());
  codes.train(filled.rows(pool), 0, 200);
  codes.encode(filled.rows(pool), 200);
  const float* q = filled.toy.q(0, 0);
  std::vector<float> logits(group * 160), tops(group * 10);
  codes.logits(0, 0, q, 16, 176, logits.data(), 160);
  KeyCodes::Lookup lookup;
  codes.prepare_lookup(0, 0, q, lookup);
  codes.page_tops(0, 0, lookup, 16, 176, tops.data(), 10);
  for (size_t i = 0; i < tops.size(); ++i) {
    EXPECT_EQ(tops[i], *std::max_element(&logits[16 * i], &logits[16 * i] + 16));
  }
}

/// Sum over the group of softmax weights over candidates [begin, end), exactly.
std::vector<double> exact_scores(const Toy& toy, const SequenceKv& kv, const float* q,
                                 size_t kv_head, int32_t begin, int32_t end) {
  const size_t group = toy.config().n_head / toy.config().n_kv_head;
  std::vector<int32_t> keys(static_cast<size_t>(end - begin));
  std::iota(keys.begin(), keys.end(), begin);
  std::vector<double> scores(keys.size());
  for (size_t r = 0; r < group; ++r) {
    const auto shares = testing::weights(toy, kv, 0, q + r * toy.config().head_dim, kv_head, keys);
    for (size_t i = 0; i < keys.size(); ++i) scores[i] += shares[i];
  }
  return scores;
}

TEST(PqCache, ACentroidForEveryKeyGivesTheExactBestKeys) {
  const ToyShape shape = {1, 6, 2, 64};
  Toy toy(shape, 240);
  toy.prompt_end = 230;
  Recorder policy(toy, "pqcache:budget=64,sink=8,local=0.25,bits=8");
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, policy, 230, Phase::kPrefill);
  for (int step = 0; step < 10; ++step) {
    toy.step(kv, policy, 1, Phase::kDecode);
    const auto& [selection, q] = policy.seen[0];
    const int32_t recent = kv.length() - 16;
    for (size_t head = 0; head < 2; ++head) {
      auto keys = testing::keys_of(selection.parts[0], head);
      ASSERT_EQ(keys.size(), 64u);
      for (int32_t i = 0; i < 8; ++i) ASSERT_EQ(keys[static_cast<size_t>(i)], i);
      for (int32_t i = 0; i < 16; ++i) ASSERT_EQ(keys[static_cast<size_t>(48 + i)], recent + i);
      const auto scores = exact_scores(toy, kv, &q[head * 3 * 64], head, 8, recent);
      std::vector<int32_t> picks(keys.begin() + 8, keys.begin() + 48);
      for (int32_t& pick : picks) pick -= 8;
      testing::expect_best(picks, scores, 40, 1e-5);
    }
  }
}

TEST(PqCache, FinerCodesFindMoreOfTheMass) {
  const auto mass_found = [](int bits, int parts) {
    Toy toy({1, 6, 2, 64}, 640);
    toy.prompt_end = 600;
    Recorder policy(toy, "pqcache:budget=64,sink=0,local=0.25,bits=" + std::to_string(bits) +
                             ",parts=" + std::to_string(parts));
    SequenceKv kv = toy.new_sequence();
    toy.step(kv, policy, 600, Phase::kPrefill);
    double mass = 0.0;
    for (int step = 0; step < 40; ++step) {
      toy.step(kv, policy, 1, Phase::kDecode);
      const auto& [selection, q] = policy.seen[0];
      for (size_t head = 0; head < 2; ++head) {
        const auto scores = exact_scores(toy, kv, &q[head * 3 * 64], head, 0, kv.length());
        for (const int32_t key : testing::keys_of(selection.parts[0], head)) {
          mass += scores[static_cast<size_t>(key)] / (3 * 2 * 40);
        }
      }
    }
    return mass;
  };
  const double coarse = mass_found(1, 1), medium = mass_found(4, 2), fine = mass_found(8, 8);
  EXPECT_LT(coarse + 0.02, medium);
  EXPECT_LT(medium + 0.02, fine);
}

TEST(PqCache, StateAndIndexBytesFollowTheFormula) {
  Toy toy({1, 4, 2, 64}, 401);
  toy.prompt_end = 400;
  const auto policy = testing::make_policy(toy, "pqcache:budget=100,sink=10,local=0.5");
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, *policy, 400, Phase::kPrefill);
  // Of each KV head centroids in three forms and half their squares, and codes.
  const uint64_t codebooks = 3 * 64 * 64 * 4 + 2 * 64 * 4;
  EXPECT_GE(policy->state_bytes(), 2 * (codebooks + 2 * (400 - 50)));
  EXPECT_LE(policy->state_bytes(), 2 * (codebooks + 2 * 2 * 400));
  toy.step(kv, *policy, 1, Phase::kDecode);
  EXPECT_EQ(toy.executor().cost(0).index_bytes_read,
            (401u - 50 - 10) * 2 * 2 + 2 * 64 * 64 * sizeof(float));
}

}  // namespace
}  // namespace reprise
