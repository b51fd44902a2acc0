#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "matmul_case.h"

namespace reprise::kernels {
namespace {

class Pack : public testing::TestWithParam<TensorType> {
 protected:
  ThreadPool pool_{2};
};

TEST_P(Pack, KeepsEveryBitOfEveryWeight) {
  const StoredMatrix stored(GetParam(), 37, odd_columns(GetParam()), 1);
  const PackedMatrix matrix = packed(stored, pool_);
  ASSERT_EQ(matrix.rows(), stored.rows);
  ASSERT_EQ(matrix.cols(), stored.cols);
  std::vector<float> row(stored.cols);
  for (size_t r = 0; r < stored.rows; ++r) {
    unpack_row(matrix, r, row.data());
    EXPECT_EQ(row, stored.row(r)) << "row " << r;
  }
}

TEST_P(Pack, ExpandsToTheSameFloats) {
  const StoredMatrix stored(GetParam(), 37, odd_columns(GetParam()), 1);
  const auto matrix = packed(stored, pool_).expanded(pool_);
  ASSERT_TRUE(matrix);
  ASSERT_EQ(matrix->type(), TensorType::kF32);
  ASSERT_EQ(matrix->rows(), stored.rows);
  std::vector<float> row(stored.cols);
  for (size_t r = 0; r < stored.rows; ++r) {
    unpack_row(*matrix, r, row.data());
    EXPECT_EQ(row, stored.row(r)) << "row " << r;
  }
}

TEST_P(Pack, NeedsAboutTheBytesOfTheFile) {
  const StoredMatrix stored(GetParam(), 64, 2048, 1);
  const PackedMatrix matrix = packed(stored, pool_);
  // 8-bit scales in place of 6-bit ones cost Q3_K 3.6 %.
  EXPECT_LE(matrix.bytes(), stored.bytes.size() * 104 / 100);
}

TEST_P(Pack, JoinsPartsAndOrdersRows) {
  const size_t cols = odd_columns(GetParam());
  const StoredMatrix first(GetParam(), 5, cols, 1), second(GetParam(), 18, cols, 2);
  const std::vector<TensorView> parts = {first.view(), second.view()};
  std::vector<float> row(cols);
  const auto joined = PackedMatrix::pack(parts, {}, pool_);
  ASSERT_TRUE(joined.has_value());
  ASSERT_EQ(joined->rows(), 23u);
  unpack_row(*joined, 22, row.data());
  EXPECT_EQ(row, second.row(17));
  const std::vector<uint32_t> order = {22, 0, 5, 4, 4};
  const auto ordered = PackedMatrix::pack(parts, order, pool_);
  ASSERT_TRUE(ordered.has_value());
  ASSERT_EQ(ordered->rows(), 5u);
  for (size_t r = 0; r < order.size(); ++r) {
    unpack_row(*ordered, r, row.data());
    EXPECT_EQ(row, order[r] < 5 ? first.row(order[r]) : second.row(order[r] - 5));
  }
}

INSTANTIATE_TEST_SUITE_P(AllTypes, Pack, testing::ValuesIn(kAllTypes), [](const auto& test) {
  return std::string(tensor_type_info(test.param).name);
});

ErrorCode pack_error(std::vector<TensorView> parts, std::vector<uint32_t> order = {}) {
  ThreadPool pool(1);
  const auto result = PackedMatrix::pack(parts, order, pool);
  EXPECT_FALSE(result.has_value());
  return result ? ErrorCode::kUnsupported : result.error().code;
}

TEST(PackErrors, RefusesWhatCannotBeOneMatrix) {
  const StoredMatrix q4(TensorType::kQ4_1, 16, 64, 1), q8(TensorType::kQ8_0, 16, 64, 1);
  const StoredMatrix wide(TensorType::kQ4_1, 16, 96, 1);
  EXPECT_EQ(pack_error({q4.view(), q8.view()}), ErrorCode::kUnsupportedType);
  EXPECT_EQ(pack_error({q4.view(), wide.view()}), ErrorCode::kBadShape);
  EXPECT_EQ(pack_error({q4.view()}, {0, 16}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(pack_error({}), ErrorCode::kInvalidArgument);
  TensorView cut = q4.view();
  cut.bytes = cut.bytes.first(cut.bytes.size() - 1);
  EXPECT_EQ(pack_error({cut}), ErrorCode::kBadShape);
  TensorView odd = q4.view();
  odd.shape = {16, 63};
  EXPECT_EQ(pack_error({odd}), ErrorCode::kBadShape);
  TensorView flat = q4.view();
  flat.shape = {1024};
  EXPECT_EQ(pack_error({flat}), ErrorCode::kBadShape);
}

}  // namespace
}  // namespace reprise::kernels
