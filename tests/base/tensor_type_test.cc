#include "base/tensor_type.h"

#include <gtest/gtest.h>

#include <set>

namespace reprise {
namespace {

// A block as its fields: scales and minimums, then the bits of every element.
void expect_block(TensorType type, std::string_view name, uint32_t elements, uint32_t header_bytes,
                  uint32_t bits) {
  const TensorTypeInfo& info = tensor_type_info(type);
  EXPECT_EQ(info.name, name);
  EXPECT_EQ(info.block, elements) << name;
  EXPECT_EQ(info.block_bytes, header_bytes + elements * bits / 8) << name;
}

TEST(TensorType, BlocksAreTheSumOfTheirFields) {
  expect_block(TensorType::kF32, "F32", 1, 0, 32);
  expect_block(TensorType::kF16, "F16", 1, 0, 16);
  expect_block(TensorType::kBF16, "BF16", 1, 0, 16);
  expect_block(TensorType::kQ8_0, "Q8_0", 32, 2, 8);
  expect_block(TensorType::kQ4_0, "Q4_0", 32, 2, 4);
  expect_block(TensorType::kQ4_1, "Q4_1", 32, 4, 4);
  expect_block(TensorType::kQ5_0, "Q5_0", 32, 2, 5);
  expect_block(TensorType::kQ5_1, "Q5_1", 32, 4, 5);
  expect_block(TensorType::kQ2_K, "Q2_K", 256, 4 + 16, 2);  // 16 scales and minimums of 4 bits
  expect_block(TensorType::kQ3_K, "Q3_K", 256, 2 + 12, 3);  // 16 scales of 6 bits
  expect_block(TensorType::kQ4_K, "Q4_K", 256, 4 + 12, 4);  // 8 scales and minimums of 6 bits
  expect_block(TensorType::kQ5_K, "Q5_K", 256, 4 + 12, 5);
  expect_block(TensorType::kQ6_K, "Q6_K", 256, 2 + 16, 6);  // 16 scales of 8 bits
  expect_block(TensorType::kIQ4_NL, "IQ4_NL", 32, 2, 4);
}

TEST(TensorType, NamesAreUnique) {
  std::set<std::string_view> names;
  constexpr auto kLast = static_cast<int>(TensorType::kIQ4_NL);
  for (int type = 0; type <= kLast; ++type) {
    EXPECT_TRUE(names.insert(tensor_type_info(static_cast<TensorType>(type)).name).second) << type;
  }
}

}  // namespace
}  // namespace reprise
