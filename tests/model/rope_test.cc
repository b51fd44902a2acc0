// Rotary tables against the frequencies of transformers.
#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "formats/safetensors.h"
#include "model/golden_model.h"

namespace reprise::test {
namespace {

class RopeGolden : public testing::TestWithParam<std::string> {};

TEST_P(RopeGolden, MatchesTransformers) {
  const nlohmann::json golden = read_json(fixture("rope.json")).at(GetParam());
  TempFolder folder;
  folder.add("config.json", golden["config"].dump());
  folder.add("model.safetensors", small_safetensors());
  auto files = SafetensorsFolder::open(folder.path());
  ASSERT_TRUE(files) << files.error().message;
  auto config = read_folder_config(*files);
  ASSERT_TRUE(config) << config.error().message;

  const RopeTable table(config->rope, golden["context"].get<uint32_t>());
  const auto inv_freq = golden["inv_freq"].get<std::vector<double>>();
  const auto factor = golden["attention_factor"].get<double>();
  ASSERT_EQ(table.pairs(), inv_freq.size());
  std::vector<float> cos_sin(2 * table.pairs());
  for (const int32_t position : {0, 1, 77, 4096, 131071}) {
    table.cos_sin(position, cos_sin.data());
    for (size_t i = 0; i < inv_freq.size(); ++i) {
      const double angle = position * inv_freq[i];
      // The reference rounds its frequencies up to eight times; cosine, factor and product round
      // here.
      const double tolerance = factor * (angle * 8 + 3) * 0x1p-24;
      EXPECT_NEAR(cos_sin[2 * i], factor * std::cos(angle), tolerance) << position << " " << i;
      EXPECT_NEAR(cos_sin[2 * i + 1], factor * std::sin(angle), tolerance) << position << " " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Scalings, RopeGolden,
                         testing::Values("none", "partial", "linear", "llama3", "yarn",
                                         "yarn_betas", "yarn_attention_factor", "yarn_mscale",
                                         "longrope_short", "longrope_long"),
                         [](const auto& param) { return param.param; });

TEST(Rope, NoDimensionsRotateNothing) {
  const RopeTable table(RopeConfig(), 4096);
  EXPECT_EQ(table.pairs(), 0u);
}

TEST(Rope, YarnsRampIsMultiplied) {
  RopeConfig config;
  config.dims = 32;
  config.factor = 4.0f;
  config.original_context = 512;
  config.scaling = RopeScaling::kLinear;
  const RopeTable linear(config, 2048);
  config.scaling = RopeScaling::kYarn;
  const RopeTable whole(config, 2048);
  config.yarn_extrapolation = 0.25f;
  const RopeTable part(config, 2048);
  EXPECT_GT(whole.inv_freq()[0], linear.inv_freq()[0]);
  for (size_t i = 0; i < part.pairs(); ++i) {
    EXPECT_DOUBLE_EQ(part.inv_freq()[i], 0.75 * linear.inv_freq()[i] + 0.25 * whole.inv_freq()[i]);
  }
}

TEST(Rope, LongropeStaysWithTheFactorsOfTheContextInUse) {
  ModelConfig model;
  model.context = 1024;
  model.rope.dims = 4;
  model.rope.scaling = RopeScaling::kLongRope;
  model.rope.original_context = 128;
  model.rope.short_factors = {1, 2};
  model.rope.long_factors = {3, 4};
  for (const auto& [context, first, reach] : {std::tuple{128u, 1.0, 128u}, {129u, 3.0, 1024u}}) {
    ModelConfig settled = model;
    settle_ropes(settled, context);
    EXPECT_EQ(settled.rope_context, reach);
    for (const uint32_t later : {100u, 5000u}) {
      EXPECT_DOUBLE_EQ(RopeTable(settled.rope, later).inv_freq()[0], 1 / first);
    }
  }
  model.rope.scaling = RopeScaling::kYarn;
  settle_ropes(model, 100);
  EXPECT_EQ(model.rope_context, 1024u);
}

}  // namespace
}  // namespace reprise::test
