// Metadata as llama.cpp's converters write it for each family.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "formats/gguf.h"
#include "formats/gguf_builder.h"
#include "model/config.h"

namespace reprise::test {
namespace {

using testing::Each;
using testing::HasSubstr;

/// A file of one architecture, 2 layers, hidden 32, 4 heads, and an embedding of 3 tokens.
GgufBuilder model_of(const std::string& architecture, uint32_t layers = 2) {
  GgufBuilder builder;
  builder.add("general.architecture", architecture).add("general.name", "Tiny");
  builder.add(architecture + ".block_count", layers);
  builder.add(architecture + ".context_length", uint32_t{64});
  builder.add(architecture + ".embedding_length", uint32_t{32});
  builder.add(architecture + ".feed_forward_length", uint32_t{48});
  builder.add(architecture + ".attention.head_count", uint32_t{4});
  builder.add(architecture + ".attention.layer_norm_rms_epsilon", 1e-6f);
  builder.tensor("token_embd.weight", {3, 32}, std::vector<float>(96));
  return builder;
}

Result<ModelConfig> read(const GgufBuilder& builder) {
  const std::string bytes = builder.build();
  auto file = GgufFile::parse(as_bytes(bytes), "tiny.gguf");
  if (!file) return tl::unexpected<Error>(file.error());
  return read_gguf_config(*file);
}

ModelConfig read_good(const GgufBuilder& builder) {
  auto config = read(builder);
  EXPECT_TRUE(config) << config.error().message;
  return config ? *config : ModelConfig();
}

void expect_refused(const GgufBuilder& builder, ErrorCode code, const std::string& mention) {
  const auto config = read(builder);
  ASSERT_FALSE(config) << mention;
  EXPECT_EQ(error_name(config.error().code), error_name(code)) << config.error().message;
  EXPECT_THAT(config.error().message, HasSubstr(mention));
}

TEST(GgufConfig, Llama) {
  GgufBuilder builder = model_of("llama");
  builder.add("llama.attention.head_count_kv", uint32_t{2});
  builder.add("llama.rope.freq_base", 500000.0f).add("llama.rope.dimension_count", uint32_t{8});
  builder.tensor("output.weight", {3, 32}, std::vector<float>(96));
  builder.tensor("rope_freqs.weight", {4}, {1, 2, 4, 8});
  const ModelConfig c = read_good(builder);
  EXPECT_EQ(c.name, "Tiny");
  EXPECT_EQ(c.vocab, 3u);
  EXPECT_EQ(c.n_kv_head, 2u);
  EXPECT_TRUE(c.interleaved_rope);
  EXPECT_FALSE(c.tied_embeddings);
  EXPECT_FALSE(c.norm_plus_one);
  EXPECT_EQ(c.rope.theta, 500000.0f);
  EXPECT_EQ(c.rope.short_factors, (std::vector<float>{1, 2, 4, 8}));
  EXPECT_EQ(c.rope.long_factors, c.rope.short_factors);
  EXPECT_FLOAT_EQ(c.norm_eps, 1e-6f);
}

TEST(GgufConfig, PairOrderFollowsTheArchitecture) {
  for (const char* name : {"llama", "granite", "smollm3"}) {
    EXPECT_TRUE(read_good(model_of(name)).interleaved_rope) << name;
  }
  for (const char* name : {"qwen2", "qwen3", "phi3", "gemma2", "gemma3"}) {
    EXPECT_FALSE(read_good(model_of(name)).interleaved_rope) << name;
  }
}

TEST(GgufConfig, Qwen2Yarn) {
  GgufBuilder builder = model_of("qwen2");
  builder.add("qwen2.rope.scaling.type", "yarn").add("qwen2.rope.scaling.factor", 4.0f);
  builder.add("qwen2.rope.scaling.original_context_length", uint32_t{16});
  const ModelConfig c = read_good(builder);
  EXPECT_TRUE(c.qkv_bias);
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_EQ(c.rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(c.rope.original_context, 16u);
  EXPECT_NEAR(c.rope.attention_factor, 0.1 * std::log(4.0) + 1, 1e-6);
}

// What the converters write of transformers' and of YaRN's own options.
TEST(GgufConfig, YarnOptions) {
  const auto rope_of = [](const std::string& key, float value) {
    GgufBuilder builder = model_of("qwen3");
    builder.add("qwen3.rope.scaling.type", "yarn").add("qwen3.rope.scaling.factor", 4.0f);
    builder.add("qwen3.rope.scaling.original_context_length", uint32_t{16});
    builder.add("qwen3.rope.scaling." + key, value);
    return read_good(builder).rope;
  };
  const float own = 0.1f * std::log(4.0f) + 1;
  EXPECT_FLOAT_EQ(rope_of("yarn_attn_factor", 0.75f).attention_factor, 0.75f);
  EXPECT_FLOAT_EQ(rope_of("yarn_attn_factor", 1.0f).attention_factor, own) << "it was not set";
  EXPECT_FLOAT_EQ(rope_of("attn_factor", 0.5f).attention_factor, 0.5f * own);
  EXPECT_FLOAT_EQ(rope_of("yarn_ext_factor", 0.25f).yarn_extrapolation, 0.25f);
  EXPECT_FLOAT_EQ(rope_of("yarn_ext_factor", -1.0f).yarn_extrapolation, 1.0f);
  EXPECT_FLOAT_EQ(rope_of("yarn_beta_fast", 24.0f).beta_fast, 24.0f);
  EXPECT_FLOAT_EQ(rope_of("yarn_beta_slow", 2.0f).beta_slow, 2.0f);
  const RopeConfig unramped = rope_of("yarn_ext_factor", 0.0f);
  EXPECT_EQ(unramped.scaling, RopeScaling::kLinear);
  EXPECT_EQ(unramped.attention_factor, 1.0f);
}

// As llama.cpp reads files from before there were types.
TEST(GgufConfig, AFactorWithoutATypeIsLinear) {
  for (const char* key : {"llama.rope.scale_linear", "llama.rope.scaling.factor"}) {
    const ModelConfig c = read_good(model_of("llama").add(key, 4.0f));
    EXPECT_EQ(c.rope.scaling, RopeScaling::kLinear) << key;
    EXPECT_EQ(c.rope.factor, 4.0f) << key;
  }
  GgufBuilder typed = model_of("llama").add("llama.rope.scaling.type", "none");
  typed.add("llama.rope.scale_linear", 4.0f);
  EXPECT_EQ(read_good(typed).rope.scaling, RopeScaling::kNone);
  EXPECT_EQ(read_good(model_of("llama")).rope.scaling, RopeScaling::kNone);
}

TEST(GgufConfig, Granite) {
  GgufBuilder builder = model_of("granite");
  builder.add("granite.embedding_scale", 12.0f).add("granite.residual_scale", 0.22f);
  builder.add("granite.attention.scale", 0.015625f).add("granite.logit_scale", 8.0f);
  const ModelConfig c = read_good(builder);
  EXPECT_EQ(c.embedding_scale, 12.0f);
  EXPECT_EQ(c.residual_scale, 0.22f);
  EXPECT_EQ(c.attention_scale, 0.015625f);
  EXPECT_EQ(c.logit_scale, 0.125f);
}

TEST(GgufConfig, Gemma2) {
  GgufBuilder builder = model_of("gemma2", 46);
  builder.add("gemma2.attention.key_length", uint32_t{16});
  builder.add("gemma2.attention.value_length", uint32_t{16});
  builder.add("gemma2.attn_logit_softcapping", 50.0f);
  builder.add("gemma2.final_logit_softcapping", 30.0f);
  const ModelConfig c = read_good(builder);
  EXPECT_EQ(c.head_dim, 16u);
  EXPECT_FLOAT_EQ(c.attention_scale, 1 / std::sqrt(8.0f)) << "the 27B model scales by hidden size";
  EXPECT_EQ(c.window[0], 4096u);
  EXPECT_EQ(c.window[1], 0u);
  EXPECT_EQ(c.attention_soft_cap, 50.0f);
  EXPECT_FALSE(c.norm_plus_one) << "converters have added 1";
}

TEST(GgufConfig, SoftCapsOfFilesWithoutThem) {
  const ModelConfig gemma2 = read_good(model_of("gemma2"));
  EXPECT_EQ(gemma2.attention_soft_cap, 50.0f);
  EXPECT_EQ(gemma2.logit_soft_cap, 30.0f);
  const ModelConfig gemma3 = read_good(model_of("gemma3"));
  EXPECT_EQ(gemma3.attention_soft_cap, 0.0f);
  EXPECT_EQ(gemma3.logit_soft_cap, 0.0f);
}

TEST(GgufConfig, Gemma3) {
  GgufBuilder builder = model_of("gemma3", 6);
  builder.add("gemma3.attention.sliding_window", uint32_t{7});
  builder.add("gemma3.rope.scaling.type", "linear").add("gemma3.rope.scaling.factor", 8.0f);
  const ModelConfig c = read_good(builder);
  EXPECT_EQ(c.window, (std::vector<uint32_t>{7, 7, 7, 7, 7, 0}));
  EXPECT_EQ(c.rope.theta, 1000000.0f);
  EXPECT_EQ(c.rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(c.local_rope.theta, 10000.0f);
  EXPECT_EQ(c.local_rope.scaling, RopeScaling::kNone);
  EXPECT_FLOAT_EQ(c.embedding_scale, std::sqrt(32.0f));
}

TEST(GgufConfig, Gemma3WithoutAWindowHasOneRope) {
  const ModelConfig c = read_good(model_of("gemma3", 6));
  EXPECT_THAT(c.window, Each(0u));
  EXPECT_THAT(c.layer_rope, Each(LayerRope::kGlobal));
}

TEST(GgufConfig, PerLayerValuesMustAgree) {
  GgufBuilder same = model_of("llama"), different = model_of("llama");
  same.add_array<int32_t>("llama.attention.head_count_kv", {2, 2});
  EXPECT_EQ(read_good(same).n_kv_head, 2u);
  different.add_array<int32_t>("llama.attention.head_count_kv", {2, 4});
  expect_refused(different, ErrorCode::kUnsupported, "llama.attention.head_count_kv");
}

TEST(GgufConfig, RefusesWhatCannotBe) {
  using E = ErrorCode;
  expect_refused(model_of("mamba"), E::kUnknownArchitecture, "mamba");
  expect_refused(model_of("mamba"), E::kUnknownArchitecture, "llama, smollm3, qwen2");
  expect_refused(GgufBuilder().add("general.architecture", "llama"), E::kMissingKey,
                 "llama.block_count");
  expect_refused(model_of("llama", 0), E::kBadValue, "llama.block_count");
  expect_refused(model_of("llama", 4000000000u), E::kBadValue, "llama.block_count");
  expect_refused(model_of("llama").add("llama.attention.head_count_kv", uint32_t{3}), E::kBadValue,
                 "llama.attention.head_count_kv");
  expect_refused(model_of("llama").add("llama.attention.key_length", uint32_t{7}), E::kBadValue,
                 "llama.attention.key_length");
  expect_refused(model_of("llama").add("llama.attention.value_length", uint32_t{16}), E::kBadValue,
                 "llama.attention.value_length");
  expect_refused(model_of("llama").add("llama.rope.dimension_count", uint32_t{10}), E::kBadValue,
                 "llama.rope.dimension_count");
  expect_refused(model_of("llama").add("llama.rope.dimension_count", "8"), E::kBadType,
                 "llama.rope.dimension_count");
  expect_refused(model_of("llama").add("llama.rope.freq_base", std::nanf("")), E::kBadValue,
                 "llama.rope.freq_base");
  expect_refused(model_of("llama").add("llama.rope.scaling.type", "su"), E::kBadValue,
                 "llama.rope.scaling.type");
  expect_refused(model_of("llama")
                     .add("llama.rope.scaling.type", "yarn")
                     .add("llama.rope.scaling.yarn_attn_factor", 0.0f),
                 E::kBadValue, "llama.rope.scaling.yarn_attn_factor");
  expect_refused(model_of("phi3").add("phi3.rope.scaling.type", "longrope"), E::kMissingTensor,
                 "rope_factors_long.weight");
  expect_refused(model_of("phi3").tensor("rope_factors_long.weight", {4}, {1, 2, 3, 4}),
                 E::kMissingTensor, "rope_factors_short.weight");
  expect_refused(model_of("llama").tensor("rope_freqs.weight", {3}, {1, 2, 3}), E::kBadValue,
                 "has 3 values, needs 4");
  expect_refused(model_of("llama").add("llama.expert_count", uint32_t{8}), E::kUnsupported,
                 "mixture-of-experts");
}

}  // namespace
}  // namespace reprise::test
