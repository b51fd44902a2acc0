#include "kernels/cuda/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/float16.h"
#include "cuda/device_testing.h"
#include "kernels/matmul_case.h"

namespace reprise::kernels::cuda {
namespace {

struct Options {
  bool bias = false, accumulate = false;
  GemmOut type = GemmOut::kF32;
};

struct Weight {
  Weight(TensorType type, size_t rows, size_t cols, ThreadPool& pool, unsigned seed = 1)
      : matrix(packed(StoredMatrix(type, rows, cols, seed), pool)) {
    EXPECT_EQ(DeviceMatrix::upload(matrix, pool, &device), cudaSuccess);
  }
  std::vector<double> row(size_t index) const {
    std::vector<float> values(matrix.cols());
    unpack_row(matrix, index, values.data());
    return {values.begin(), values.end()};
  }
  PackedMatrix matrix;
  DeviceMatrix device;
};

std::vector<uint16_t> to_bf16_bits(const std::vector<float>& values) {
  std::vector<uint16_t> out;
  for (const float v : values) out.push_back(to_bf16(v).bits);
  return out;
}

// [rows, stride] after the product; out begins as start.
std::vector<float> run(Gemm& gemm, const Weight& weight, const std::vector<uint16_t>& x,
                       size_t rows, size_t stride, const Options& options,
                       const std::vector<float>& start, const std::vector<float>& bias) {
  const DeviceArray<uint16_t> device_x(x);
  const DeviceArray<float> device_bias(bias), f32(start);
  const DeviceArray<uint16_t> bf16(to_bf16_bits(start));
  const bool wide = options.type == GemmOut::kF32;
  GemmArgs args;
  args.weight = &weight.device;
  args.x = reinterpret_cast<const __nv_bfloat16*>(device_x.get());
  args.rows = static_cast<uint32_t>(rows);
  args.out = wide ? static_cast<void*>(f32.get()) : bf16.get();
  args.type = options.type;
  args.out_stride = stride;
  args.bias = options.bias ? device_bias.get() : nullptr;
  args.accumulate = options.accumulate;
  const Status status = gemm.multiply(args, nullptr);
  EXPECT_TRUE(status.has_value()) << status.error().message;
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  if (wide) return f32.host();
  std::vector<float> out;
  for (const uint16_t bits : bf16.host()) out.push_back(to_float(Bf16{bits}));
  return out;
}

// Weights that are not bf16 lose 2^-8 of themselves; tensor cores may cut, not round, each of k
// sums of floats; biases and results in bf16 lose 2^-8, results once more where the library rounds
// them before it adds the bias.
void check(Gemm& gemm, const Weight& weight, size_t rows, const Options& options) {
  const size_t n = weight.matrix.rows(), k = weight.matrix.cols(), stride = n + 3;
  const std::vector<uint16_t> x = to_bf16_bits(random_values(rows * k, 2));
  const std::vector<float> bias = random_values(n, 3), start = random_values(rows * stride, 4);
  const std::vector<float> out = run(gemm, weight, x, rows, stride, options, start, bias);
  const bool wide = options.type == GemmOut::kF32;
  const double rounding = weight.matrix.type() == TensorType::kBF16 ? 0.0 : 0x1.01p-8;
  for (size_t row = 0; row < n; ++row) {
    const std::vector<double> w = weight.row(row);
    for (size_t i = 0; i < rows; ++i) {
      const size_t at = i * stride + row;
      double value = (options.bias ? bias[row] : 0.0) + (options.accumulate ? start[at] : 0.0);
      double magnitude = std::abs(value) + 1;
      for (size_t c = 0; c < k; ++c) {
        const double product = w[c] * static_cast<double>(to_float(Bf16{x[i * k + c]}));
        value += product;
        magnitude += std::abs(product);
      }
      const double error = magnitude * (rounding + static_cast<double>(k) * 0x1p-23);
      double tolerance = error;
      if (!wide) tolerance += 0x1p-8 * (std::abs(value) + error);
      if (!wide && options.bias) {
        tolerance += 0x1p-8 * (std::abs(bias[row]) + std::abs(value - bias[row]) + error);
      }
      ASSERT_NEAR(out[at], value, tolerance)
          << tensor_type_info(weight.matrix.type()).name << " [" << n << ", " << k << "] row " << i
          << " of " << rows << ", column " << row << ", bf16 " << !wide << ", bias " << options.bias
          << ", accumulate " << options.accumulate;
    }
  }
  for (size_t i = 0; i < rows; ++i) {
    for (size_t column = n; column < stride; ++column) {
      const float before = start[i * stride + column];
      ASSERT_EQ(out[i * stride + column], wide ? before : to_float(to_bf16(before)));
    }
  }
}

class GemmTypes : public testing::TestWithParam<TensorType> {
 protected:
  void SetUp() override {
    REPRISE_NEEDS_DEVICE();
    auto made = Gemm::create(size_t{1} << 20);  // weights come in slices
    ASSERT_TRUE(made.has_value()) << made.error().message;
    gemm_ = std::move(*made);
  }
  ThreadPool pool_{2};
  std::unique_ptr<Gemm> gemm_;
};

TEST_P(GemmTypes, GivesTheProduct) {
  const size_t block = tensor_type_info(GetParam()).block;
  const size_t odd = odd_columns(GetParam());
  for (const size_t k : {block == 1 ? size_t{72} : block, odd}) {
    for (const size_t n : {size_t{1}, size_t{37}, size_t{200}}) {
      const Weight weight(GetParam(), n, k, pool_);
      for (const size_t rows : {1, 17}) {
        check(*gemm_, weight, rows, {});
        check(*gemm_, weight, rows, {.bias = true});
        check(*gemm_, weight, rows, {.bias = true, .accumulate = true});
        check(*gemm_, weight, rows, {.type = GemmOut::kBF16});
        check(*gemm_, weight, rows, {.bias = true, .type = GemmOut::kBF16});
        if (HasFatalFailure()) return;
      }
    }
    check(*gemm_, Weight(GetParam(), 37, k, pool_), 512, {.accumulate = true});
  }
}

TEST_P(GemmTypes, GivesTheProductOfSlices) {
  const size_t k = tensor_type_info(GetParam()).block == 1 ? 2056 : 2048;
  const Weight weight(GetParam(), 300, k, pool_);  // 128 rows of which fit in the workspace
  check(*gemm_, weight, 17, {.bias = true, .accumulate = true});
  check(*gemm_, weight, 64, {.type = GemmOut::kBF16});
}

INSTANTIATE_TEST_SUITE_P(AllTypes, GemmTypes, testing::ValuesIn(kAllTypes), [](const auto& test) {
  return std::string(tensor_type_info(test.param).name);
});

// What weights give together is what each gives alone.
void check_together(Gemm& gemm, const std::vector<const Weight*>& weights, bool accumulate) {
  constexpr size_t kRows = 70, kStride = 128, kApart = kRows * kStride;
  const size_t in = weights.front()->matrix.cols();
  const DeviceArray<uint16_t> x(to_bf16_bits(random_values(kRows * in, 3)));
  const std::vector<float> start = random_values(weights.size() * kApart, 4);
  const DeviceArray<float> together(start), alone(start);
  std::vector<GemmArgs> products;
  for (size_t i = 0; i < weights.size(); ++i) {
    GemmArgs args;
    args.weight = &weights[i]->device;
    args.x = reinterpret_cast<const __nv_bfloat16*>(x.get());
    args.rows = kRows;
    args.out = alone.get() + i * kApart;
    args.out_stride = kStride;
    args.accumulate = accumulate;
    ASSERT_TRUE(gemm.multiply(args, nullptr));
    args.out = together.get() + i * kApart;
    products.push_back(args);
  }
  ASSERT_TRUE(gemm.multiply(products, nullptr));
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const auto got = together.host(), want = alone.host();
  const double tolerance = static_cast<double>(in * in) * 0x1p-22;  // products are below 1
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], tolerance) << i;
}

// Two of one shape, in the order in which their weights lie, come at once: in some of these orders.
TEST(Gemm, GivesSeveralProducts) {
  REPRISE_NEEDS_DEVICE();
  ThreadPool pool(2);
  auto gemm = Gemm::create(size_t{4} << 20);
  ASSERT_TRUE(gemm.has_value()) << gemm.error().message;
  for (const TensorType type : {TensorType::kBF16, TensorType::kQ8_0}) {
    const Weight a(type, 64, 128, pool, 1), b(type, 64, 128, pool, 2), c(type, 64, 128, pool, 5);
    const Weight other(type, 96, 128, pool, 6);
    const std::vector<std::vector<const Weight*>> orders = {
        {&a, &b}, {&b, &a}, {&a, &c}, {&c, &a}, {&b, &c, &a}, {&c, &b, &a}, {&other, &a, &b}};
    for (const auto& weights : orders) {
      for (const bool accumulate : {false, true}) check_together(**gemm, weights, accumulate);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Gemm, RefusesWhatItCannotDo) {
  REPRISE_NEEDS_DEVICE();
  ThreadPool pool(2);
  auto gemm = Gemm::create(1024);
  ASSERT_TRUE(gemm.has_value()) << gemm.error().message;
  const Weight weight(TensorType::kF32, 8, 512, pool);
  const DeviceArray<uint16_t> x(512);
  const DeviceArray<float> out(8);
  GemmArgs args;
  args.weight = &weight.device;
  args.x = reinterpret_cast<const __nv_bfloat16*>(x.get());
  args.rows = 1;
  args.out = out.get();
  args.out_stride = 8;
  Status status = (*gemm)->multiply(args, nullptr);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kOutOfMemory);
  args.type = GemmOut::kBF16;
  args.accumulate = true;
  status = (*gemm)->multiply(args, nullptr);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace reprise::kernels::cuda
