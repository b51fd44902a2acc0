#include "kernels/cuda/score_net.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "cuda/device_testing.h"
#include "methods/attention_predictor/network.h"
#include "methods/random_net.h"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kHeads = 3, kSlots = 2, kCapacity = 150, kSlot = 1;
constexpr uint32_t kSink = 1, kRecent = 20;

struct Case {
  uint32_t rows;
  bool published;
  int32_t first;  // position of the first row
  uint32_t prompt;
};

std::shared_ptr<const ForecastNet> shared(const ForecastNet& net) {
  return std::make_shared<const ForecastNet>(net);
}

// The CPU's predictor and the device's arrays, told the same rows.
class Both {
 public:
  explicit Both(const Case& shape)
      : shape_(shape),
        net_(shared(test::random_net(shape.rows, shape.published, test::kFaint))),
        cpu_(kHeads, net_, 0.7f, 0),
        magnitudes_(kHeads, shared(test::magnitudes_of(*net_)), 0.7f, 0),
        changes_(kHeads, shared(test::magnitudes_of(*net_, false)), 0.7f, 0),
        average_(kHeads, 0.7f, 0),
        device_net_(std::vector<ScoreNetImage>{score_net_image(net_->net)}),
        rows_(size_t{kSlots} * kHeads * shape.rows * kCapacity, 0xff),
        parts_(size_t{kSlots} * kHeads * shape.rows * kCapacity, 0xff),
        averages_(size_t{kSlots} * kHeads * kCapacity),
        forecasts_(size_t{kSlots} * kHeads * kCapacity, 0xff),
        slots_(std::vector<uint32_t>{kSlot}) {}

  void push(int32_t position) {
    ScoreRow row;
    row.reset(kHeads, static_cast<size_t>(position) / 16 + 1);
    for (float& x : row.scores) x = std::exponential_distribution<float>(40.0f)(random_);
    cpu_.push(row);
    magnitudes_.push(row);
    changes_.push(row);
    average_.push(row);
    for (uint32_t head = 0; head < kHeads; ++head) {
      std::vector<float> values(kCapacity), averages(kCapacity);
      for (size_t i = 0; i < row.blocks; ++i) {
        const float share = row.scores_of(head)[i];
        values[i] = shape_.published ? share : std::sqrt(share);
      }
      average_.forecast(head, 0, kCapacity, averages.data());
      const size_t list = kSlot * kHeads + head;
      const auto at = static_cast<uint32_t>(position) % shape_.rows;
      put(rows_.get() + (list * shape_.rows + at) * kCapacity, values);
      put(averages_.get() + list * kCapacity, averages);
    }
  }

  void expect_equal(int32_t position, bool anew) {
    const DeviceArray<int32_t> newest(std::vector<int32_t>{position});
    ForecastArgs args;
    args.net = device_net_.get();
    args.history = {rows_.get(), shape_.rows, !shape_.published};
    args.parts = parts_.get();
    args.anew = anew;
    args.positions = newest.get();
    args.slots = slots_.get();
    args.rows = 1;
    args.n_kv_head = kHeads;
    args.capacity = kCapacity;
    args.sink_pages = kSink;
    args.recent_tokens = kRecent;
    args.averages = shape_.published ? nullptr : averages_.get();
    args.forecasts = forecasts_.get();
    ASSERT_EQ(forecast_shares(args, nullptr), cudaSuccess);
    const auto end = static_cast<uint32_t>(position) + 2;
    const uint32_t last = std::max((end - std::min(end, kRecent)) / 16, kSink);
    const auto got = forecasts_.host();
    for (uint32_t head = 0; head < kHeads; ++head) {
      std::vector<float> want(last - kSink), most(want), changes(want), roots(want);
      cpu_.forecast(head, kSink, last, want.data());
      magnitudes_.forecast(head, kSink, last, most.data());
      changes_.forecast(head, kSink, last, changes.data());
      if (!shape_.published) average_.forecast(head, kSink, last, roots.data());
      for (uint32_t i = 0; i < want.size(); ++i) {
        // Sums of 10, 145 and 32 numbers, of the rows and of two, rounded here and there.
        const double roundings = 10 + 145 + 32 + shape_.rows + 2;
        const double change = changes[i] - std::sqrt(roots[i]);
        const double error = 2 * roundings * 0x1p-24 * most[i] + test::kHalfError * change;
        ASSERT_NEAR(got[(kSlot * kHeads + head) * kCapacity + kSink + i], want[i], error)
            << "head " << head << ", column " << i << " of " << want.size();
      }
      const float* beyond = &got[(kSlot * kHeads + head) * kCapacity + last];
      if (last < kCapacity && anew) {
        ASSERT_TRUE(std::isnan(*beyond));
      }
    }
  }

 private:
  static void put(float* to, const std::vector<float>& values) {
    ASSERT_EQ(cudaMemcpy(to, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice),
              cudaSuccess);
  }

  Case shape_;
  std::mt19937 random_{4};
  std::shared_ptr<const ForecastNet> net_;
  NetworkPredictor cpu_, magnitudes_, changes_;
  AveragePredictor average_;
  DeviceArray<ScoreNetImage> device_net_;
  DeviceArray<float> rows_, parts_, averages_, forecasts_;
  DeviceArray<uint32_t> slots_;
};

class ForecastShares : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Shapes, ForecastShares,
                         testing::Values(Case{16, false, 2200, 20}, Case{16, true, 1030, 16},
                                         Case{24, false, 0, 2}, Case{3, false, 700, 3},
                                         Case{5, true, 1000, 9}, Case{64, true, 2000, 70}));

TEST_P(ForecastShares, AreThoseOfTheCpuStepAfterStep) {
  REPRISE_NEEDS_DEVICE();
  const Case& shape = GetParam();
  Both both(shape);
  int32_t position = shape.first;
  for (uint32_t i = 0; i < shape.prompt; ++i) both.push(position++);
  both.expect_equal(position - 1, true);
  for (int step = 0; step < 90 && !HasFatalFailure(); ++step) {  // columns come meanwhile
    SCOPED_TRACE(step);
    both.push(position);
    both.expect_equal(position++, false);
  }
}

}  // namespace
}  // namespace reprise::kernels::cuda
