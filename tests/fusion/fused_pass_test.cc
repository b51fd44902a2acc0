#include "fusion/fused_pass.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace reprise {
namespace {

using testing::ElementsAre;

ModelConfig config_of(std::vector<uint32_t> windows) {
  ModelConfig config;
  config.n_layer = static_cast<uint32_t>(windows.size());
  config.window = std::move(windows);
  return config;
}

std::vector<uint32_t> layers_of(RowScore score, uint32_t layer, const ModelConfig& config,
                                int32_t prompt = 1000) {
  RowCheck check;
  check.score = score;
  check.layer = layer;
  const auto layers = check_layers(check, config, prompt);
  return layers ? *layers : std::vector<uint32_t>{};
}

TEST(CheckLayers, AreTheSecondHalfUpToTheOneThatIsNamed) {
  const ModelConfig config = config_of(std::vector<uint32_t>(30));
  EXPECT_THAT(layers_of(RowScore::kHeads, 0, config), ElementsAre(4, 5, 6, 7, 8));
  EXPECT_THAT(layers_of(RowScore::kHeads, 5, config), ElementsAre(3, 4, 5));
  EXPECT_THAT(layers_of(RowScore::kHeads, 1, config), ElementsAre(1));
  EXPECT_EQ(layers_of(RowScore::kHeads, 99, config).front(), 15u);
  EXPECT_EQ(layers_of(RowScore::kHeads, 99, config).back(), 29u);
  EXPECT_THAT(layers_of(RowScore::kJoint, 0, config), ElementsAre(8));
  EXPECT_THAT(layers_of(RowScore::kJoint, 6, config), ElementsAre(6));
  EXPECT_THAT(layers_of(RowScore::kValues, 1, config), ElementsAre(1));
}

TEST(CheckLayers, SmallModelsHaveOne) {
  EXPECT_THAT(layers_of(RowScore::kHeads, 0, config_of({0})), ElementsAre(0));
  EXPECT_THAT(layers_of(RowScore::kHeads, 0, config_of({0, 0})), ElementsAre(1));
  EXPECT_THAT(layers_of(RowScore::kHeads, 0, config_of({0, 0, 0, 0})), ElementsAre(1));
}

TEST(CheckLayers, LeaveOutThoseWhoseWindowsHideSomething) {
  const ModelConfig mixed = config_of({64, 64, 0, 64, 64, 0, 64, 64});
  EXPECT_THAT(layers_of(RowScore::kHeads, 4, mixed), ElementsAre(5));  // from 3 on
  EXPECT_THAT(layers_of(RowScore::kHeads, 3, mixed), ElementsAre(5));
  EXPECT_THAT(layers_of(RowScore::kHeads, 2, mixed), ElementsAre(2));
  EXPECT_THAT(layers_of(RowScore::kHeads, 7, mixed), ElementsAre(5));  // none behind it
  EXPECT_THAT(layers_of(RowScore::kHeads, 4, mixed, 64), ElementsAre(2, 3, 4));
  EXPECT_THAT(layers_of(RowScore::kValues, 1, mixed), ElementsAre(1));
  const auto none = check_layers({{}, RowScore::kHeads, 3}, config_of({0, 64, 64, 64}), 1000);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(none.error().message, testing::HasSubstr("its 1000 tokens"));
}

}  // namespace
}  // namespace reprise
