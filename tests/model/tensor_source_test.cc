#include "model/tensor_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/golden_model.h"

namespace reprise::test {
namespace {

using testing::Each;
using testing::StartsWith;

std::vector<std::string> names(const TensorSource& source) {
  std::vector<std::string> names;
  for (const TensorView& tensor : source.tensors()) names.push_back(tensor.name);
  return names;
}

TEST(TensorSource, HoldsTheTextModelOfOneThatReadsImages) {
  const Golden golden = read_golden("gemma3_images");
  const GoldenFolder folder(golden);
  const auto source = TensorSource::open(folder.path());
  ASSERT_TRUE(source) << source.error().message;
  EXPECT_THAT(names(*source), Each(StartsWith("language_model.model.")));
  EXPECT_EQ(source->tensors().size(), 7u * 13 + 2);
  EXPECT_EQ(source->others(), golden.tensors.size() - source->tensors().size());
  EXPECT_GT(source->others(), 0u);
}

TEST(TensorSource, KeepsTheHeadThatStandsBesideTheTextModel) {
  Golden golden = read_golden("mistral3_images");
  const GoldenFolder folder(golden);
  const auto source = TensorSource::open(folder.path());
  ASSERT_TRUE(source) << source.error().message;
  EXPECT_THAT(names(*source), testing::Contains("lm_head.weight"));
  EXPECT_THAT(names(*source), testing::Not(testing::Contains(StartsWith("model.vision_tower."))));
  EXPECT_FALSE(source->config()->tied_embeddings);
  golden.tensor("lm_head.weight").name = "elsewhere";
  const GoldenFolder headless(golden);
  EXPECT_TRUE(TensorSource::open(headless.path())->config()->tied_embeddings);
}

TEST(TensorSource, HoldsAllOfATextModel) {
  const Golden golden = read_golden("llama");
  const GoldenFolder folder(golden);
  const auto source = TensorSource::open(folder.path());
  ASSERT_TRUE(source) << source.error().message;
  EXPECT_EQ(source->tensors().size(), golden.tensors.size());
  EXPECT_EQ(source->others(), 0u);
}

}  // namespace
}  // namespace reprise::test
