#include "kernels/cuda/elementwise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "base/float16.h"
#include "cuda/device_testing.h"
#include "kernels/matmul_case.h"
#include "kernels/quant_blocks.h"

namespace reprise::kernels::cuda {
namespace {

constexpr float kEps = 1e-5f;
// Of a bf16 result; of a norm in float, whose sums of squares round at most 30 times one after the
// other.
constexpr double kBf16Round = 0x1.01p-8, kNormRound = 0x1p-19;

std::vector<uint16_t> bf16_values(size_t count, uint32_t seed) {
  std::vector<uint16_t> bits;
  for (const float value : random_values(count, seed)) bits.push_back(to_bf16(value).bits);
  return bits;
}
double bf16_double(uint16_t bits) { return to_float(Bf16{bits}); }
__nv_bfloat16* bf16(const DeviceArray<uint16_t>& array) {
  return reinterpret_cast<__nv_bfloat16*>(array.get());
}

std::vector<double> normalized(const float* x, const float* weight, size_t n) {
  double squares = 0;
  for (size_t i = 0; i < n; ++i) squares += double{x[i]} * x[i];
  const double inverse = 1 / std::sqrt(squares / static_cast<double>(n) + kEps);
  std::vector<double> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = x[i] * inverse * (weight != nullptr ? weight[i] : 1.0f);
  return out;
}

constexpr uint32_t kWidths[] = {1, 3, 33, 576, 577, 2050, 4096, 8196, 16381, 16384};

class EmbedTypes : public testing::TestWithParam<TensorType> {};

// What a sum of a code's part and a minimum may lose, at most.
double embed_tolerance(const StoredMatrix& m, size_t row, size_t column, double w) {
  double gross = std::abs(w);
  if (const auto format = quant_format(m.type)) {
    const TensorTypeInfo& info = tensor_type_info(m.type);
    const std::byte* block =
        m.bytes.data() + row * m.row_bytes + column / info.block * info.block_bytes;
    const GroupScale s =
        group_scale(*format, read_scales(m.type, block), column % info.block / format->group);
    gross += 2 * std::fabs(s.min);
  }
  return gross * 0x1p-22;
}

TEST_P(EmbedTypes, RowsAreThoseOfTheTable) {
  REPRISE_NEEDS_DEVICE();
  ThreadPool pool(2);
  const size_t block = tensor_type_info(GetParam()).block;
  const std::vector<size_t> widths = block == 1    ? std::vector<size_t>{33, 576, 5002}
                                     : block == 32 ? std::vector<size_t>{32, 544, 4096}
                                                   : std::vector<size_t>{256, 768, 4096};
  const std::vector<int32_t> tokens = {0, 36, 17, -1, 17, 37, 5, 1 << 30};
  for (const size_t cols : widths) {
    const StoredMatrix stored(GetParam(), 37, cols, 5);
    const PackedMatrix matrix = packed(stored, pool);
    DeviceMatrix table;
    ASSERT_EQ(DeviceMatrix::upload(matrix, pool, &table), cudaSuccess);
    const DeviceArray<int32_t> device_tokens(tokens);
    const DeviceArray<float> x(tokens.size() * cols, 0xff);
    const float scale = 1.75f;
    ASSERT_EQ(embed(table, device_tokens.get(), static_cast<uint32_t>(tokens.size()), scale,
                    x.get(), nullptr),
              cudaSuccess);
    const std::vector<float> got = x.host();
    std::vector<float> row(cols);
    for (size_t r = 0; r < tokens.size(); ++r) {
      const bool inside = tokens[r] >= 0 && tokens[r] < 37;
      if (inside) unpack_row(matrix, static_cast<size_t>(tokens[r]), row.data());
      for (size_t i = 0; i < cols; ++i) {
        const double w = inside ? row[i] : 0.0f;
        const double tolerance =
            inside ? scale * embed_tolerance(stored, static_cast<size_t>(tokens[r]), i, w) : 0.0;
        ASSERT_NEAR(got[r * cols + i], scale * w, tolerance) << r << "," << i << " of " << cols;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, EmbedTypes, testing::ValuesIn(kAllTypes),
                         [](const testing::TestParamInfo<TensorType>& param) {
                           return std::string(tensor_type_info(param.param).name);
                         });

TEST(Elementwise, RmsNormIsTheNorm) {
  REPRISE_NEEDS_DEVICE();
  for (const uint32_t n : kWidths) {
    for (const bool has_weight : {true, false}) {
      const uint32_t rows = 5;
      const std::vector<float> x = random_values(size_t{rows} * n, n), w = random_values(n, n + 1);
      const DeviceArray<float> device_x(x), weight(w);
      const DeviceArray<uint16_t> out(size_t{rows} * n, 0xff), alone(n, 0xff);
      const float* device_weight = has_weight ? weight.get() : nullptr;
      ASSERT_EQ(rms_norm(device_x.get(), device_weight, kEps, rows, n, bf16(out), nullptr),
                cudaSuccess);
      const std::vector<uint16_t> got = out.host();
      for (size_t row = 0; row < rows; ++row) {
        const auto expected = normalized(&x[row * n], has_weight ? w.data() : nullptr, n);
        for (size_t i = 0; i < n; ++i) {
          ASSERT_NEAR(bf16_double(got[row * n + i]), expected[i],
                      std::abs(expected[i]) * (kBf16Round + kNormRound))
              << row << "," << i << " of " << n;
        }
      }
      if (n % 4 != 0) continue;  // else row 3 is not aligned
      const float* row = device_x.get() + size_t{3} * n;
      ASSERT_EQ(rms_norm(row, device_weight, kEps, 1, n, bf16(alone), nullptr), cudaSuccess);
      const auto first = got.begin() + 3 * static_cast<std::ptrdiff_t>(n);
      EXPECT_TRUE(std::equal(first, first + static_cast<std::ptrdiff_t>(n), alone.host().begin()))
          << "bits depend on the number of rows: " << n;
    }
  }
  EXPECT_EQ(rms_norm(nullptr, nullptr, kEps, 1, 16385, nullptr, nullptr), cudaErrorNotSupported);
}

TEST(Elementwise, NormOfLargeAndOfNoValues) {
  REPRISE_NEEDS_DEVICE();
  const uint32_t n = 576;
  std::vector<float> x(3 * n, 0.0f);
  for (uint32_t i = 0; i < n; ++i) x[n + i] = 0x1p55f * (i % 2 == 0 ? 1.0f : -1.0f);
  x[2 * n + 7] = NAN;
  const DeviceArray<float> device_x(x);
  const DeviceArray<uint16_t> out(3 * n);
  ASSERT_EQ(rms_norm(device_x.get(), nullptr, kEps, 3, n, bf16(out), nullptr), cudaSuccess);
  const std::vector<uint16_t> got = out.host();
  for (uint32_t i = 0; i < n; ++i) {
    EXPECT_EQ(bf16_double(got[i]), 0.0);
    EXPECT_EQ(bf16_double(got[n + i]), i % 2 == 0 ? 1.0 : -1.0);
    EXPECT_TRUE(std::isnan(bf16_double(got[2 * n + i])));
  }
}

TEST(Elementwise, AddRowsAddsThemOrTheirNorm) {
  REPRISE_NEEDS_DEVICE();
  for (const uint32_t n : kWidths) {
    for (const bool norm : {false, true}) {
      const uint32_t rows = 3;
      const float scale = 0.625f;
      const std::vector<float> x = random_values(size_t{rows} * n, n),
                               h = random_values(size_t{rows} * n, n + 1),
                               w = random_values(n, n + 2);
      const DeviceArray<float> sums(x), device_h(h), weight(w);
      ASSERT_EQ(add_rows(sums.get(), device_h.get(), norm ? weight.get() : nullptr, kEps, scale,
                         rows, n, nullptr),
                cudaSuccess);
      const std::vector<float> got = sums.host();
      for (size_t row = 0; row < rows; ++row) {
        const std::vector<double> norms = normalized(&h[row * n], w.data(), n);
        for (size_t i = 0; i < n; ++i) {
          const size_t at = row * n + i;
          const double added = scale * (norm ? norms[i] : double{h[at]});
          ASSERT_NEAR(got[at], x[at] + added,
                      0x1p-22 * std::abs(x[at]) + kNormRound * std::abs(added))
              << row << "," << i << " of " << n;
        }
      }
    }
  }
}

TEST(Elementwise, GatedActivationIsAlsoDoneInPlace) {
  REPRISE_NEEDS_DEVICE();
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
    for (const uint32_t n : {1u, 7u, 1536u, 1537u}) {
      const uint32_t rows = 3;
      const size_t count = size_t{rows} * n;
      const std::vector<uint16_t> gate = bf16_values(count, 1), up = bf16_values(count, 2);
      const DeviceArray<uint16_t> device_gate(gate), device_up(up), out(count, 0xff);
      ASSERT_EQ(gated_activation(bf16(device_gate), bf16(device_up), activation, rows, n, bf16(out),
                                 nullptr),
                cudaSuccess);
      const std::vector<uint16_t> got = out.host();
      for (size_t i = 0; i < count; ++i) {
        const double g = bf16_double(gate[i]), u = bf16_double(up[i]);
        const double active =
            activation == Activation::kSilu
                ? g / (1 + std::exp(-g))
                : 0.5 * g * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)));
        const double value = active * u;
        // Of the exponential, or where 1 + tanh cancels.
        ASSERT_NEAR(bf16_double(got[i]), value,
                    std::abs(value) * kBf16Round + std::abs(g * u) * 0x1p-20)
            << i << " of " << n;
      }
      ASSERT_EQ(gated_activation(bf16(device_gate), bf16(device_up), activation, rows, n,
                                 bf16(device_gate), nullptr),
                cudaSuccess);
      EXPECT_EQ(device_gate.host(), got);
    }
  }
}

TEST(Elementwise, RoundsToTheNearestBf16) {
  REPRISE_NEEDS_DEVICE();
  for (const size_t count : {size_t{1}, size_t{8}, size_t{70003}}) {
    const std::vector<float> x = random_values(count, 7);
    const DeviceArray<float> device_x(x);
    const DeviceArray<uint16_t> out(count, 0xff);
    ASSERT_EQ(round_to_bf16(device_x.get(), count, bf16(out), nullptr), cudaSuccess);
    EXPECT_EQ(out.host(), bf16_values(count, 7));
  }
}

TEST(Elementwise, GatherRowsCopies) {
  REPRISE_NEEDS_DEVICE();
  const std::vector<uint32_t> indices = {4, 0, 4, 2};
  const DeviceArray<uint32_t> device_indices(indices);
  for (const uint32_t n : {1u, 33u, 576u, 2050u, 8196u}) {
    const std::vector<float> x = random_values(size_t{5} * n, 3);
    const std::vector<uint16_t> narrow = bf16_values(size_t{5} * n, 4);
    const DeviceArray<float> device_x(x), out(4 * size_t{n}, 0xff), wide(4 * size_t{n}, 0xff);
    const DeviceArray<uint16_t> device_narrow(narrow);
    ASSERT_EQ(gather_rows(device_x.get(), device_indices.get(), 4, n, out.get(), nullptr),
              cudaSuccess);
    ASSERT_EQ(gather_rows(bf16(device_narrow), device_indices.get(), 4, n, wide.get(), nullptr),
              cudaSuccess);
    const std::vector<float> got = out.host(), got_wide = wide.host();
    for (size_t row = 0; row < 4; ++row) {
      for (size_t i = 0; i < n; ++i) {
        ASSERT_EQ(got[row * n + i], x[indices[row] * n + i]) << row << "," << i << " of " << n;
        ASSERT_EQ(got_wide[row * n + i], bf16_double(narrow[indices[row] * n + i]));
      }
    }
  }
}

TEST(Elementwise, ScaleAndCap) {
  REPRISE_NEEDS_DEVICE();
  for (const float cap : {0.0f, 30.0f}) {
    for (const size_t count : {size_t{1}, size_t{1023}, size_t{262144 + 2}}) {
      std::vector<float> x = random_values(count, 6);
      x[0] = 1e4f;
      const float scale = 12.5f;
      const DeviceArray<float> device_x(x);
      ASSERT_EQ(scale_and_cap(device_x.get(), count, scale, cap, nullptr), cudaSuccess);
      const std::vector<float> got = device_x.host();
      for (size_t i = 0; i < count; ++i) {
        const double scaled = double{scale} * x[i];
        const double value = cap == 0.0f ? scaled : cap * std::tanh(scaled / cap);
        ASSERT_NEAR(got[i], value, std::abs(value) * 0x1p-20) << i << " of " << count;
      }
    }
  }
}

// Kernels overlap in a captured graph, too, and must still see what those before them wrote.
TEST(Elementwise, CapturedChainsGiveTheSameBits) {
  REPRISE_NEEDS_DEVICE();
  const uint32_t rows = 7, n = 4096;
  const size_t count = size_t{rows} * n;
  const std::vector<float> x = random_values(count, 8);
  const DeviceArray<float> weight(random_values(n, 9)), wide(count);
  const DeviceArray<uint32_t> order(std::vector<uint32_t>{3, 1, 4, 0, 5, 2, 6});
  const DeviceArray<uint16_t> narrow(count);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  const auto chain = [&](float* sums, bool one_by_one) {
    const auto check = [&](cudaError_t status) {
      EXPECT_EQ(status, cudaSuccess);
      if (one_by_one) {
        EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
      }
    };
    for (int layer = 0; layer < 8; ++layer) {
      check(rms_norm(sums, weight.get(), kEps, rows, n, bf16(narrow), stream));
      check(gated_activation(bf16(narrow), bf16(narrow), Activation::kSilu, rows, n, bf16(narrow),
                             stream));
      check(gather_rows(bf16(narrow), order.get(), rows, n, wide.get(), stream));
      check(scale_and_cap(wide.get(), count, 1.5f, 2.0f, stream));
      check(add_rows(sums, wide.get(), weight.get(), kEps, 0.5f, rows, n, stream));
    }
  };
  const DeviceArray<float> direct(x), replayed(x);
  chain(direct.get(), true);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  chain(replayed.get(), false);
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(direct.host(), replayed.host());
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace reprise::kernels::cuda
