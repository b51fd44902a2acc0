// Logits against transformers, for every family, from both file formats.
#include <gtest/gtest.h>

#include <cmath>

#include "model/golden_model.h"
#include "model/model.h"
#include "model/reference_attention.h"

namespace reprise::test {
namespace {

// F32 weights are multiplied in float. A layer has eight roundings in series (two norms, seven
// products of which three side by side, two sums), each of a sum of up to n terms, which rounds by
// sqrt(n) eps when errors are independent; both sides round.
double float_tolerance(const ModelConfig& config) {
  const double eps = 0x1p-24;
  return 2 * 8 * config.n_layer * std::sqrt(std::max(config.hidden, config.ffn)) * eps;
}

void expect_golden(const Golden& golden, const std::string& path, size_t chunk,
                   size_t decode_rows) {
  ThreadPool pool(2);
  // The reference chose longrope's factors by the number of tokens, this engine by the context.
  const auto context = static_cast<uint32_t>(golden.tokens.size());
  auto model = Model::load(path, pool, context);
  ASSERT_TRUE(model) << model.error().message;
  const size_t vocab = (*model)->config().vocab;
  const std::vector<float> logits = run_tokens(**model, golden.tokens, chunk, decode_rows);
  for (size_t row = 0; row < golden.tokens.size(); ++row) {
    ASSERT_EQ(golden.logits[row].size(), vocab);
    EXPECT_LT(relative_distance(&logits[row * vocab], golden.logits[row].data(), vocab),
              float_tolerance((*model)->config()))
        << "row " << row;
  }
}

class FamilyLogits : public testing::TestWithParam<std::string> {};

TEST_P(FamilyLogits, FolderMatchesTransformers) {
  const Golden golden = read_golden(GetParam());
  const GoldenFolder folder(golden);
  expect_golden(golden, folder.path(), golden.tokens.size(), 0);
  expect_golden(golden, folder.path(), 1, 1);
}

INSTANTIATE_TEST_SUITE_P(Families, FamilyLogits,
                         testing::Values("llama", "llama_bias", "llama3_rope", "llama_linear",
                                         "mistral", "mistral_full", "smollm3", "qwen2",
                                         "qwen2_yarn", "qwen2_window", "qwen3", "phi3",
                                         "phi3_short", "phi3_long", "granite", "gemma2", "gemma3",
                                         "gemma3_deep", "gemma3_images", "mistral3_images"),
                         [](const auto& param) { return param.param; });

class GgufLogits : public testing::TestWithParam<std::string> {};

TEST_P(GgufLogits, SameWeightsMatchTransformers) {
  expect_golden(read_golden(GetParam()), fixture(GetParam() + ".gguf"), 7, 0);
}

INSTANTIATE_TEST_SUITE_P(Families, GgufLogits,
                         testing::Values("llama3_rope", "mistral_full", "smollm3", "qwen2", "qwen3",
                                         "phi3", "phi3_long", "granite", "gemma2", "gemma3_deep"),
                         [](const auto& param) { return param.param; });

TEST(Forward, RowsDoNotDependOnTheirBatch) {
  const Golden golden = read_golden("qwen3");
  const GoldenFolder folder(golden);
  ThreadPool one(1), two(2);
  auto model = Model::load(folder.path(), one), threaded = Model::load(folder.path(), two);
  ASSERT_TRUE(model && threaded);
  for (const size_t decode : {0, 1000}) {
    const std::vector<float> whole = run_tokens(**model, golden.tokens, 1000, decode);
    EXPECT_EQ(run_tokens(**model, golden.tokens, 1, decode), whole);
    EXPECT_EQ(run_tokens(**threaded, golden.tokens, 5, decode), whole);
  }
}

TEST(Forward, OnlyWantedRowsInAnyOrderOfBothPhases) {
  const Golden golden = read_golden("gemma2");
  const GoldenFolder folder(golden);
  ThreadPool pool(2);
  auto model = Model::load(folder.path(), pool);
  ASSERT_TRUE(model);
  const size_t vocab = (*model)->config().vocab, decode = 3;
  std::vector<Row> rows;
  for (const int32_t token : golden.tokens) {
    rows.push_back({0, static_cast<int32_t>(rows.size()), token});
  }
  const std::vector<float> whole = run_tokens(**model, golden.tokens, rows.size(), decode);
  const std::vector<uint32_t> wanted{7, 1, 23, 0};
  std::vector<float> logits(wanted.size() * vocab);
  ReferenceAttention attention(**model);
  attention.begin(rows);
  ASSERT_TRUE((*model)->forward({rows, decode, wanted}, attention, logits.data()));
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_TRUE(
        std::equal(&logits[i * vocab], &logits[i * vocab] + vocab, &whole[wanted[i] * vocab]))
        << "row " << wanted[i];
  }
}

}  // namespace
}  // namespace reprise::test
