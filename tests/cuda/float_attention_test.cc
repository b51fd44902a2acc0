#include "kernels/cuda/float_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "cuda/device_testing.h"
#include "cuda/page_testing.h"

namespace reprise::kernels::cuda {
namespace {

struct Heads {
  uint32_t n_head, n_kv_head, head_dim;
};

struct Options {
  KvType type = KvType::kF32;
  float soft_cap = 0.0f;
  int32_t window = 0;
};

// Three sequences of some pages, rows anywhere in them, and what double precision makes of it.
class Case {
 public:
  Case(const Heads& heads, const Options& options, unsigned seed)
      : heads_(heads), options_(options), random_(seed), tiles_(options.type, heads.head_dim, 0) {
    pages_.resize(size_t{kSequences} * kCapacity);
    std::iota(pages_.begin(), pages_.end(), 0u);
    std::shuffle(pages_.begin(), pages_.end(), random_);
    tiles_ = TestTiles(options.type, heads.head_dim, pages_.size() * heads.n_kv_head * 2);
    tiles_.fill(random_);
    for (const int32_t position : {-1, 0, 15, 16, 17, 100, 255, 700, 799}) {
      positions_.push_back(position);
      sequences_.push_back(static_cast<uint32_t>(random_() % kSequences));
    }
    q_.resize(positions_.size() * heads.n_head * heads.head_dim);
    std::normal_distribution<float> normal(0.0f, 2.0f);
    for (float& value : q_) value = normal(random_);
  }

  void run_and_check() {
    const DeviceArray<uint8_t> kv(tiles_.bytes());
    const DeviceArray<float> q(q_), out(q_.size(), 0xff);
    const DeviceArray<uint32_t> pages(pages_), sequences(sequences_);
    const DeviceArray<int32_t> positions(positions_);
    FloatAttentionArgs args;
    args.kv = {kv.get(), options_.type, heads_.n_kv_head, heads_.head_dim};
    args.pages = pages.get();
    args.capacity = kCapacity;
    args.sequences = sequences.get();
    args.positions = positions.get();
    args.rows = static_cast<uint32_t>(positions_.size());
    args.n_head = heads_.n_head;
    args.q = q.get();
    args.scale = scale();
    args.soft_cap = options_.soft_cap;
    args.window = options_.window;
    args.out = out.get();
    ASSERT_EQ(float_attention(args, nullptr), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const std::vector<float> outs = out.host();
    for (size_t i = 0; i < outs.size() / heads_.head_dim; ++i) check(i, &outs[i * heads_.head_dim]);
  }

 private:
  static constexpr uint32_t kSequences = 3, kCapacity = 50;

  float scale() const { return 1.0f / std::sqrt(static_cast<float>(heads_.head_dim)); }

  double value(size_t row, uint32_t kv_head, int32_t key, uint32_t side, uint32_t dim) const {
    const auto token = static_cast<uint32_t>(key);
    const size_t page = pages_[sequences_[row] * kCapacity + token / kPageTokens];
    return tiles_.value((page * heads_.n_kv_head + kv_head) * 2 + side, token % kPageTokens, dim);
  }

  // index: of a row and head.
  void check(size_t index, const float* got) const {
    const size_t row = index / heads_.n_head;
    const uint32_t head = static_cast<uint32_t>(index % heads_.n_head);
    const uint32_t kv_head = head / (heads_.n_head / heads_.n_kv_head), dims = heads_.head_dim;
    const int32_t end = positions_[row] + 1;
    const int32_t first = options_.window > 0 ? std::max(end - options_.window, 0) : 0;
    std::vector<double> want(dims, 0.0);
    double base = -INFINITY, total = 0.0, most_products = 0.0, most_value = 0.0;
    std::vector<double> logits;
    for (int32_t key = first; key < end; ++key) {
      double product = 0.0, products = 0.0;
      for (uint32_t dim = 0; dim < dims; ++dim) {
        const double one = q_[index * dims + dim] * value(row, kv_head, key, 0, dim);
        product += one;
        products += std::abs(one);
      }
      const double cap = options_.soft_cap, logit = product * scale();
      logits.push_back(cap > 0 ? cap * std::tanh(logit / cap) : logit);
      base = std::max(base, logits.back());
      most_products = std::max(most_products, products * scale());
    }
    for (int32_t key = first; key < end; ++key) {
      const double weight = std::exp(logits[static_cast<size_t>(key - first)] - base);
      total += weight;
      for (uint32_t dim = 0; dim < dims; ++dim) {
        const double v = value(row, kv_head, key, 1, dim);
        want[dim] += weight * v;
        most_value = std::max(most_value, std::abs(v));
      }
    }
    // Of a logit: a rounding per step of its sum and tree. Of a sum of values: one per key.
    const double of_logit = 0x1p-24 * (dims / 32.0 + 8) * most_products;
    const double tolerance = (2 * of_logit + 0x1p-24 * (end - first + 16)) * most_value;
    for (uint32_t dim = 0; dim < dims; ++dim) {
      const double expected = total > 0 ? want[dim] / total : 0.0;
      ASSERT_NEAR(got[dim], expected, tolerance) << "row " << row << " head " << head;
    }
  }

  Heads heads_;
  Options options_;
  std::mt19937 random_;
  TestTiles tiles_;
  std::vector<uint32_t> pages_, sequences_;
  std::vector<int32_t> positions_;
  std::vector<float> q_;
};

TEST(FloatAttention, MatchesDoublePrecision) {
  REPRISE_NEEDS_DEVICE();
  unsigned seed = 1;
  for (const Heads& heads :
       {Heads{9, 3, 64}, Heads{8, 2, 128}, Heads{6, 2, 96}, Heads{4, 1, 256}, Heads{2, 2, 32}}) {
    for (const KvType type : {KvType::kF32, KvType::kBF16, KvType::kF16, KvType::kFP8}) {
      Case(heads, {type}, seed++).run_and_check();
    }
    Case(heads, {KvType::kF32, 20.0f}, seed++).run_and_check();
    Case(heads, {KvType::kF32, 0.0f, 100}, seed++).run_and_check();
  }
}

TEST(FloatAttention, RefusesHeadsThatItDoesNotHave) {
  FloatAttentionArgs args;
  args.rows = 1;
  args.kv = {nullptr, KvType::kF32, 1, 260};
  EXPECT_EQ(float_attention(args, nullptr), cudaErrorNotSupported);
  args.kv.head_dim = 60;
  EXPECT_EQ(float_attention(args, nullptr), cudaErrorNotSupported);
}

}  // namespace
}  // namespace reprise::kernels::cuda
