// Models that must be refused, each with its code and the name of what is wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>

#include "model/golden_model.h"
#include "model/model.h"

namespace reprise::test {
namespace {

using testing::HasSubstr;

struct BadModel {
  const char* name;
  const char* golden;
  std::function<void(Golden&)> damage;
  ErrorCode code;
  const char* mention;
};

auto set(const char* key, nlohmann::json value) {
  return [=](Golden& golden) { golden.config[key] = value; };
}
auto rename(const char* tensor) {
  return [=](Golden& golden) { golden.tensor(tensor).name = "elsewhere"; };
}
auto reshape(const char* tensor, std::vector<uint64_t> shape) {
  return [=](Golden& golden) { golden.tensor(tensor).shape = shape; };
}

using E = ErrorCode;
const std::string kQ = "model.layers.1.self_attn.q_proj.weight";
const std::vector<BadModel> kBadModels{
    {"embedding_missing", "llama", rename("model.embed_tokens.weight"), E::kMissingTensor,
     "model.embed_tokens.weight"},
    {"head_missing", "llama", rename("lm_head.weight"), E::kMissingTensor, "lm_head.weight"},
    {"q_missing", "llama", rename(kQ.c_str()), E::kMissingTensor, kQ.c_str()},
    {"norm_missing", "gemma2", rename("model.layers.0.post_feedforward_layernorm.weight"),
     E::kMissingTensor, "post_feedforward_layernorm"},
    {"qk_norm_missing", "qwen3", rename("model.layers.0.self_attn.k_norm.weight"),
     E::kMissingTensor, "self_attn.k_norm"},
    {"bias_missing", "qwen2", rename("model.layers.0.self_attn.k_proj.bias"), E::kMissingTensor,
     "model.layers.0.self_attn.k_proj.bias"},
    {"fused_missing", "phi3", rename("model.layers.0.mlp.gate_up_proj.weight"), E::kMissingTensor,
     "gate_up_proj"},
    {"q_shape", "llama", reshape(kQ.c_str(), {32, 31}), E::kBadShape, kQ.c_str()},
    {"norm_shape", "llama", reshape("model.norm.weight", {33}), E::kBadShape, "model.norm.weight"},
    {"bias_shape", "qwen2", reshape("model.layers.0.self_attn.q_proj.bias", {16}), E::kBadShape,
     "q_proj.bias"},
    {"vocab_shape", "llama", set("vocab_size", 49), E::kBadShape, "model.embed_tokens.weight"},
    {"fused_shape", "phi3", set("intermediate_size", 33), E::kBadShape, "gate_up_proj"},
    {"architecture", "llama", set("architectures", {"MixtralForCausalLM"}), E::kUnknownArchitecture,
     "MixtralForCausalLM"},
    {"architecture_lists", "llama", set("architectures", {"LlamaForCasualLM"}),
     E::kUnknownArchitecture, "did you mean LlamaForCausalLM"},
    {"no_architecture", "llama", set("architectures", nullptr), E::kMissingKey, "architectures"},
    {"architectures_type", "llama", set("architectures", 3), E::kBadType, "architectures"},
    {"quantised", "llama", set("quantization_config", {{"bits", 4}}), E::kUnsupported,
     "quantization_config"},
    {"layers_missing", "llama", set("num_hidden_layers", nullptr), E::kMissingKey,
     "num_hidden_layers"},
    {"layers_zero", "llama", set("num_hidden_layers", 0), E::kBadValue, "num_hidden_layers"},
    {"layers_huge", "llama", set("num_hidden_layers", 4000000000u), E::kBadValue,
     "num_hidden_layers"},
    {"layers_text", "llama", set("num_hidden_layers", "two"), E::kBadType, "num_hidden_layers"},
    {"layers_fraction", "llama", set("num_hidden_layers", 1.5), E::kBadValue, "num_hidden_layers"},
    {"layers_negative", "llama", set("num_hidden_layers", -1), E::kBadValue, "num_hidden_layers"},
    {"hidden_huge", "llama", set("hidden_size", 1e300), E::kBadValue, "hidden_size"},
    {"kv_heads", "llama", set("num_key_value_heads", 3), E::kBadValue, "num_key_value_heads"},
    {"heads_zero", "llama", set("num_attention_heads", 0), E::kBadValue, "num_attention_heads"},
    {"head_dim_odd", "llama", set("head_dim", 7), E::kBadValue, "head_dim"},
    {"head_dim_large", "llama", set("head_dim", 258), E::kBadValue, "head_dim"},
    {"eps", "llama", set("rms_norm_eps", -1.0), E::kBadValue, "rms_norm_eps"},
    {"activation", "llama", set("hidden_act", "relu"), E::kBadValue, "hidden_act"},
    {"tied_type", "llama", set("tie_word_embeddings", 1), E::kBadType, "tie_word_embeddings"},
    {"rope_type", "llama", set("rope_parameters", {{"rope_type", "dynamic"}, {"factor", 2}}),
     E::kBadValue, "rope_parameters.rope_type"},
    {"rope_factor", "llama", set("rope_parameters", {{"rope_type", "linear"}}), E::kMissingKey,
     "rope_parameters.factor"},
    {"rope_theta", "llama", set("rope_parameters", {{"rope_theta", 0}}), E::kBadValue,
     "rope_parameters.rope_theta"},
    {"rope_partial", "llama", set("rope_parameters", {{"partial_rotary_factor", 0.1}}),
     E::kBadValue, "partial_rotary_factor"},
    {"rope_object", "llama", set("rope_parameters", {1, 2}), E::kBadType, "rope_parameters"},
    {"llama3_band", "llama3_rope",
     set("rope_parameters",
         {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 4}}),
     E::kBadValue, "high_freq_factor"},
    {"longrope_count", "phi3_long",
     [](Golden& golden) {
       golden.config["rope_parameters"]["long_factor"] = {1.0, 2.0};
     },
     E::kBadValue, "rope factor list has 2 values, needs 3"},
    {"longrope_zero", "phi3_long",
     [](Golden& golden) { golden.config["rope_parameters"]["long_factor"][1] = 0.0; }, E::kBadValue,
     "rope factor list"},
    {"longrope_missing", "phi3_long",
     [](Golden& golden) { golden.config["rope_parameters"].erase("short_factor"); }, E::kMissingKey,
     "short_factor"},
    {"layer_types", "gemma3", set("layer_types", {"full_attention"}), E::kBadValue, "layer_types"},
    {"layer_type", "gemma3", set("layer_types", {"a", "b", "c"}), E::kBadValue, "layer_types"},
    {"text_config_missing", "gemma3_images", set("text_config", nullptr), E::kMissingKey,
     "text_config"},
    {"text_config_list", "gemma3_images", set("text_config", {1}), E::kBadType, "text_config"},
    {"text_config_type", "mistral3_images", set("text_config", {{"model_type", "ministral3"}}),
     E::kUnsupported, "text_config.model_type 'ministral3' is not supported; mistral is"},
    {"text_config_key", "gemma3_images", set("text_config", {{"hidden_size", 0}}), E::kBadValue,
     "text_config.hidden_size"},
    {"text_embedding_missing", "gemma3_images", rename("language_model.model.embed_tokens.weight"),
     E::kMissingTensor, "embed_tokens.weight"},
    {"no_rope_layers", "smollm3", set("no_rope_layers", {1, 0}), E::kBadValue, "no_rope_layers"},
};

class BadFolder : public testing::TestWithParam<BadModel> {};

TEST_P(BadFolder, IsRefused) {
  Golden golden = read_golden(GetParam().golden);
  GetParam().damage(golden);
  const GoldenFolder folder(golden);
  ThreadPool pool(1);
  const auto model = Model::load(folder.path(), pool);
  ASSERT_FALSE(model);
  EXPECT_EQ(error_name(model.error().code), error_name(GetParam().code)) << model.error().message;
  EXPECT_THAT(model.error().message, HasSubstr(GetParam().mention));
}

INSTANTIATE_TEST_SUITE_P(Models, BadFolder, testing::ValuesIn(kBadModels),
                         [](const auto& param) { return std::string(param.param.name); });

TEST(LoadModel, StopsWhenProgressSaysSo) {
  const GoldenFolder folder(read_golden("llama"));
  ThreadPool pool(1);
  uint64_t last = 0, total = 0;
  ASSERT_TRUE(Model::load(folder.path(), pool, 0, [&](const Progress& progress) {
    EXPECT_EQ(progress.stage, "load");
    EXPECT_GE(progress.done, last);
    last = progress.done;
    total = progress.total;
    return true;
  }));
  EXPECT_EQ(last, total);
  const auto model = Model::load(folder.path(), pool, 0, [](const Progress&) { return false; });
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code, ErrorCode::kCancelled);
}

TEST(LoadModel, FingerprintNamesTheModel) {
  ThreadPool pool(1);
  const auto fingerprint = [&](const Golden& golden, uint32_t context = 0) {
    const GoldenFolder folder(golden);
    auto model = Model::load(folder.path(), pool, context);
    return model ? (*model)->fingerprint() : 0;
  };
  const Golden golden = read_golden("phi3_long");
  const uint64_t same = fingerprint(golden);
  EXPECT_EQ(fingerprint(golden), same);
  EXPECT_NE(fingerprint(golden, 16), same) << "short factors rotate differently";
  Golden other = golden;
  other.config["sliding_window"] = 9;
  EXPECT_NE(fingerprint(other), same);
  other = golden;
  other.tensor("model.norm.weight").scale = 0.5f;
  EXPECT_NE(fingerprint(other), same);
}

TEST(LoadModel, FingerprintIsOfEveryWeight) {
  ThreadPool pool(2);
  const GoldenFolder folder(read_golden("llama"));
  const auto fingerprint = [&] { return (*Model::load(folder.path(), pool))->fingerprint(); };
  const std::string path = folder.path() + "/model.safetensors";
  const uint64_t same = fingerprint();
  const auto flip = [&](std::streamoff from_end) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(-from_end, std::ios::end);
    const int byte = file.get();
    file.seekp(-from_end, std::ios::end);
    file.put(static_cast<char>(byte ^ 1));
  };
  for (std::streamoff word = 1; word < 4000; word += 61) {
    flip(4 * word);  // of a float's fraction
    EXPECT_NE(fingerprint(), same) << word;
    flip(4 * word);
  }
  EXPECT_EQ(fingerprint(), same);
}

TEST(Forward, RefusesWhatItCannotCompute) {
  const GoldenFolder folder(read_golden("llama"));
  ThreadPool pool(1);
  auto model = Model::load(folder.path(), pool);
  ASSERT_TRUE(model);
  struct Never : AttentionOp {
    Status attend(uint32_t, float*, float*, float*, float*) override {
      ADD_FAILURE() << "the batch was computed";
      return {};
    }
  } never;
  const auto code = [&](std::vector<Row> rows, size_t decode, std::vector<uint32_t> wanted) {
    const Status status = (*model)->forward({rows, decode, wanted}, never, nullptr);
    return status ? "" : error_name(status.error().code);
  };
  EXPECT_EQ(code({}, 0, {}), "invalid_argument");
  EXPECT_EQ(code({{0, 0, 48}}, 0, {}), "invalid_argument");
  EXPECT_EQ(code({{0, 0, -1}}, 0, {}), "invalid_argument");
  EXPECT_EQ(code({{0, -1, 3}}, 0, {}), "invalid_argument");
  EXPECT_EQ(code({{0, 0, 3}}, 2, {}), "invalid_argument");
  EXPECT_EQ(code({{0, 0, 3}}, 0, {1}), "invalid_argument");
  EXPECT_EQ(code({{0, 0, 3}}, 0, {0, 0}), "invalid_argument");
}

}  // namespace
}  // namespace reprise::test
