#include "kernels/cuda/least_scores.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "cuda/device_testing.h"
#include "cuda/page_testing.h"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kHeads = 6, kKvHeads = 2;
constexpr MiddleKeys kMiddle = {5, 40, 60};

class LeastScores : public ::testing::TestWithParam<std::tuple<KvType, uint32_t>> {
 protected:
  static constexpr float kScale = 0.05f, kShare = 0.1f;

  // Pairs up to pairs_ are turned, by other angles at every position.
  LeastScores() : tiles_(type_, dim_, size_t{2} * kCapacity * kKvHeads * 2) {
    tiles_.fill(random_);
    for (uint32_t i = 0; i < pages_.size(); ++i) {
      pages_[i] = static_cast<uint32_t>(pages_.size()) - 1 - i;
    }
    std::normal_distribution<float> normal;
    q_.resize(size_t{2} * kHeads * dim_);
    for (float& value : q_) value = normal(random_);
    for (uint32_t row = 0; row < kRows; ++row) {
      for (uint32_t pair = 0; pair < pairs_; ++pair) {
        const double angle = (static_cast<int>(row) - 15) * std::pow(0.7, pair);
        angles_.push_back(static_cast<float>(std::cos(angle)));
        angles_.push_back(static_cast<float>(std::sin(angle)));
      }
    }
  }

  double turned(const std::vector<double>& of, uint32_t dim, int32_t position) const {
    const uint32_t pair = dim / 2;
    if (pair >= pairs_) return of[dim];
    const float* by = &angles_[(static_cast<size_t>(position + 15) * pairs_ + pair) * 2];
    return dim % 2 == 0 ? of[dim] * by[0] - of[dim + 1] * by[1]
                        : of[dim] * by[0] + of[dim - 1] * by[1];
  }

  double expected(uint32_t sequence, uint32_t head, int32_t length) const {
    const int32_t count = kMiddle.sink + kMiddle.local;
    const size_t from = (size_t{sequence} * kHeads + head) * dim_;
    const std::vector<double> q(&q_[from], &q_[from] + dim_);
    double sum = 0.0;
    for (int32_t i = 0; i < count; ++i) {
      const auto key = static_cast<uint32_t>(i < kMiddle.sink ? i : length - count + i);
      const size_t page = pages_[sequence * kCapacity + key / 16];
      std::vector<double> k(dim_);
      for (uint32_t dim = 0; dim < dim_; ++dim) {
        k[dim] = tiles_.value((page * kKvHeads + head / 3) * 2, key % 16, dim);
      }
      double product = 0.0;
      for (uint32_t dim = 0; dim < dim_; ++dim) {
        product += turned(q, dim, count - 1) * turned(k, dim, i);
      }
      sum += std::exp(product * kScale);
    }
    return std::log(sum * kShare) / kScale;
  }

  static constexpr uint32_t kCapacity = 20, kRows = 64;
  KvType type_ = std::get<0>(GetParam());
  uint32_t dim_ = std::get<1>(GetParam()), pairs_ = dim_ / 2 - 3;
  std::mt19937 random_{dim_};
  TestTiles tiles_;
  std::vector<uint32_t> pages_ = std::vector<uint32_t>(2 * kCapacity);
  std::vector<float> q_, angles_;
};

INSTANTIATE_TEST_SUITE_P(Shapes, LeastScores,
                         ::testing::Combine(::testing::Values(KvType::kBF16, KvType::kF16,
                                                              KvType::kFP8),
                                            ::testing::Values(64u, 96u, 128u, 256u)));

TEST_P(LeastScores, AreTheShareOfNearKeysWhereTheyStandTogether) {
  REPRISE_NEEDS_DEVICE();
  const std::vector<int32_t> lengths = {300, 61};
  const DeviceArray<uint8_t> kv(tiles_.bytes());
  const DeviceArray<uint32_t> pages(pages_);
  const DeviceArray<int32_t> last(std::vector<int32_t>{lengths[0] - 1, lengths[1] - 1});
  const DeviceArray<float> q(q_), angles(angles_), least(size_t{2} * kHeads);
  LeastScoresArgs args;
  args.kv = {kv.get(), type_, kKvHeads, dim_};
  args.pages = pages.get();
  args.positions = last.get();
  args.batch = 2;
  args.capacity = kCapacity;
  args.n_head = kHeads;
  args.middle = kMiddle;
  args.q = q.get();
  args.angles = {angles.get(), pairs_};
  args.scale = kScale;
  args.share = kShare;
  args.least = least.get();
  ASSERT_EQ(least_scores(args, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const std::vector<float> got = least.host();
  for (uint32_t i = 0; i < got.size(); ++i) {
    const double want = expected(i / kHeads, i % kHeads, lengths[i / kHeads]);
    // Products of dim_ floats, whose rounding is relative to their norms, far below 2^-16 here.
    EXPECT_NEAR(got[i], want, 0x1p-16 * (std::abs(want) + dim_)) << i;
  }
}

}  // namespace
}  // namespace reprise::kernels::cuda
