// The default model against llama.cpp; skipped where the model is not installed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <numeric>

#include "base/system.h"
#include "model/golden_model.h"
#include "model/model.h"
#include "model/reference_attention.h"

namespace reprise::test {
namespace {

std::string model_path() {
  if (const char* path = std::getenv("REPRISE_MODEL")) return path;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::string base = cache != nullptr ? cache : std::string(home ? home : "") + "/.cache";
  return base + "/reprise/SmolLM2-135M-Instruct.Q4_1.gguf";
}

// llama.cpp rounds activations to int8 with one scale per 32 values: an error of max / (127
// sqrt(12)) per value, where max is about 3 times the block's root mean square. Errors of 2
// branches per layer add up independently.
double int8_tolerance(const ModelConfig& config) {
  const double rounding = 3 / (127 * std::sqrt(12.0));
  return rounding * std::sqrt(2.0 * config.n_layer);
}

// Distance without the common offset, which softmax ignores.
double centred_distance(std::vector<float> ours, std::vector<float> theirs) {
  for (auto* values : {&ours, &theirs}) {
    const float mean =
        std::accumulate(values->begin(), values->end(), 0.0f) / static_cast<float>(values->size());
    for (float& value : *values) value -= mean;
  }
  return relative_distance(ours.data(), theirs.data(), ours.size());
}

class SmolLm2 : public testing::TestWithParam<size_t> {  // decode rows: 0 or all
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(model_path())) {
      GTEST_SKIP() << "no model at " << model_path() << "; set REPRISE_MODEL";
    }
  }
};

TEST_P(SmolLm2, LogitsMatchLlamaCpp) {
  ThreadPool pool;
  auto model = Model::load(model_path(), pool);
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ((*model)->quantization(), "Q4_1");
  const size_t vocab = (*model)->config().vocab;
  const nlohmann::json golden = read_json(fixture("smollm2.json"));
  for (const auto& prompt : golden["cases"]) {
    SCOPED_TRACE(prompt["prompt"].get<std::string>());
    const auto tokens = prompt["tokens"].get<std::vector<int32_t>>();
    std::vector<Row> rows;
    for (const int32_t token : tokens)
      rows.push_back({0, static_cast<int32_t>(rows.size()), token});
    ReferenceAttention attention(**model);
    attention.begin(rows);
    std::vector<float> logits(vocab);
    const uint32_t last = static_cast<uint32_t>(rows.size()) - 1;
    const ForwardBatch batch{rows, std::min(GetParam(), rows.size()), {&last, 1}};
    const Status status = (*model)->forward(batch, attention, logits.data());
    ASSERT_TRUE(status) << status.error().message;
    const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
    EXPECT_EQ(best, prompt["top"][0].get<int>());
    std::vector<float> sample;
    for (size_t i = 0; i < vocab; i += golden["sample_step"].get<size_t>()) {
      sample.push_back(logits[i]);
    }
    EXPECT_LT(centred_distance(sample, prompt["sample"]), int8_tolerance((*model)->config()));
  }
}

INSTANTIATE_TEST_SUITE_P(Phases, SmolLm2, testing::Values(0, 1000), [](const auto& param) {
  return std::string(param.param == 0 ? "prefill" : "decode");
});

TEST_F(SmolLm2, LoadingKeepsOnlyThePackedWeights) {
  ThreadPool pool;
  const uint64_t before = peak_rss_bytes();
  auto model = Model::load(model_path(), pool);
  ASSERT_TRUE(model);
  const uint64_t size = std::filesystem::file_size(model_path());
  EXPECT_LE(peak_rss_bytes(), before + size + (uint64_t{200} << 20));
  EXPECT_LE((*model)->weight_bytes(), size * 11 / 10);
}

}  // namespace
}  // namespace reprise::test
