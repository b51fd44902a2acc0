// config.json as published with each family's models (the keys that matter here).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "formats/safetensors.h"
#include "formats/safetensors_builder.h"
#include "model/config.h"

namespace reprise::test {
namespace {

using testing::Each;
using testing::ElementsAre;

ModelConfig read(const std::string& json) {
  TempFolder folder;
  folder.add("config.json", json).add("model.safetensors", small_safetensors());
  auto files = SafetensorsFolder::open(folder.path());
  if (!files) {
    ADD_FAILURE() << files.error().message;
    return {};
  }
  auto config = read_folder_config(*files);
  if (!config) {
    ADD_FAILURE() << config.error().message;
    return {};
  }
  return *config;
}

TEST(HfConfig, SmolLm2) {
  const ModelConfig c = read(R"({"architectures":["LlamaForCausalLM"],"attention_bias":false,
    "hidden_act":"silu","hidden_size":576,"intermediate_size":1536,"max_position_embeddings":8192,
    "model_type":"llama","num_attention_heads":9,"num_hidden_layers":30,"num_key_value_heads":3,
    "pretraining_tp":1,"rms_norm_eps":1e-05,"rope_interleaved":false,"rope_scaling":null,
    "rope_theta":100000,"tie_word_embeddings":true,"vocab_size":49152})");
  EXPECT_EQ(c.n_layer, 30u);
  EXPECT_EQ(c.head_dim, 64u);
  EXPECT_EQ(c.n_kv_head, 3u);
  EXPECT_EQ(c.context, 8192u);
  EXPECT_EQ(c.rope.theta, 100000.0f);
  EXPECT_EQ(c.rope.dims, 64u);
  EXPECT_FLOAT_EQ(c.attention_scale, 0.125f);
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_FALSE(c.interleaved_rope);
  EXPECT_THAT(c.window, Each(0u));
  EXPECT_EQ(c.window.size(), 30u);
}

TEST(HfConfig, Llama32) {
  const ModelConfig c = read(R"({"architectures":["LlamaForCausalLM"],"head_dim":64,
    "hidden_act":"silu","hidden_size":2048,"intermediate_size":8192,
    "max_position_embeddings":131072,"num_attention_heads":32,"num_hidden_layers":16,
    "num_key_value_heads":8,"rms_norm_eps":1e-05,"rope_scaling":{"factor":32.0,
    "high_freq_factor":4.0,"low_freq_factor":1.0,"original_max_position_embeddings":8192,
    "rope_type":"llama3"},"rope_theta":500000.0,"tie_word_embeddings":true,"vocab_size":128256})");
  EXPECT_EQ(c.rope.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(c.rope.factor, 32.0f);
  EXPECT_EQ(c.rope.original_context, 8192u);
  EXPECT_EQ(c.rope.theta, 500000.0f);
}

TEST(HfConfig, Mistral7B) {
  const ModelConfig c = read(R"({"architectures":["MistralForCausalLM"],"hidden_act":"silu",
    "hidden_size":4096,"intermediate_size":14336,"max_position_embeddings":32768,
    "num_attention_heads":32,"num_hidden_layers":32,"num_key_value_heads":8,"rms_norm_eps":1e-05,
    "rope_theta":10000.0,"sliding_window":4096,"tie_word_embeddings":false,"vocab_size":32000})");
  EXPECT_THAT(c.window, Each(4096u));
  EXPECT_FALSE(c.tied_embeddings);
}

TEST(HfConfig, Qwen25) {
  const ModelConfig c = read(R"({"architectures":["Qwen2ForCausalLM"],"hidden_act":"silu",
    "hidden_size":896,"intermediate_size":4864,"max_position_embeddings":32768,
    "max_window_layers":21,"num_attention_heads":14,"num_hidden_layers":24,
    "num_key_value_heads":2,"rms_norm_eps":1e-06,"rope_theta":1000000.0,"sliding_window":32768,
    "tie_word_embeddings":true,"use_sliding_window":false,"vocab_size":151936,
    "rope_scaling":{"factor":4.0,"original_max_position_embeddings":32768,"type":"yarn"}})");
  EXPECT_TRUE(c.qkv_bias);
  EXPECT_THAT(c.window, Each(0u));
  EXPECT_EQ(c.rope.scaling, RopeScaling::kYarn);
  EXPECT_NEAR(c.rope.attention_factor, 0.1 * std::log(4.0) + 1, 1e-6);
}

TEST(HfConfig, Qwen3) {
  const ModelConfig c = read(R"({"architectures":["Qwen3ForCausalLM"],"attention_bias":false,
    "head_dim":128,"hidden_act":"silu","hidden_size":1024,"intermediate_size":3072,
    "max_position_embeddings":40960,"max_window_layers":28,"num_attention_heads":16,
    "num_hidden_layers":28,"num_key_value_heads":8,"rms_norm_eps":1e-06,"rope_scaling":null,
    "rope_theta":1000000,"sliding_window":null,"tie_word_embeddings":true,
    "use_sliding_window":false,"vocab_size":151936})");
  EXPECT_TRUE(c.qk_norm);
  EXPECT_EQ(c.head_dim, 128u);
}

TEST(HfConfig, Phi4Mini) {
  const std::string factors = "[1" + [] {
    std::string rest;
    for (int i = 1; i < 48; ++i) rest += "," + std::to_string(i);
    return rest;
  }() + "]";
  const ModelConfig c = read(R"({"architectures":["Phi3ForCausalLM"],"hidden_act":"silu",
    "hidden_size":3072,"intermediate_size":8192,"max_position_embeddings":131072,
    "num_attention_heads":24,"num_hidden_layers":32,"num_key_value_heads":8,
    "original_max_position_embeddings":4096,"partial_rotary_factor":0.75,"rms_norm_eps":1e-05,
    "rope_theta":10000.0,"sliding_window":262144,"tie_word_embeddings":true,"vocab_size":200064,
    "rope_scaling":{"type":"longrope","short_factor":)" +
                             factors + R"(,"long_factor":)" + factors + "}}");
  EXPECT_TRUE(c.fused_weights);
  EXPECT_EQ(c.head_dim, 128u);
  EXPECT_EQ(c.rope.dims, 96u);
  EXPECT_EQ(c.rope.scaling, RopeScaling::kLongRope);
  EXPECT_EQ(c.rope.original_context, 4096u);
  EXPECT_EQ(c.rope.long_factors.size(), 48u);
  EXPECT_NEAR(c.rope.attention_factor, std::sqrt(1 + std::log(32.0) / std::log(4096.0)), 1e-6);
}

TEST(HfConfig, Granite33) {
  const ModelConfig c = read(R"({"architectures":["GraniteForCausalLM"],"attention_bias":false,
    "attention_multiplier":0.015625,"embedding_multiplier":12.0,"hidden_act":"silu",
    "hidden_size":2048,"intermediate_size":8192,"logits_scaling":8.0,
    "max_position_embeddings":131072,"mlp_bias":false,"num_attention_heads":32,
    "num_hidden_layers":40,"num_key_value_heads":8,"residual_multiplier":0.22,"rms_norm_eps":1e-05,
    "rope_scaling":null,"rope_theta":10000000.0,"tie_word_embeddings":true,"vocab_size":49159})");
  EXPECT_EQ(c.attention_scale, 0.015625f);
  EXPECT_EQ(c.embedding_scale, 12.0f);
  EXPECT_EQ(c.residual_scale, 0.22f);
  EXPECT_EQ(c.logit_scale, 0.125f);
}

TEST(HfConfig, Gemma2) {
  const ModelConfig c = read(R"({"architectures":["Gemma2ForCausalLM"],
    "attn_logit_softcapping":50.0,"final_logit_softcapping":30.0,"head_dim":256,
    "hidden_act":"gelu_pytorch_tanh","hidden_activation":"gelu_pytorch_tanh","hidden_size":2304,
    "intermediate_size":9216,"max_position_embeddings":8192,"num_attention_heads":8,
    "num_hidden_layers":26,"num_key_value_heads":4,"query_pre_attn_scalar":256,
    "rms_norm_eps":1e-06,"rope_theta":10000.0,"sliding_window":4096,"vocab_size":256000})");
  EXPECT_EQ(c.activation, kernels::Activation::kGeluTanh);
  EXPECT_TRUE(c.post_norms);
  EXPECT_TRUE(c.norm_plus_one);
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_FLOAT_EQ(c.embedding_scale, 48.0f);
  EXPECT_FLOAT_EQ(c.attention_scale, 0.0625f);
  EXPECT_EQ(c.attention_soft_cap, 50.0f);
  EXPECT_EQ(c.logit_soft_cap, 30.0f);
  EXPECT_EQ(c.window[0], 4096u);
  EXPECT_EQ(c.window[1], 0u);
  EXPECT_THAT(c.layer_rope, Each(LayerRope::kGlobal));
}

TEST(HfConfig, Gemma3) {
  const ModelConfig c = read(R"({"architectures":["Gemma3ForCausalLM"],
    "attn_logit_softcapping":null,"final_logit_softcapping":null,"head_dim":256,
    "hidden_activation":"gelu_pytorch_tanh","hidden_size":1152,"intermediate_size":6912,
    "max_position_embeddings":32768,"num_attention_heads":4,"num_hidden_layers":7,
    "num_key_value_heads":1,"query_pre_attn_scalar":256,"rms_norm_eps":1e-06,
    "rope_local_base_freq":10000,"rope_scaling":null,"rope_theta":1000000,"sliding_window":512,
    "sliding_window_pattern":6,"vocab_size":262144})");
  EXPECT_TRUE(c.qk_norm);
  EXPECT_THAT(c.window, ElementsAre(512, 512, 512, 512, 512, 0, 512));
  EXPECT_EQ(c.layer_rope[5], LayerRope::kGlobal);
  EXPECT_EQ(c.layer_rope[4], LayerRope::kLocal);
  EXPECT_EQ(c.rope.theta, 1000000.0f);
  EXPECT_EQ(c.local_rope.theta, 10000.0f);
  EXPECT_EQ(c.attention_soft_cap, 0.0f);
}

// The 4B model's text_config says only what its configuration class has otherwise.
TEST(HfConfig, Gemma3WithImages) {
  const ModelConfig c = read(R"({"architectures":["Gemma3ForConditionalGeneration"],
    "eos_token_id":[1,106],"mm_tokens_per_image":256,"model_type":"gemma3",
    "text_config":{"hidden_size":2560,"intermediate_size":10240,"model_type":"gemma3_text",
    "num_hidden_layers":34,"rope_scaling":{"factor":8.0,"rope_type":"linear"},
    "sliding_window":1024},
    "vision_config":{"hidden_size":1152,"num_hidden_layers":27,"vision_use_head":false}})");
  EXPECT_EQ(c.n_layer, 34u);
  EXPECT_EQ(c.n_head, 8u);
  EXPECT_EQ(c.n_kv_head, 4u);
  EXPECT_EQ(c.head_dim, 256u);
  EXPECT_EQ(c.vocab, 262208u);
  EXPECT_EQ(c.context, 131072u);
  EXPECT_EQ(c.window[0], 1024u);
  EXPECT_EQ(c.window[5], 0u);
  EXPECT_EQ(c.rope.theta, 1000000.0f);
  EXPECT_EQ(c.rope.factor, 8.0f);
  EXPECT_EQ(c.local_rope.theta, 10000.0f);
  EXPECT_EQ(c.local_rope.scaling, RopeScaling::kNone);
  EXPECT_FLOAT_EQ(c.attention_scale, 1.0f / 16);
  EXPECT_TRUE(c.tied_embeddings);
}

TEST(HfConfig, SmolLm3) {
  const ModelConfig c = read(R"({"architectures":["SmolLM3ForCausalLM"],"hidden_act":"silu",
    "hidden_size":2048,"intermediate_size":11008,"max_position_embeddings":65536,
    "no_rope_layer_interval":4,"no_rope_layers":[1,1,1,0,1],"num_attention_heads":16,
    "num_hidden_layers":5,"num_key_value_heads":4,"rms_norm_eps":1e-06,"rope_theta":5000000.0,
    "sliding_window":null,"use_sliding_window":false,"tie_word_embeddings":true,
    "vocab_size":128256})");
  using R = LayerRope;
  EXPECT_THAT(c.layer_rope, ElementsAre(R::kGlobal, R::kGlobal, R::kGlobal, R::kNone, R::kGlobal));
}

// transformers 4 leaves out what equals its own default.
TEST(HfConfig, EmbeddingsAreTiedAsTheFamilyHasThem) {
  const auto tied = [](const std::string& architecture) {
    return read(R"({"architectures":[")" + architecture + R"("],"hidden_size":64,
      "intermediate_size":64,"max_position_embeddings":64,"num_attention_heads":4,
      "num_hidden_layers":2,"rms_norm_eps":1e-06,"vocab_size":3})")
        .tied_embeddings;
  };
  for (const char* name : {"SmolLM3ForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM"}) {
    EXPECT_TRUE(tied(name)) << name;
  }
  for (const char* name : {"LlamaForCausalLM", "Qwen3ForCausalLM", "GraniteForCausalLM"}) {
    EXPECT_FALSE(tied(name)) << name;
  }
}

TEST(HfConfig, EverySupportedNameIsListed) {
  const auto names = supported_architectures();
  EXPECT_THAT(names, testing::IsSupersetOf({"llama", "LlamaForCausalLM", "gemma3", "phi3"}));
  EXPECT_THAT(names, testing::Each(testing::Not("")));
}

}  // namespace
}  // namespace reprise::test
