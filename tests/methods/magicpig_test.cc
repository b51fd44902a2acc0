#include "methods/baselines/magicpig.h"

#include <gtest/gtest.h>

#include <numeric>

#include "methods/selecting.h"

namespace reprise {
namespace {

using kernels::KvType;
using kernels::Phase;
using testing::Recorder;
using testing::Toy;

TEST(CollisionProbability, IsTheUpperTailOfTheBinomial) {
  for (const double p : {0.001, 0.02, 0.3, 0.9}) {
    for (const size_t least : {1, 2, 5}) {
      double tail = 0.0;
      for (size_t i = least; i <= 30; ++i) {
        const double n = 30, k = static_cast<double>(i);
        tail += std::exp(std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1) +
                         k * std::log(p) + (n - k) * std::log1p(-p));
      }
      EXPECT_NEAR(collision_probability(p, 30, least), tail, 1e-12) << p << " " << least;
    }
  }
  EXPECT_EQ(collision_probability(0.0, 30, 1), 0.0);
  EXPECT_EQ(collision_probability(1.0, 30, 30), 1.0);
  EXPECT_EQ(collision_probability(0.5, 3, 4), 0.0);
}

struct Moments {
  double sum = 0.0, squares = 0.0;
  int count = 0;
  void add(double x) {
    sum += x;
    squares += x * x;
    ++count;
  }
  double mean() const { return sum / count; }
  double error() const { return std::sqrt((squares / count - mean() * mean()) / (count - 1)); }
};

TEST(MagicPig, NumeratorAndDenominatorAreUnbiased) {
  constexpr int kSeeds = 300;
  Toy toy({1, 4, 2, 32}, 121);
  for (size_t i = 0; i < 121 * 2 * 32; ++i) toy.k(0, 0)[i] += 0.5f;  // a mean worth taking off
  std::vector<Moments> numerators(4), denominators(4);
  std::vector<float> q;
  SequenceKv kv = toy.new_sequence();
  for (int seed = 0; seed < kSeeds; ++seed) {
    Recorder policy(toy, "magicpig:tables=16,bits=3,sink=2,local=5,seed=" + std::to_string(seed));
    SequenceKv own = toy.new_sequence();
    toy.step(own, policy, 120, Phase::kPrefill);
    toy.step(own, policy, 1, Phase::kDecode);
    const Selection& selection = policy.seen[0].selection;
    q = policy.seen[0].q_rotated;
    size_t at = 0;  // of the bias
    for (size_t head = 0; head < 4; ++head) {
      double numerator = 0.0, denominator = 0.0;
      for (const int32_t key : testing::keys_of(selection.parts[0], head)) {
        const auto k = testing::stored(own, 0, head / 2, key);
        const double logit = testing::dot(&q[head * 32], k.data(), 32) / std::sqrt(32.0);
        const double weight = std::exp(logit + double{selection.parts[0].bias[at++]});
        denominator += weight;
        numerator += weight * testing::stored(own, 0, head / 2, key, true)[0];
      }
      numerators[head].add(numerator);
      denominators[head].add(denominator);
    }
    ASSERT_EQ(at, selection.parts[0].bias.size());
    kv = own;
  }
  for (size_t head = 0; head < 4; ++head) {
    double numerator = 0.0, denominator = 0.0;
    for (int32_t key = 0; key < 121; ++key) {
      const auto k = testing::stored(kv, 0, head / 2, key);
      const double weight = std::exp(testing::dot(&q[head * 32], k.data(), 32) / std::sqrt(32.0));
      denominator += weight;
      numerator += weight * testing::stored(kv, 0, head / 2, key, true)[0];
    }
    EXPECT_NEAR(numerators[head].mean(), numerator, 3.5 * numerators[head].error()) << head;
    EXPECT_NEAR(denominators[head].mean(), denominator, 3.5 * denominators[head].error()) << head;
    EXPECT_LT(denominators[head].error(), 0.02 * denominator);  // so that a bias would show
  }
}

TEST(MagicPig, WithoutBitsEveryKeyIsReadAtItsOwnWeight) {
  Toy toy({2, 6, 2, 32}, 200);
  const auto policy = testing::make_policy(toy, "magicpig:tables=4,bits=0,sink=3,local=9");
  const auto full = testing::make_policy(toy, "full");
  SequenceKv a = toy.new_sequence(), b = toy.new_sequence();
  toy.step(a, *policy, 190, Phase::kPrefill);
  toy.step(b, *full, 190, Phase::kPrefill);
  for (int i = 0; i < 10; ++i) {
    const auto got = toy.step(a, *policy, 1, Phase::kDecode);
    const auto want = toy.step(b, *full, 1, Phase::kDecode);
    for (size_t j = 0; j < got.size(); ++j) {
      ASSERT_NEAR(got[j], want[j], testing::kFloatTolerance);
    }
    EXPECT_EQ(toy.executor().cost(0).keys_read, 2u * 2 * static_cast<size_t>(a.length()));
  }
}

/// The keys that share a bucket in `least` tables, by comparing every key with the query.
TEST(MagicPig, TablesFindWhatABruteForceComparisonFinds) {
  for (const KvType type : {KvType::kF32, KvType::kBF16}) {
    Toy toy({1, 2, 1, 64, type}, 500);
    SequenceKv kv = toy.new_sequence();
    toy.step(kv, *testing::make_policy(toy, "full"), 500, Phase::kPrefill);
    const SignPlanes planes(12, 4, 64, 5);
    const Row row = {0, 499, 0};
    ThreadPool pool(1);
    const QueryRows rows = {0, Phase::kDecode, {&row, 1}, nullptr, nullptr, 0, &kv, &pool};
    SignTables tables;
    tables.prepare(rows, 0, 9, 480, planes);
    for (size_t piece = 0; piece < tables.pieces(); ++piece) {
      tables.hash_piece(rows, 0, piece, planes);
    }
    for (size_t table = 0; table < 12; ++table) tables.sort_table(table, planes);
    tables.finish();

    std::vector<double> mean(64);
    for (int32_t key = 9; key < 480; ++key) {
      const auto k = testing::stored(kv, 0, 0, key);
      for (size_t d = 0; d < 64; ++d) mean[d] += k[d] / (480.0 - 9);
    }
    for (size_t d = 0; d < 64; ++d) EXPECT_NEAR(tables.centre()[d], mean[d], 1e-6);
    const float* q = toy.q(0, 3);
    std::vector<float> dots;
    std::vector<uint16_t> buckets, counts;
    std::vector<int32_t> found;
    planes.project(q, dots);
    planes.buckets_of(dots, buckets);
    tables.collide(buckets, 3, 470, planes, counts, found);
    int close = 0;  // products too near to a plane to be sure
    for (int32_t key = 9; key < 470; ++key) {
      const auto k = testing::stored(kv, 0, 0, key);
      size_t shared = 0;
      bool sure = true;
      for (size_t table = 0; table < 12; ++table) {
        bool same = true;
        for (size_t bit = 0; bit < 4; ++bit) {
          const float* plane = planes.rows() + (table * 4 + bit) * 64;
          double side = 0.0;
          for (size_t d = 0; d < 64; ++d) side += plane[d] * (k[d] - mean[d]);
          sure &= std::abs(side) > 1e-4;
          same &= (side > 0) == (testing::dot(plane, q, 64) > 0);
        }
        shared += same ? 1 : 0;
      }
      close += sure ? 0 : 1;
      if (sure) {
        EXPECT_EQ(std::binary_search(found.begin(), found.end(), key), shared >= 3) << key;
      }
    }
    EXPECT_LT(close, 10);
  }
}

TEST(MagicPig, GeneratedKeysAreAlwaysRead) {
  Toy toy({1, 2, 1, 32}, 200);
  toy.prompt_end = 120;
  Recorder policy(toy, "magicpig:tables=2,bits=8,sink=4,local=16");
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, policy, 120, Phase::kPrefill);
  for (int i = 0; i < 60; ++i) {
    toy.step(kv, policy, 1, Phase::kDecode);
    const auto keys = testing::keys_of(policy.seen[0].selection.parts[0], 0);
    const int32_t recent = std::min(120, kv.length() - 16);
    const auto first = std::lower_bound(keys.begin(), keys.end(), recent);
    EXPECT_EQ(keys.end() - first, kv.length() - recent);
    EXPECT_LT(first - keys.begin(), 80);  // and not everything before
  }
}

TEST(MagicPig, SeedsChangeTheSample) {
  const auto run = [](int seed) {
    Toy toy({1, 4, 2, 32}, 300);
    const auto policy =
        testing::make_policy(toy, "magicpig:tables=10,bits=4,seed=" + std::to_string(seed));
    SequenceKv kv = toy.new_sequence();
    toy.step(kv, *policy, 299, Phase::kPrefill);
    return toy.step(kv, *policy, 1, Phase::kDecode);
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

}  // namespace
}  // namespace reprise
