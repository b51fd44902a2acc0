#include "kernels/quant.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace reprise::kernels {
namespace {

constexpr size_t kColumns = 512;

class QuantGolden : public testing::TestWithParam<TensorType> {};

// The fixtures hold a row and its values as the gguf Python package reads them.
TEST_P(QuantGolden, ReadsTheSameBitsAsTheReference) {
  const TensorTypeInfo& info = tensor_type_info(GetParam());
  std::ifstream file(std::string(REPRISE_FIXTURES "/quant/") + std::string(info.name) + ".bin",
                     std::ios::binary);
  const std::vector<char> bytes(std::istreambuf_iterator<char>(file), {});
  const size_t row_bytes = kColumns / info.block * info.block_bytes;
  ASSERT_EQ(bytes.size(), row_bytes + kColumns * sizeof(float));
  std::vector<float> expected(kColumns), got(kColumns);
  std::memcpy(expected.data(), bytes.data() + row_bytes, kColumns * sizeof(float));
  dequantize_row(GetParam(), reinterpret_cast<const std::byte*>(bytes.data()), kColumns,
                 got.data());
  EXPECT_EQ(got, expected);
}

INSTANTIATE_TEST_SUITE_P(AllTypes, QuantGolden,
                         testing::Values(TensorType::kF32, TensorType::kF16, TensorType::kBF16,
                                         TensorType::kQ8_0, TensorType::kQ4_0, TensorType::kQ4_1,
                                         TensorType::kQ5_0, TensorType::kQ5_1, TensorType::kQ2_K,
                                         TensorType::kQ3_K, TensorType::kQ4_K, TensorType::kQ5_K,
                                         TensorType::kQ6_K, TensorType::kIQ4_NL),
                         [](const auto& test) {
                           return std::string(tensor_type_info(test.param).name);
                         });

}  // namespace
}  // namespace reprise::kernels
