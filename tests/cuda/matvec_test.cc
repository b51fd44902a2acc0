#include "kernels/cuda/matvec.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cuda/device_testing.h"
#include "kernels/matmul_case.h"
#include "kernels/quant_blocks.h"

namespace reprise::kernels::cuda {
namespace {

constexpr float kUntouched = 12345.0f;

std::vector<double> unpacked_row(const PackedMatrix& matrix, size_t row) {
  std::vector<float> values(matrix.cols());
  unpack_row(matrix, row, values.data());
  return {values.begin(), values.end()};
}

DeviceMatrix uploaded(const PackedMatrix& matrix, ThreadPool& pool) {
  DeviceMatrix out;
  EXPECT_EQ(DeviceMatrix::upload(matrix, pool, &out), cudaSuccess);
  return out;
}

struct Options {
  bool bias = false, accumulate = false, norm = false;
  std::optional<Activation> activation = {};
};
constexpr float kEps = 1e-5f;

// x, what it becomes, and how far float arithmetic may be from that.
struct Input {
  Input(size_t cols_, size_t rows, size_t padding, const Options& options)
      : cols(cols_),
        stride(cols_ + padding),
        x(random_values(rows * stride, 11)),
        up(random_values(rows * stride, 12)),
        norm(random_values(cols, 13)) {
    for (size_t row = 0; row < rows; ++row) {
      double squares = 0;
      for (size_t i = 0; i < cols; ++i) squares += double{x[row * stride + i]} * at(row, i);
      const double inverse = 1 / std::sqrt(squares / static_cast<double>(cols) + kEps);
      for (size_t i = 0; i < cols; ++i) {
        const double v = at(row, i);
        double value = v, error = 0;
        if (options.norm) {
          value = v * inverse * norm[i];
          error = 0x1p-19 * std::abs(value);  // hundreds of squares in a lane's sum
        } else if (options.activation) {
          const double u = up[row * stride + i];
          value = activated(v, *options.activation) * u;
          error = 0x1p-20 * std::abs(v * u);  // of the exponential, or where 1 + tanh cancels
        }
        values.push_back(value);
        errors.push_back(error);
      }
    }
  }

  double at(size_t row, size_t i) const { return x[row * stride + i]; }
  static double activated(double v, Activation activation) {
    if (activation == Activation::kSilu) return v / (1 + std::exp(-v));
    return 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
  }

  size_t cols, stride;
  std::vector<float> x, up, norm;
  std::vector<double> values, errors;  // [rows, cols]
};

// What the kernel adds up before minima cancel it.
double gross_weight(const StoredMatrix& m, size_t row, size_t column, double w) {
  const auto format = quant_format(m.type);
  if (!format || !format->has_min) return std::abs(w);
  const TensorTypeInfo& info = tensor_type_info(m.type);
  const std::byte* block =
      m.bytes.data() + row * m.row_bytes + column / info.block * info.block_bytes;
  const GroupScale s =
      group_scale(*format, read_scales(m.type, block), column % info.block / format->group);
  return std::abs(w - s.min) + std::abs(s.min);
}

struct Bound {
  double value = 0, tolerance = 0;
};

// x loses 2^-16 of itself, or with quantised weights of the largest of its 32 columns, and with F16
// weights another 2^-16 of a product; a whole number, a scale and a product of one round once each,
// sums of running totals once per addition.
Bound expected(const StoredMatrix& m, const std::vector<double>& w, size_t row, const Input& in,
               size_t n) {
  const bool codes = quant_format(m.type).has_value();
  const double* x = in.values.data() + n * in.cols;
  Bound out;
  double gross = 0, input_error = 0, w_norm = 0, x_norm = 0, largest = 0;
  for (size_t i = 0; i < w.size(); ++i) {
    if (i % 32 == 0) {
      largest = 0;
      for (size_t k = i; k < std::min(i + 32, w.size()); ++k) {
        largest = std::max(largest, std::abs(x[k]));
      }
    }
    out.value += w[i] * x[i];
    gross += gross_weight(m, row, i, w[i]) * std::abs(x[i]);
    input_error += std::abs(w[i]) * in.errors[n * in.cols + i];
    input_error += std::abs(w[i]) * (codes ? largest * 0x1p-16 : std::abs(x[i]) * 0x1p-15);
    w_norm += w[i] * w[i];
    x_norm += x[i] * x[i];
  }
  const double additions = static_cast<double>(w.size()) / (codes ? 32 : 4) + 64;
  out.tolerance = input_error + gross * additions * 0x1p-23;
  // What every caller may count on.
  out.tolerance = std::min(out.tolerance, 0x1p-8 * std::sqrt(w_norm * x_norm));
  return out;
}

struct Weight {
  Weight(TensorType type, size_t rows, size_t cols, uint32_t seed, ThreadPool& pool)
      : stored(type, rows, cols, seed),
        matrix(packed(stored, pool)),
        device(uploaded(matrix, pool)) {}
  StoredMatrix stored;
  PackedMatrix matrix;
  DeviceMatrix device;
};

// [batch][stride] of each weight.
struct Outputs {
  size_t stride = 0;
  std::vector<std::vector<float>> values;
};

Outputs run(const std::vector<const Weight*>& weights, const Input& in, size_t first_row,
            size_t batch, const Options& options, const std::vector<float>& start,
            const std::vector<float>& bias, bool overlap = false) {
  Outputs out;
  for (const Weight* weight : weights) out.stride = std::max(out.stride, weight->matrix.rows() + 3);
  const DeviceArray<float> x(in.x), up(in.up), norm(in.norm), device_bias(bias);
  MatvecArgs args;
  args.input.x = x.get() + first_row * in.stride;
  args.input.stride = in.stride;
  if (options.norm) args.input.norm_weight = norm.get();
  args.input.norm_eps = kEps;
  if (options.activation) {
    args.input.up = up.get() + first_row * in.stride;
    args.input.activation = *options.activation;
  }
  args.count = static_cast<uint32_t>(weights.size());
  args.batch = static_cast<uint32_t>(batch);
  args.overlap = overlap;
  std::vector<std::unique_ptr<DeviceArray<float>>> arrays;
  for (size_t i = 0; i < weights.size(); ++i) {
    std::vector<float> initial(batch * out.stride, kUntouched);
    for (size_t k = 0; k < initial.size() && !start.empty(); ++k) {
      initial[k] = start[first_row * out.stride + k];
    }
    arrays.push_back(std::make_unique<DeviceArray<float>>(initial));
    args.projections[i] = {&weights[i]->device, arrays[i]->get(), out.stride,
                           options.bias ? device_bias.get() : nullptr, options.accumulate};
  }
  EXPECT_EQ(matvec(args, nullptr), cudaSuccess);
  for (const auto& array : arrays) out.values.push_back(array->host());
  return out;
}

void check(const std::vector<const Weight*>& weights, size_t batch, const Options& options,
           size_t padding = 4) {
  const size_t cols = weights[0]->matrix.cols();
  const Input in(cols, batch, padding, options);
  size_t rows = 0;
  for (const Weight* weight : weights) rows = std::max(rows, weight->matrix.rows());
  const std::vector<float> bias = random_values(rows, 21);
  const std::vector<float> start = random_values(batch * (rows + 3), 22);
  const Outputs out = run(weights, in, 0, batch, options, start, bias);
  for (size_t i = 0; i < weights.size(); ++i) {
    const Weight& weight = *weights[i];
    for (size_t row = 0; row < rows + 3; ++row) {
      if (row >= weight.matrix.rows()) {
        for (size_t n = 0; n < batch; ++n) {
          ASSERT_EQ(out.values[i][n * out.stride + row], start[n * out.stride + row]);
        }
        continue;
      }
      const std::vector<double> w = unpacked_row(weight.matrix, row);
      for (size_t n = 0; n < batch; ++n) {
        const Bound bound = expected(weight.stored, w, row, in, n);
        const float got = out.values[i][n * out.stride + row];
        const double offset = (options.bias ? bias[row] : 0.0) +
                              (options.accumulate ? start[n * out.stride + row] : 0.0);
        const double tolerance =
            bound.tolerance + 0x1p-22 * (std::abs(bound.value) + std::abs(offset) + 8);
        ASSERT_NEAR(got, bound.value + offset, tolerance)
            << tensor_type_info(weight.stored.type).name << " [" << weight.matrix.rows() << ", "
            << cols << "] batch " << batch << " norm " << options.norm << " activation "
            << options.activation.has_value() << ": row " << row << " of " << n;
      }
    }
  }
}

// Widths that fill no chunk, one, and several for each warp of a block.
std::vector<size_t> widths(TensorType type) {
  const size_t block = tensor_type_info(type).block;
  if (block == 1) return {33, 576, 2051};
  if (block == 32) return {32, 544, 1536};
  return {256, 768, 2048};
}

// Of the image, as device_image.h describes it.
float image_value(const DeviceImage& image, size_t row, size_t column) {
  const DeviceFormat format = device_format(image.type);
  const size_t width = format.chunk_columns(), chunk = column / width;
  const auto bytes = [](const std::vector<std::byte>& plane, size_t at, void* to, size_t size) {
    ASSERT_LE(at + size, plane.size());
    std::memcpy(to, plane.data() + at, size);
  };
  if (!format.quantized()) {
    const size_t size = 64 / width;
    float value = 0;
    F16 half;
    const size_t at = (row * image.chunks * width + column) * size;
    if (format.codes == Codes::kF32) {
      bytes(image.codes, at, &value, 4);
      return value;
    }
    bytes(image.codes, at, &half, 2);
    return format.codes == Codes::kF16 ? to_float(half) : to_float(Bf16{half.bits});
  }
  const size_t tile = row / 16, r = row % 16, unit = tile * image.chunks + chunk;
  const size_t block = column % width / 32, c = column % 16, step = column / 16 % 2;
  const size_t t = c / 4, slot = step * 4 + c % 4;
  const size_t piece = unit * 1024 + (r / 8) * 512 + (r % 8) * 64 + t * 16;
  int code = 0;
  if (format.codes == Codes::kInt8) {
    bytes(image.codes, piece + block * 8 + slot, &code, 1);
    if (!format.has_min) code -= 128;
  } else {
    uint32_t word = 0;
    bytes(image.codes, piece + block * 4, &word, 4);
    const size_t nibble = format.codes == Codes::kTable4 ? slot : slot % 4 * 2 + slot / 4;
    code = static_cast<int>(word >> 4 * nibble & 15);
    if (format.codes == Codes::kTable4) {
      code = kIq4Values[code] - 128;
    } else if (!format.has_min) {
      code -= 8;
    }
  }
  const size_t group = column % width / format.group;
  const size_t at = (unit * 16 + r) * format.chunk_scale_bytes() + group * format.scale_bytes();
  float scale = 0, min = 0;
  if (format.super) {
    uint8_t s = 0, m = 0;
    F16 d, dmin;
    const size_t factors = ((tile * (image.cols / 256) + column / 256) * 16 + r) * 4;
    bytes(image.scales, at, &s, 1);
    if (format.has_min) bytes(image.scales, at + 1, &m, 1);
    bytes(image.factors, factors, &d, 2);
    bytes(image.factors, factors + 2, &dmin, 2);
    scale = to_float(d) * static_cast<float>(format.has_min ? s : s - 128);
    min = -(to_float(dmin) * static_cast<float>(m));
  } else {
    F16 s, m;
    bytes(image.scales, at, &s, 2);
    if (format.has_min) bytes(image.scales, at + 2, &m, 2);
    scale = to_float(s);
    min = to_float(m);
  }
  return format.has_min ? scale * static_cast<float>(code) + min : scale * static_cast<float>(code);
}

class DeviceTypes : public testing::TestWithParam<TensorType> {
 protected:
  ThreadPool pool_{2};
};

// Runs without a device.
TEST_P(DeviceTypes, ImageHoldsEveryWeightWithinAnUlp) {
  for (const size_t cols : widths(GetParam())) {
    const StoredMatrix stored(GetParam(), 37, cols, 1);
    const PackedMatrix matrix = packed(stored, pool_);
    const DeviceImage image = device_image(matrix, pool_);
    std::vector<float> row(cols);
    for (size_t r = 0; r < stored.rows; ++r) {
      unpack_row(matrix, r, row.data());
      for (size_t i = 0; i < cols; ++i) {
        const float got = image_value(image, r, i);
        const float ulp = std::nextafter(std::abs(row[i]), INFINITY) - std::abs(row[i]);
        ASSERT_NEAR(got, row[i], ulp) << "row " << r << ", column " << i << " of " << cols;
      }
    }
  }
}

// Runs without a device.
TEST_P(DeviceTypes, ImageOfAPartHoldsThePart) {
  const size_t unit = std::max<size_t>(32, tensor_type_info(GetParam()).block);
  const size_t cols = 5 * unit;
  const PackedMatrix matrix = packed(StoredMatrix(GetParam(), 75, cols, 3), pool_);
  const DeviceImage whole = device_image(matrix, pool_);
  const MatrixPart parts[] = {{0, 75, 0, cols},
                              {16, 32, 0, cols},
                              {64, 11, 0, cols},
                              {0, 75, unit, 3 * unit},
                              {32, 16, 4 * unit, unit}};
  for (const MatrixPart& part : parts) {
    const DeviceImage image = device_image(matrix, part, pool_);
    ASSERT_EQ(image.rows, part.rows);
    ASSERT_EQ(image.cols, part.cols);
    for (size_t r = 0; r < part.rows; ++r) {
      for (size_t i = 0; i < part.cols; ++i) {
        ASSERT_EQ(image_value(image, r, i),
                  image_value(whole, part.first_row + r, part.first_col + i))
            << "row " << r << ", column " << i << " from " << part.first_row << ", "
            << part.first_col;
      }
    }
  }
}

// Runs without a device. What was there before does not show.
TEST_P(DeviceTypes, TilesAreWrittenWhole) {
  for (const size_t cols : widths(GetParam())) {
    const PackedMatrix matrix = packed(StoredMatrix(GetParam(), 37, cols, 4), pool_);
    const DeviceImage want = device_image(matrix, pool_);
    DeviceImage got = want;
    for (auto* plane : {&got.codes, &got.scales, &got.factors}) {
      std::fill(plane->begin(), plane->end(), std::byte{0xaa});
    }
    fill_tiles(matrix, whole(matrix), want, 0, want.tiles,
               {got.codes.data(), got.scales.data(), got.factors.data()}, pool_);
    EXPECT_TRUE(got.codes == want.codes && got.scales == want.scales && got.factors == want.factors)
        << cols << " columns";
  }
}

// Of several halves of an UploadRoom, and a part of one.
TEST_P(DeviceTypes, LargeMatricesArriveWhole) {
  REPRISE_NEEDS_DEVICE();
  const PackedMatrix matrix = packed(StoredMatrix(GetParam(), 20'011, 3072, 5), pool_);
  const DeviceImage image = device_image(matrix, pool_);
  DeviceMatrix device;
  ASSERT_EQ(DeviceMatrix::upload(matrix, pool_, &device), cudaSuccess);
  const DeviceWeights& to = device.weights();
  const auto check = [](const std::vector<std::byte>& want, const unsigned char* at) {
    std::vector<std::byte> got(want.size());
    ASSERT_EQ(cudaMemcpy(got.data(), at, got.size(), cudaMemcpyDeviceToHost), cudaSuccess);
    EXPECT_TRUE(got == want);
  };
  check(image.codes, to.codes);
  check(image.scales, to.scales);
  check(image.factors, to.factors);
}

TEST_P(DeviceTypes, DequantizesToTheNearestBf16) {
  REPRISE_NEEDS_DEVICE();
  for (const size_t cols : widths(GetParam())) {
    const Weight weight(GetParam(), 37, cols, 2, pool_);
    const size_t first = 5, rows = 30;
    const DeviceArray<uint16_t> out(rows * cols);
    ASSERT_EQ(dequantize(weight.device, first, rows, reinterpret_cast<__nv_bfloat16*>(out.get()),
                         nullptr),
              cudaSuccess);
    const std::vector<uint16_t> got = out.host();
    for (size_t r = 0; r < rows; ++r) {
      const std::vector<double> w = unpacked_row(weight.matrix, first + r);
      for (size_t i = 0; i < cols; ++i) {
        const double value = to_float(Bf16{got[r * cols + i]});
        ASSERT_NEAR(value, w[i], std::abs(w[i]) * 0x1.01p-8) << r << "," << i << " of " << cols;
      }
    }
    EXPECT_EQ(dequantize(weight.device, 8, 30, nullptr, nullptr), cudaErrorInvalidValue);
  }
}

TEST_P(DeviceTypes, MatvecIsTheProduct) {
  REPRISE_NEEDS_DEVICE();
  const std::vector<Options> options = {{},
                                        {.bias = true, .accumulate = true},
                                        {.bias = true, .norm = true},
                                        {.activation = Activation::kSilu},
                                        {.accumulate = true, .activation = Activation::kGeluTanh}};
  for (const size_t rows : {1, 37, 200}) {
    for (const size_t cols : widths(GetParam())) {
      const Weight weight(GetParam(), rows, cols, 3, pool_);
      for (const size_t batch : {1, 2, 3, 8}) {
        for (const Options& option : options) {
          check({&weight}, batch, option);
          if (HasFatalFailure()) return;
        }
        check({&weight}, batch, options[2], 3);  // rows of x that are not aligned
        if (HasFatalFailure()) return;
      }
    }
  }
}

// More tiles than warps of the device, so that blocks work in rounds.
TEST_P(DeviceTypes, MatvecOfManyRowsIsTheProduct) {
  REPRISE_NEEDS_DEVICE();
  const Weight weight(GetParam(), 40007, widths(GetParam())[0], 4, pool_);
  check({&weight}, 2, {.bias = true});
}

// Clusters share the columns.
TEST_P(DeviceTypes, MatvecOfLongRowsIsTheProduct) {
  REPRISE_NEEDS_DEVICE();
  for (const size_t cols : {8192, 14336, 28672}) {
    const Weight weight(GetParam(), 50, cols, 5, pool_);
    check({&weight}, 3, {.norm = true});
    check({&weight}, 8, {.accumulate = true, .activation = Activation::kSilu});
    if (HasFatalFailure()) return;
  }
}

TEST_P(DeviceTypes, GivesARowTheSameBitsInEveryBatch) {
  REPRISE_NEEDS_DEVICE();
  const DeviceFormat format = device_format(GetParam());
  const bool four_bits = format.codes == Codes::kInt4 || format.codes == Codes::kTable4;
  const size_t fewest = four_bits && format.group == 32 && !format.has_min ? 2 : 1;
  for (const size_t cols : {size_t{768}, size_t{14336}}) {
    const Weight weight(GetParam(), 200, cols, 6, pool_);
    for (const Options& options : {Options{.norm = true}, {.activation = Activation::kSilu}}) {
      const Input in(cols, 8, 0, options);
      const Outputs all = run({&weight}, in, 0, 8, options, {}, {0.0f});
      for (const size_t batch : {fewest, size_t{3}}) {
        const Outputs some = run({&weight}, in, 4, batch, options, {}, {0.0f});
        const auto from = all.values[0].begin() + static_cast<ptrdiff_t>(4 * all.stride);
        const std::vector<float> same(from, from + static_cast<ptrdiff_t>(batch * all.stride));
        EXPECT_EQ(some.values[0], same) << batch << " rows";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllTypes, DeviceTypes, testing::ValuesIn(kAllTypes), [](const auto& test) {
  return std::string(tensor_type_info(test.param).name);
});

class Matvec : public testing::Test {
 protected:
  void SetUp() override { REPRISE_NEEDS_DEVICE(); }
  ThreadPool pool_{2};
};

TEST_F(Matvec, MultipliesMatricesOfSeveralTypesAtOnce) {
  const Weight q(TensorType::kQ4_K, 576, 768, 1, pool_), k(TensorType::kQ6_K, 19, 768, 2, pool_),
      v(TensorType::kF32, 33, 768, 3, pool_), wide(TensorType::kBF16, 3000, 768, 4, pool_);
  for (const size_t batch : {1, 8}) {
    check({&q, &k, &v}, batch, {.norm = true});
    check({&k, &wide}, batch, {.bias = true, .accumulate = true});
  }
}

// Each launch reads what the one before it writes.
TEST_F(Matvec, WaitsForTheKernelBeforeWhenTheyOverlap) {
  const size_t cols = 1536, batch = 2;
  const Weight weight(TensorType::kQ4_1, cols, cols, 1, pool_);
  const std::vector<float> first = random_values(batch * cols, 2), ones(cols, 1.0f),
                           zeros(batch * cols);
  std::vector<float> results[3];
  for (const int how : {0, 1, 2}) {
    const DeviceArray<float> a(first), b(zeros), norm(ones);
    for (int i = 0; i < 100; ++i) {
      const bool odd = i % 2 != 0;
      MatvecArgs args;
      args.input.x = odd ? b.get() : a.get();
      args.input.stride = cols;
      args.input.norm_weight = norm.get();
      args.input.norm_eps = kEps;
      args.projections[0] = {&weight.device, odd ? a.get() : b.get(), cols};
      args.batch = batch;
      args.overlap = how > 0;
      args.apart = how > 1;
      ASSERT_EQ(matvec(args, nullptr), cudaSuccess);
    }
    results[how] = a.host();
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST_F(Matvec, RefusesWhatItCannotDo) {
  const Weight a(TensorType::kQ4_1, 16, 64, 1, pool_), b(TensorType::kQ4_1, 16, 96, 1, pool_);
  MatvecArgs args;
  args.projections[0].weight = &a.device;
  args.projections[1].weight = &b.device;
  args.batch = 9;
  EXPECT_EQ(matvec(args, nullptr), cudaErrorInvalidValue);
  args.batch = 0;
  EXPECT_EQ(matvec(args, nullptr), cudaErrorInvalidValue);
  args.batch = 1;
  args.count = 2;
  EXPECT_EQ(matvec(args, nullptr), cudaErrorInvalidValue);
  args.count = 4;
  EXPECT_EQ(matvec(args, nullptr), cudaErrorInvalidValue);
  args.count = 1;
  const float one = 1.0f;
  args.input.norm_weight = args.input.up = &one;
  EXPECT_EQ(matvec(args, nullptr), cudaErrorInvalidValue);
  args.input = {};
  EXPECT_TRUE(fits_matvec(args));
  const Weight wide(TensorType::kBF16, 16, 36864, 1, pool_);
  args.projections[0].weight = &wide.device;
  EXPECT_FALSE(fits_matvec(args));
  EXPECT_EQ(matvec(args, nullptr), cudaErrorNotSupported);
}

}  // namespace
}  // namespace reprise::kernels::cuda
