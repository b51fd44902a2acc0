#include "model/random_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "kernels/quant.h"
#include "model/model.h"
#include "model/public_configs.h"
#include "model/tensor_floats.h"
#include "model/tensor_source.h"

namespace reprise {
namespace {

using testing::HasSubstr;

uint64_t parameters(const std::string& name) {
  const auto spec = parse_random_spec("random:" + name);
  EXPECT_TRUE(spec) << spec.error().message;
  if (!spec) return 0;
  uint64_t sum = 0;
  for (const TensorView& tensor : random_tensors(*spec)) {
    uint64_t count = 1;
    for (const uint64_t size : tensor.shape) count *= size;
    sum += count;
  }
  return sum;
}

// As the models' own publishers count them.
TEST(RandomModel, ShapesHaveTheParametersOfTheirModels) {
  const std::map<std::string, uint64_t> published = {
      {"smollm2-135m", 134'515'008},     {"llama-3.2-1b", 1'235'814'400},
      {"llama-3.2-3b", 3'212'749'824},   {"llama-3.1-8b", 8'030'261'248},
      {"llama-3.1-70b", 70'553'706'496}, {"mistral-7b-v0.3", 7'248'023'552},
      {"qwen2.5-7b", 7'615'616'512},     {"qwen3-0.6b", 596'049'920},
      {"qwen3-4b", 4'022'468'096},       {"qwen3-8b", 8'190'735'360},
      {"qwen3-32b", 32'762'123'264}};
  for (const auto& [name, count] : published) EXPECT_EQ(parameters(name), count) << name;
  EXPECT_EQ(public_configs().size(), published.size() + 1) << "and tiny";
}

TEST(RandomModel, ConfigurationIsTheModels) {
  const auto spec = parse_random_spec("random:llama-3.1-8b:q8_0");
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->type, TensorType::kQ8_0);
  EXPECT_EQ(spec->config.name, "llama-3.1-8b");
  EXPECT_EQ(spec->config.head_dim, 128u);
  EXPECT_EQ(spec->config.rope.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(spec->config.rope.factor, 8.0f);
  EXPECT_TRUE(parse_random_spec("random:qwen3-8b")->config.qk_norm);
  EXPECT_TRUE(parse_random_spec("random:qwen2.5-7b")->config.qkv_bias);
  EXPECT_EQ(parse_random_spec("random:tiny")->type, TensorType::kBF16);
}

TEST(RandomModel, WhatThereIsNotIsTold) {
  for (const char* name : {"random:", "random:tinny", "random::", "random:llama-3.1-9b"}) {
    const auto spec = parse_random_spec(name);
    ASSERT_FALSE(spec) << name;
    EXPECT_EQ(spec.error().code, ErrorCode::kInvalidArgument);
    for (const PublicConfig& config : public_configs()) {
      EXPECT_THAT(spec.error().message, HasSubstr(config.name));
    }
  }
  EXPECT_THAT(parse_random_spec("random:tinny").error().message, HasSubstr("did you mean tiny?"));
  for (const char* name : {"random:tiny:", "random:tiny:q9", "random:tiny:bf16:"}) {
    const auto spec = parse_random_spec(name);
    ASSERT_FALSE(spec) << name;
    EXPECT_EQ(spec.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(spec.error().message, HasSubstr("bf16, q8_0, q4_0"));
  }
}

std::vector<float> first_row(const TensorView& tensor) {
  std::vector<float> values(tensor.shape[1]);
  kernels::dequantize_row(tensor.type, tensor.bytes.data(), values.size(), values.data());
  return values;
}

TEST(RandomModel, WeightsAreSmallAndDiffer) {
  for (const char* name : {"random:tiny", "random:tiny:q8_0", "random:tiny:q4_0"}) {
    const auto model = RandomModel::make(name);
    ASSERT_TRUE(model) << model.error().message;
    std::vector<std::vector<float>> rows;
    for (const TensorView& tensor : model->tensors()) {
      const TensorTypeInfo& info = tensor_type_info(tensor.type);
      const uint64_t count = tensor.shape[0] * (tensor.shape.size() == 2 ? tensor.shape[1] : 1);
      EXPECT_EQ(tensor.bytes.size(), count / info.block * info.block_bytes) << tensor.name;
      EXPECT_EQ(model->tensor(tensor.name), &tensor);
      if (tensor.shape.size() == 1) {
        EXPECT_THAT(*tensor_floats(tensor), testing::Each(1.0f)) << tensor.name;
        continue;
      }
      rows.push_back(first_row(tensor));
      float largest = 0;
      for (const float weight : rows.back()) largest = std::max(largest, std::abs(weight));
      EXPECT_GT(largest, 0) << tensor.name;
      EXPECT_LE(largest, 1.0f / 32) << tensor.name;
    }
    for (size_t i = 1; i < rows.size(); ++i) EXPECT_NE(rows[i], rows[i - 1]) << name << " " << i;
    EXPECT_EQ(model->tensor("model.nothing"), nullptr);
  }
}

TEST(RandomModel, LoadsLikeAFileAndIsAlwaysTheSame) {
  ThreadPool pool(2);
  std::vector<uint64_t> seen;
  for (const char* name : {"random:tiny", "random:tiny", "random:tiny:q8_0", "random:tiny:q4_0"}) {
    const auto model = Model::load(name, pool);
    ASSERT_TRUE(model) << model.error().message;
    EXPECT_EQ((*model)->config().n_layer, 2u);
    EXPECT_EQ((*model)->config().vocab, 512u);
    seen.push_back((*model)->fingerprint());
  }
  EXPECT_EQ(seen[0], seen[1]);
  EXPECT_NE(seen[0], seen[2]);
  EXPECT_NE(seen[2], seen[3]);
  const auto source = TensorSource::open("random:tiny:q8_0");
  ASSERT_TRUE(source) << source.error().message;
  EXPECT_EQ(source->format(), "random");
  EXPECT_EQ(source->find("lm_head.weight")->type, TensorType::kQ8_0);
  EXPECT_EQ(Model::load("random:giant", pool).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace reprise
