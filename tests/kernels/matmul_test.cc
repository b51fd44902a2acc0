#include "kernels/matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/matmul_isa.h"
#include "kernels/ops.h"
#include "matmul_case.h"

namespace reprise::kernels {
namespace {

constexpr size_t kOutputs = 37;  // two panels and a part of one
constexpr float kUntouched = 12345.0f;

using Case = std::tuple<TensorType, Isa>;

class Matmul : public testing::TestWithParam<Case> {
 protected:
  Matmul()
      : type_(std::get<0>(GetParam())),
        cols_(odd_columns(type_)),
        isa_(std::get<1>(GetParam())),
        stored_(type_, kOutputs, cols_, 7),
        weight_(packed(stored_, pool_)) {}

  // [rows, stride] of x W^T; what lies beyond the outputs stays kUntouched.
  std::vector<float> product(const float* x, size_t rows, Phase phase, ThreadPool& pool) {
    std::vector<float> out(rows * kStride, kUntouched);
    const Projection projection{&weight_, out.data(), kStride};
    matmul({&projection, 1}, {x, rows, cols_ + 3}, phase, pool, scratch_);
    return out;
  }
  std::vector<float> input(size_t rows) const { return random_values(rows * (cols_ + 3), 11); }
  const float* row(const std::vector<float>& x, size_t index) const {
    return x.data() + index * (cols_ + 3);
  }

  // Of [rows, cols_ + 3].
  void expect_product(const std::vector<float>& x, size_t rows, Phase phase) {
    const std::vector<float> out = product(x.data(), rows, phase, pool_);
    for (size_t r = 0; r < rows; ++r) {
      for (size_t n = 0; n < kOutputs; ++n) {
        const Expected e = expected_product(stored_, n, row(x, r), phase);
        ASSERT_NEAR(out[r * kStride + n], e.value, e.tolerance)
            << rows << " rows: " << r << "," << n;
      }
      ASSERT_EQ(out[r * kStride + kOutputs], kUntouched);
      ASSERT_EQ(out[r * kStride + kOutputs + 1], kUntouched);
    }
  }

  static constexpr size_t kStride = kOutputs + 2;
  ThreadPool pool_{2};
  TensorType type_;
  size_t cols_;
  IsaScope isa_;
  StoredMatrix stored_;
  PackedMatrix weight_;
  MatmulScratch scratch_;
};

TEST_P(Matmul, IsTheProductWithinTheRoundingOfItsPhase) {
  for (const Phase phase : {Phase::kDecode, Phase::kPrefill}) {
    for (const size_t rows : {1, 3, 8, 17, 33}) expect_product(input(rows), rows, phase);
  }
}

// Where one activation of 32 is far larger than the others, as in the hidden states of models.
TEST_P(Matmul, RoundsWhatIsBesideOneLargeActivationByItsOwnSteps) {
  constexpr size_t kRows = 18;
  std::vector<float> x = input(kRows);
  for (size_t i = 0; i < x.size(); i += 1 + i % 61) x[i] *= i % 3 == 0 ? 3e4f : -50.0f;
  std::fill_n(x.begin() + 64, 96, 0.0f);
  x[70] = 2.0f;                   // alone
  x[100] = 1.0f, x[101] = -1.0f;  // two of one magnitude
  for (const Phase phase : {Phase::kDecode, Phase::kPrefill}) expect_product(x, kRows, phase);
}

TEST_P(Matmul, GivesARowTheSameBitsInEveryBatchAndOnAnyNumberOfThreads) {
  ThreadPool one(1), three(3);
  for (const Phase phase : {Phase::kDecode, Phase::kPrefill}) {
    const std::vector<float> x = input(33);
    const std::vector<float> all = product(x.data(), 33, phase, one);
    EXPECT_EQ(product(x.data(), 33, phase, pool_), all);
    EXPECT_EQ(product(x.data(), 33, phase, three), all);
    for (const size_t rows : {1, 2, 7, 15, 16, 18}) {
      const std::vector<float> some = product(row(x, 5), rows, phase, pool_);
      const std::vector<float> same(all.begin() + 5 * kStride,
                                    all.begin() + static_cast<ptrdiff_t>((5 + rows) * kStride));
      EXPECT_EQ(some, same) << rows << " rows";
    }
  }
}

TEST_P(Matmul, AddsBiasAndResidual) {
  const size_t rows = 19;
  const std::vector<float> x = input(rows), bias = random_values(kOutputs, 3);
  for (const Phase phase : {Phase::kDecode, Phase::kPrefill}) {
    const std::vector<float> plain = product(x.data(), rows, phase, pool_);
    const std::vector<float> residual = random_values(rows * kStride, 4);
    for (const bool accumulate : {false, true}) {
      std::vector<float> out = residual;
      const Projection projection{&weight_, out.data(), kStride, bias.data(), accumulate};
      matmul({&projection, 1}, {x.data(), rows, cols_ + 3}, phase, pool_, scratch_);
      for (size_t r = 0; r < rows; ++r) {
        for (size_t n = 0; n < kOutputs; ++n) {
          const size_t at = r * kStride + n;
          const double start = bias[n] + (accumulate ? residual[at] : 0.0f);
          const Expected e = expected_product(stored_, n, row(x, r), phase);
          const double sums = 0x1p-24 * static_cast<double>(cols_) * (std::abs(start) + 1);
          ASSERT_NEAR(out[at], e.value + start, e.tolerance + sums);
          if (phase == Phase::kPrefill) continue;  // there the sums start from them
          const float parts = std::abs(plain[at]) + std::abs(bias[n]) + std::abs(residual[at]);
          ASSERT_NEAR(out[at], plain[at] + start, 0x1p-22 * parts);  // three roundings
        }
        ASSERT_EQ(out[r * kStride + kOutputs], residual[r * kStride + kOutputs]);
      }
    }
  }
}

std::string case_name(const testing::TestParamInfo<Case>& test) {
  return std::string(tensor_type_info(std::get<0>(test.param)).name) + "_" +
         std::string(isa_name(std::get<1>(test.param)));
}

INSTANTIATE_TEST_SUITE_P(AllTypes, Matmul,
                         testing::Combine(testing::ValuesIn(kAllTypes),
                                          testing::ValuesIn(machine_isas())),
                         case_name);

// Large enough for several passes over k, several row blocks and tasks with several units.
TEST(MatmulLarge, AgreesOnEveryInstructionSet) {
  constexpr size_t kRows = 300, kColumns = 1184, kLarge = 200;
  ThreadPool pool(2);
  MatmulScratch scratch;
  for (const TensorType type : {TensorType::kQ4_1, TensorType::kBF16}) {
    const StoredMatrix stored(type, kLarge, kColumns, 5);
    const PackedMatrix weight = packed(stored, pool);
    const std::vector<float> x = random_values(kRows * kColumns, 6);
    for (const Isa isa : machine_isas()) {
      const IsaScope scope(isa);
      for (const Phase phase : {Phase::kDecode, Phase::kPrefill}) {
        std::vector<float> out(kRows * kLarge);
        const Projection projection{&weight, out.data(), kLarge};
        matmul({&projection, 1}, {x.data(), kRows, kColumns}, phase, pool, scratch);
        for (size_t i = 0; i < out.size(); i += 97) {
          const Expected e =
              expected_product(stored, i % kLarge, x.data() + i / kLarge * kColumns, phase);
          ASSERT_NEAR(out[i], e.value, e.tolerance) << isa_name(isa) << " at " << i;
        }
      }
    }
  }
}

// With AMX weights are fetched in another way, which needs no AMX.
TEST(MatmulDecode, GivesTheSameBitsWhereverWeightsAreFetchedTo) {
  if (cpu_isa() < Isa::kAvx512) GTEST_SKIP() << "not on this machine";
  constexpr size_t kRows = 3, kColumns = 768, kBlocks = kColumns / kBlockCols;
  ThreadPool pool(1);
  const std::vector<float> x = random_values(kRows * kColumns, 11);
  std::vector<ActivationBlock> codes(kRows * kBlocks);
  matmul_kernels(Isa::kAvx512).round_codes(x.data(), codes.size(), 1, codes.data());
  for (const TensorType type : kAllTypes) {
    const PackedMatrix weight = packed(StoredMatrix(type, kOutputs, kColumns, 7), pool);
    const auto product = [&](Isa isa) {
      std::vector<float> out(kRows * kOutputs, kUntouched);
      DecodeJob job;
      job.layout = packed_layout(type, kColumns);
      job.panels = weight.data();
      job.panel_end = (kOutputs + kPanelRows - 1) / kPanelRows;
      job.rows = kRows;
      job.x_codes = codes.data();
      job.x_float = x.data();
      job.out = {out.data(), kOutputs, kOutputs};
      matmul_kernels(isa).decode(job);
      return out;
    };
    EXPECT_EQ(product(Isa::kAvx512), product(Isa::kAmx)) << tensor_type_info(type).name;
  }
}

TEST(MatmulGroup, EqualsSeparateCalls) {
  ThreadPool pool(2);
  MatmulScratch scratch;
  constexpr size_t kColumns = 768, kRows = 21;
  const StoredMatrix stored[] = {{TensorType::kQ4_K, 48, kColumns, 1},
                                 {TensorType::kQ6_K, 19, kColumns, 2},
                                 {TensorType::kF32, 33, kColumns, 3},
                                 {TensorType::kF16, 16, kColumns, 4}};
  const std::vector<float> x = random_values(kRows * kColumns, 5);
  for (const Phase phase : {Phase::kDecode, Phase::kPrefill}) {
    std::vector<PackedMatrix> weights;
    for (const StoredMatrix& matrix : stored) weights.push_back(packed(matrix, pool));
    std::vector<std::vector<float>> together, alone;
    std::vector<Projection> group;
    for (const PackedMatrix& weight : weights) {
      together.emplace_back(kRows * weight.rows());
      alone.emplace_back(kRows * weight.rows());
      group.push_back({&weight, together.back().data(), weight.rows()});
      const Projection single{&weight, alone.back().data(), weight.rows()};
      matmul({&single, 1}, {x.data(), kRows, kColumns}, phase, pool, scratch);
    }
    matmul(group, {x.data(), kRows, kColumns}, phase, pool, scratch);
    EXPECT_EQ(together, alone);
  }
}

// A feed-forward layer of 21 rows whose inner width is no whole number of tiles where the type
// allows that, and of one more panel than a whole number of steps.
TEST(GatedMlp, EqualsItsParts) {
  ThreadPool pool(2);
  MatmulScratch scratch;
  constexpr size_t kRows = 21, kHidden = 64;
  const std::pair<TensorType, size_t> layers[] = {{TensorType::kQ4_1, 96},
                                                  {TensorType::kBF16, 81},
                                                  {TensorType::kBF16, 40},
                                                  {TensorType::kF32, 81}};
  for (const auto& [type, width] : layers) {
    const PackedMatrix gate = packed({type, width, kHidden, 1}, pool);
    const PackedMatrix up = packed({type, width, kHidden, 2}, pool);
    const PackedMatrix down = packed({type, kHidden, width, 3}, pool);
    const std::vector<float> x = random_values(kRows * kHidden, 4), weight(kHidden, 0.5f);
    std::vector<float> normalised(x.size());
    const MatmulRows rows{x.data(), kRows, kHidden, {weight.data(), 1e-5f}};
    for (const Isa isa : machine_isas()) {
      const IsaScope scope(isa);
      for (size_t r = 0; r < kRows; ++r) {
        rms_norm(&x[r * kHidden], weight.data(), 1e-5f, kHidden, &normalised[r * kHidden]);
      }
      for (const Phase phase : {Phase::kDecode, Phase::kPrefill}) {
        std::vector<float> gates(kRows * width), ups(kRows * width);
        const Projection inner[] = {{&gate, gates.data(), width}, {&up, ups.data(), width}};
        matmul(inner, {normalised.data(), kRows, kHidden}, phase, pool, scratch);
        for (size_t r = 0; r < kRows; ++r) {
          gated_activation(&gates[r * width], &ups[r * width], width, Activation::kGeluTanh);
        }
        std::vector<float> expected = x, out = x;
        const Projection outer{&down, expected.data(), kHidden, nullptr, true};
        matmul({&outer, 1}, {gates.data(), kRows, width}, phase, pool, scratch);
        const Projection onto{&down, out.data(), kHidden, nullptr, true};
        gated_mlp({{&gate}, {&up}, onto, Activation::kGeluTanh}, rows, phase, pool, scratch);
        EXPECT_EQ(out, expected) << isa_name(isa) << " " << tensor_type_info(type).name;
      }
    }
  }
}

}  // namespace
}  // namespace reprise::kernels
