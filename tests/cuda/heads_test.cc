#include "kernels/cuda/heads.h"

#include <cuda_fp8.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/float16.h"
#include "cuda/device_testing.h"
#include "kernels/matmul_case.h"

namespace reprise::kernels::cuda {
namespace {

constexpr float kEps = 1e-6f, kQueryScale = 0.7f;
constexpr unsigned char kUntouched = 0xa5;
// Of a norm or a rotation in float.
constexpr double kRound = 0x1p-20;

struct Shape {
  uint32_t n_head, n_kv_head, head_dim, pairs;
};
constexpr Shape kShapes[] = {{9, 3, 64, 32},   {32, 8, 128, 64}, {6, 2, 96, 48},
                             {8, 4, 256, 128}, {8, 2, 128, 16},  {4, 2, 96, 15},
                             {2, 1, 64, 0},    {16, 1, 256, 37}, {5, 5, 192, 96}};

struct Options {
  KvType type = KvType::kBF16;
  bool norm = false, keys_apart = false;  // keys_apart: k turns by angles of its own
};

// Rows of three sequences around the ends of pages; some are not stored.
constexpr int32_t kPositions[] = {0, 15, 16, 31, 32, 47, 0, 5, -1, 33, 48, 1 << 30, 14, 17};
constexpr uint32_t kSequences[] = {0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2};
constexpr uint32_t kRows = std::size(kPositions), kExactRows = 5, kCapacity = 3, kPages = 12;
const std::vector<uint32_t> kPageTables = {7, 2, 11, 4, 5, 6, 0, 9, 1};  // [3, kCapacity]

class Case {
 public:
  Case(const Shape& shape, const Options& options)
      : shape_(shape),
        options_(options),
        tile_bytes_(tile_bytes(options.type, shape.head_dim)),
        q_(random_values(size_t{kRows} * shape.n_head * shape.head_dim, 1)),
        k_(random_values(size_t{kRows} * shape.n_kv_head * shape.head_dim, 2)),
        v_(random_values(size_t{kRows} * shape.n_kv_head * shape.head_dim, 3)),
        q_norm_(random_values(shape.head_dim, 4)),
        k_norm_(random_values(shape.head_dim, 5)),
        cos_sin_(random_values(size_t{kRows} * shape.pairs * 2, 6)),
        cos_sin_capped_(random_values(size_t{kRows} * shape.pairs * 2, 7)),
        cos_sin_keys_(random_values(size_t{kRows} * shape.pairs * 2, 8)) {
    std::fill_n(v_.begin(), shape.head_dim, 0.0f);
    image_.assign(size_t{kPages} * shape.n_kv_head * 2 * tile_bytes_, kUntouched);
    run();
  }

  void check() {
    for (uint32_t row = 0; row < kRows; ++row) {
      for (uint32_t head = 0; head < shape_.n_head; ++head) {
        check_query(row, head);
        if (testing::Test::HasFatalFailure()) return;
      }
      const int32_t position = kPositions[row];
      if (position < 0 || position >= static_cast<int32_t>(kCapacity * kPageTokens)) continue;
      for (uint32_t head = 0; head < shape_.n_kv_head; ++head) {
        const size_t at = (size_t{row} * shape_.n_kv_head + head) * shape_.head_dim;
        const Values plain = normalized(&k_[at], k_norm_);
        check_stored(row, 2 * head,
                     rotated(plain, row, options_.keys_apart ? cos_sin_keys_ : cos_sin_));
        check_stored(row, 2 * head + 1, exact(&v_[at]));
        if (testing::Test::HasFatalFailure()) return;
      }
    }
    for (const unsigned char byte : image_) ASSERT_EQ(byte, kUntouched);  // checked ones became so
  }

 private:
  struct Values {
    std::vector<double> values, errors;
  };

  void run() {
    const DeviceArray<float> q(q_), k(k_), v(v_), q_norm(q_norm_), k_norm(k_norm_),
        cos_sin(cos_sin_), cos_sin_capped(cos_sin_capped_);
    const DeviceArray<int32_t> positions(std::vector<int32_t>(kPositions, kPositions + kRows));
    const DeviceArray<uint32_t> tables(kPageTables),
        sequences(std::vector<uint32_t>(kSequences, kSequences + kRows));
    const DeviceArray<unsigned char> pages(image_);
    const DeviceArray<uint16_t> q_rotated(q_.size(), 0xff), q_capped(q_.size(), 0xff);
    const DeviceArray<float> q_exact(q_.size(), 0xff), q_capped_exact(q_.size(), 0xff);
    const DeviceArray<float> q_plain(q_.size(), 0xff);
    HeadsArgs args;
    args.q = q.get();
    args.k = k.get();
    args.v = v.get();
    args.rows = kRows;
    args.n_head = shape_.n_head;
    args.pairs = shape_.pairs;
    if (options_.norm) args.q_norm = q_norm.get();
    if (options_.norm) args.k_norm = k_norm.get();
    args.norm_eps = kEps;
    args.cos_sin = cos_sin.get();
    args.positions = positions.get();
    args.kv = {pages.get(), options_.type, shape_.n_kv_head, shape_.head_dim};
    args.pages = tables.get();
    args.sequences = sequences.get();
    args.capacity = kCapacity;
    const DeviceArray<float> cos_sin_keys(cos_sin_keys_);
    if (options_.keys_apart) args.cos_sin_keys = cos_sin_keys.get();
    args.q_scale = kQueryScale;
    args.exact_rows = kExactRows;
    args.q_rotated = {reinterpret_cast<__nv_bfloat16*>(q_rotated.get()), q_exact.get()};
    args.cos_sin_capped = cos_sin_capped.get();
    args.q_capped = {reinterpret_cast<__nv_bfloat16*>(q_capped.get()), q_capped_exact.get()};
    args.q_plain = q_plain.get();
    ASSERT_EQ(rotate_and_store(args, nullptr), cudaSuccess);
    image_ = pages.host();
    q_rotated_ = q_rotated.host();
    q_capped_ = q_capped.host();
    q_exact_ = q_exact.host();
    q_capped_exact_ = q_capped_exact.host();
    q_plain_ = q_plain.host();
    args.q_plain = nullptr;
    args.q_rotated = args.q_capped = {};
    ASSERT_EQ(rotate_and_store(args, nullptr), cudaSuccess);
    ASSERT_EQ(pages.host(), image_);
  }

  Values exact(const float* x) const {
    return {{x, x + shape_.head_dim}, std::vector<double>(shape_.head_dim, 0.0)};
  }
  Values normalized(const float* x, const std::vector<float>& weight) const {
    Values out = exact(x);
    if (!options_.norm) return out;
    double squares = 0;
    for (const double value : out.values) squares += value * value;
    const double inverse = 1 / std::sqrt(squares / shape_.head_dim + kEps);
    for (size_t i = 0; i < out.values.size(); ++i) {
      out.values[i] *= inverse * weight[i];
      out.errors[i] = kRound * std::abs(out.values[i]);
    }
    return out;
  }
  Values rotated(Values x, uint32_t row, const std::vector<float>& cos_sin) const {
    for (size_t i = 0; i < shape_.pairs; ++i) {
      const float* turn = &cos_sin[(size_t{row} * shape_.pairs + i) * 2];
      const double cosine = turn[0], sine = turn[1];
      double &a = x.values[2 * i], &b = x.values[2 * i + 1];
      const double error =
          2 * kRound * (std::abs(a) + std::abs(b)) * std::max(std::abs(cosine), std::abs(sine));
      x.errors[2 * i] = x.errors[2 * i + 1] = error;
      const double first = a * cosine - b * sine;
      b = a * sine + b * cosine;
      a = first;
    }
    return x;
  }

  void check_query(uint32_t row, uint32_t head) const {
    const size_t at = (size_t{row} * shape_.n_head + head) * shape_.head_dim;
    const Values plain = normalized(&q_[at], q_norm_);
    const Values turned = rotated(plain, row, cos_sin_),
                 capped = rotated(plain, row, cos_sin_capped_);
    for (size_t i = 0; i < shape_.head_dim; ++i) {
      SCOPED_TRACE("row " + std::to_string(row) + ", head " + std::to_string(head) +
                   ", dimension " + std::to_string(i));
      ASSERT_NEAR(q_plain_[at + i], plain.values[i], plain.errors[i]);
      ASSERT_NEAR(to_float(Bf16{q_rotated_[at + i]}), kQueryScale * turned.values[i],
                  turned.errors[i] + 0x1.01p-8 * std::abs(turned.values[i]));
      ASSERT_NEAR(to_float(Bf16{q_capped_[at + i]}), kQueryScale * capped.values[i],
                  capped.errors[i] + 0x1.01p-8 * std::abs(capped.values[i]));
      if (row >= kExactRows) {  // as it was
        ASSERT_TRUE(std::isnan(q_exact_[at + i]) && std::isnan(q_capped_exact_[at + i]));
        continue;
      }
      ASSERT_NEAR(q_exact_[at + i], kQueryScale * turned.values[i],
                  turned.errors[i] + kRound * std::abs(turned.values[i]));
      ASSERT_NEAR(q_capped_exact_[at + i], kQueryScale * capped.values[i],
                  capped.errors[i] + kRound * std::abs(capped.values[i]));
    }
  }

  // Reads an element of a tile and marks its bytes untouched.
  template <typename T>
  T take(size_t offset) {
    T value;
    std::memcpy(&value, &image_[offset], sizeof(T));
    std::fill_n(image_.begin() + static_cast<std::ptrdiff_t>(offset), sizeof(T), kUntouched);
    return value;
  }

  void check_stored(uint32_t row, uint32_t tile, const Values& expected) {
    const auto position = static_cast<uint32_t>(kPositions[row]), token = position % kPageTokens;
    const size_t page = kPageTables[kSequences[row] * kCapacity + position / kPageTokens];
    const size_t start = (page * shape_.n_kv_head * 2 + tile) * tile_bytes_;
    double largest = 0, scale = 1;
    for (const double value : expected.values) largest = std::max(largest, std::abs(value));
    if (options_.type == KvType::kFP8) {
      scale = take<float>(start + fp8_scale_offset(shape_.head_dim, token));
      ASSERT_NEAR(scale, largest / kLargestE4M3, scale * 4 * kRound);
    }
    for (uint32_t i = 0; i < shape_.head_dim; ++i) {
      const size_t at = start + element_offset(options_.type, shape_.head_dim, token, i);
      const double value = expected.values[i], magnitude = std::abs(value);
      double got = 0, error = expected.errors[i];
      if (options_.type == KvType::kBF16) {
        got = to_float(Bf16{take<uint16_t>(at)});
        error += 0x1.01p-8 * magnitude;
      } else if (options_.type == KvType::kF16) {
        got = to_float(F16{take<uint16_t>(at)});
        error += 0x1.01p-11 * magnitude + 0x1p-25;
      } else {
        __nv_fp8_e4m3 code;
        code.__x = take<__nv_fp8_storage_t>(at);
        got = scale * static_cast<float>(code);
        error += 0x1.01p-4 * magnitude + 0x1p-10 * scale;  // subnormals are multiples of 2^-9
      }
      ASSERT_NEAR(got, value, error) << "row " << row << ", tile " << tile << ", dimension " << i;
    }
  }

  Shape shape_;
  Options options_;
  size_t tile_bytes_;
  std::vector<float> q_, k_, v_, q_norm_, k_norm_, cos_sin_, cos_sin_capped_, cos_sin_keys_,
      q_plain_;
  std::vector<unsigned char> image_;
  std::vector<uint16_t> q_rotated_, q_capped_;
  std::vector<float> q_exact_, q_capped_exact_;
};

TEST(Heads, QueriesAreRotatedAndKeysAndValuesStored) {
  REPRISE_NEEDS_DEVICE();
  for (const Shape& shape : kShapes) {
    for (const KvType type : {KvType::kBF16, KvType::kF16, KvType::kFP8}) {
      for (const bool norm : {false, true}) {
        for (const bool keys_apart : {false, true}) {
          SCOPED_TRACE("head_dim " + std::to_string(shape.head_dim) + ", pairs " +
                       std::to_string(shape.pairs) + ", type " +
                       std::to_string(static_cast<int>(type)) + ", norm " + std::to_string(norm) +
                       ", keys apart " + std::to_string(keys_apart));
          Case(shape, {type, norm, keys_apart}).check();
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(Heads, ShapesThatDoNotFitAreRefused) {
  HeadsArgs args;
  args.rows = 1;
  args.n_head = 1;
  args.kv = {nullptr, KvType::kBF16, 1, 512};
  EXPECT_EQ(rotate_and_store(args, nullptr), cudaErrorNotSupported);
  args.kv.head_dim = 100;
  EXPECT_EQ(rotate_and_store(args, nullptr), cudaErrorNotSupported);
  args.kv.head_dim = 64;
  args.pairs = 33;
  EXPECT_EQ(rotate_and_store(args, nullptr), cudaErrorInvalidValue);
}

TEST(Heads, AnglesAreThoseOfDoublePrecision) {
  REPRISE_NEEDS_DEVICE();
  const std::vector<int32_t> positions = {0, 1, 77, 4095, 131071, 1000000};
  const auto rows = static_cast<uint32_t>(positions.size());
  for (const uint32_t pairs : {1u, 15u, 64u}) {
    std::vector<double> frequencies(pairs);
    for (uint32_t i = 0; i < pairs; ++i) frequencies[i] = std::pow(500000.0, -1.0 * i / pairs);
    const DeviceArray<double> inv_freq(frequencies);
    const DeviceArray<int32_t> device_positions(positions);
    const DeviceArray<float> cos_sin(size_t{rows} * pairs * 2, 0xff);
    const float factor = 1.2079441f;
    constexpr int32_t kCap = 200000;
    ASSERT_EQ(rotary_rows(inv_freq.get(), pairs, factor, device_positions.get(), rows, kCap,
                          cos_sin.get(), nullptr),
              cudaSuccess);
    const std::vector<float> got = cos_sin.host();
    for (uint32_t row = 0; row < rows; ++row) {
      for (uint32_t i = 0; i < pairs; ++i) {
        const double angle = std::min(positions[row], kCap) * frequencies[i];
        const double cosine = factor * std::cos(angle), sine = factor * std::sin(angle);
        const size_t at = (size_t{row} * pairs + i) * 2;
        // A float's rounding; two double functions differ by units of the last place.
        ASSERT_NEAR(got[at], cosine, 0x1p-24 * std::abs(cosine) + 0x1p-50) << row << "," << i;
        ASSERT_NEAR(got[at + 1], sine, 0x1p-24 * std::abs(sine) + 0x1p-50) << row << "," << i;
      }
    }
  }
}

}  // namespace
}  // namespace reprise::kernels::cuda
