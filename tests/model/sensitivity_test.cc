// Proof that the golden logits notice every part of a family's configuration: without it, the
// distance leaves the float tolerance by orders of magnitude.
#include <gtest/gtest.h>

#include "model/golden_model.h"
#include "model/model.h"

namespace reprise::test {
namespace {

struct Change {
  const char* golden;
  const char* pointer;  // JSON pointer into config.json
  nlohmann::json value;
};

class Sensitivity : public testing::TestWithParam<Change> {};

TEST_P(Sensitivity, ChangedConfigurationChangesLogits) {
  const auto& [name, pointer, value] = GetParam();
  Golden golden = read_golden(name);
  auto& changed = golden.config[nlohmann::json::json_pointer(pointer)];
  ASSERT_NE(changed, value);
  changed = value;
  const GoldenFolder folder(golden);
  ThreadPool pool(1);
  auto model = Model::load(folder.path(), pool, static_cast<uint32_t>(golden.tokens.size()));
  ASSERT_TRUE(model) << model.error().message;
  const size_t vocab = (*model)->config().vocab, last = golden.tokens.size() - 1;
  const std::vector<float> logits = run_tokens(**model, golden.tokens, 1000, 0);
  EXPECT_GT(relative_distance(&logits[last * vocab], golden.logits[last].data(), vocab), 1e-3);
}

INSTANTIATE_TEST_SUITE_P(
    Keys, Sensitivity,
    testing::Values(
        Change{"llama", "/hidden_act", "gelu_new"}, Change{"llama", "/rms_norm_eps", 0.1},
        Change{"llama", "/rope_parameters/rope_theta", 500},
        Change{"llama3_rope", "/rope_parameters/factor", 8.0},
        Change{"llama_linear", "/rope_parameters/factor", 1.0},
        Change{"mistral", "/sliding_window", nullptr}, Change{"mistral", "/sliding_window", 7},
        Change{"smollm3", "/no_rope_layers", nlohmann::json({1, 1, 1, 1})},
        Change{"qwen2_yarn", "/rope_parameters/rope_type", "linear"},
        Change{"qwen2_yarn", "/rope_parameters/attention_factor", 1.0},
        Change{"qwen2_window", "/use_sliding_window", false}, Change{"phi3", "/sliding_window", 24},
        Change{"phi3_short", "/rope_parameters/short_factor", nlohmann::json({1, 1, 1})},
        Change{"phi3_long", "/rope_parameters/long_factor", nlohmann::json({1, 1, 1})},
        Change{"granite", "/embedding_multiplier", 1.0},
        Change{"granite", "/residual_multiplier", 1.0},
        Change{"granite", "/attention_multiplier", 1.0}, Change{"granite", "/logits_scaling", 1.0},
        Change{"gemma2", "/sliding_window", 6}, Change{"gemma2", "/query_pre_attn_scalar", 16},
        Change{"gemma2", "/attn_logit_softcapping", nullptr},
        Change{"gemma2", "/final_logit_softcapping", nullptr},
        Change{"gemma3", "/rope_parameters/sliding_attention/rope_theta", 10000.0},
        Change{"gemma3", "/rope_parameters/full_attention/factor", 1.0}),
    [](const auto& param) {
      std::string name =
          fmt::format("{}{}_{}", param.param.golden, param.param.pointer, param.index);
      std::replace(name.begin(), name.end(), '/', '_');
      return name;
    });

}  // namespace
}  // namespace reprise::test
