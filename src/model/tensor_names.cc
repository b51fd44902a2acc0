#include "model/tensor_names.h"

#include <array>

namespace reprise {
namespace {

constexpr std::array kTextRoots{
    TextRoot{.prefix = "model.",
             .embedding = "model.embed_tokens",
             .final_norm = "model.norm",
             .lm_head = "lm_head",
             .layer = "model.layers.{}."},
    // transformers' files of models that read images too
    TextRoot{.prefix = "language_model.",
             .embedding = "language_model.model.embed_tokens",
             .final_norm = "language_model.model.norm",
             .lm_head = "language_model.lm_head",
             .layer = "language_model.model.layers.{}."},
    // the names that their modules have in memory, which other writers store
    TextRoot{.prefix = "model.language_model.",
             .embedding = "model.language_model.embed_tokens",
             .final_norm = "model.language_model.norm",
             .lm_head = "lm_head",
             .layer = "model.language_model.layers.{}."},
};

constexpr TensorNames kGgufNames{.embedding = "token_embd",
                                 .final_norm = "output_norm",
                                 .lm_head = "output",
                                 .layer = "blk.{}.",
                                 .attn_norm = "attn_norm",
                                 .q = "attn_q",
                                 .k = "attn_k",
                                 .v = "attn_v",
                                 .qkv = "attn_qkv",
                                 .q_norm = "attn_q_norm",
                                 .k_norm = "attn_k_norm",
                                 .o = "attn_output",
                                 .attn_post_norm = "post_attention_norm",
                                 .mlp_norm = "ffn_norm",
                                 .gate = "ffn_gate",
                                 .up = "ffn_up",
                                 .gate_up = "ffn_up",
                                 .down = "ffn_down",
                                 .mlp_post_norm = "post_ffw_norm"};

constexpr TensorNames kFolderNames{.embedding = "",
                                   .final_norm = "",
                                   .lm_head = "",
                                   .layer = "",
                                   .attn_norm = "input_layernorm",
                                   .q = "self_attn.q_proj",
                                   .k = "self_attn.k_proj",
                                   .v = "self_attn.v_proj",
                                   .qkv = "self_attn.qkv_proj",
                                   .q_norm = "self_attn.q_norm",
                                   .k_norm = "self_attn.k_norm",
                                   .o = "self_attn.o_proj",
                                   .attn_post_norm = "",
                                   .mlp_norm = "post_attention_layernorm",
                                   .gate = "mlp.gate_proj",
                                   .up = "mlp.up_proj",
                                   .gate_up = "mlp.gate_up_proj",
                                   .down = "mlp.down_proj",
                                   .mlp_post_norm = ""};

}  // namespace

std::span<const TextRoot> text_roots() { return kTextRoots; }

const TensorNames& gguf_names() { return kGgufNames; }

TensorNames folder_names(const ModelConfig& config, const TextRoot& root) {
  TensorNames names = kFolderNames;
  names.embedding = root.embedding;
  names.final_norm = root.final_norm;
  names.lm_head = root.lm_head;
  names.layer = root.layer;
  if (config.post_norms) {  // the name of the second norm moves to the attention's output
    names.attn_post_norm = "post_attention_layernorm";
    names.mlp_norm = "pre_feedforward_layernorm";
    names.mlp_post_norm = "post_feedforward_layernorm";
  }
  return names;
}

}  // namespace reprise
