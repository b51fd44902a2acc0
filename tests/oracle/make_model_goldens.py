"""Writes tests/fixtures/models: logits and rotary frequencies of transformers for tiny models.

Weights are not stored: both sides derive them from (tensor name, index), see weight(). GGUF files
of the same weights are written with the gguf package, rotary rows permuted as converters do.

    pip install torch transformers gguf numpy
    python tests/oracle/make_model_goldens.py tests/fixtures/models
"""

import json
import math
import pathlib
import sys

import gguf
import numpy as np
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

SMALL = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, vocab_size=48, max_position_embeddings=64, rms_norm_eps=1e-5,
             bos_token_id=0, eos_token_id=1, pad_token_id=2)
LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=4.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=16)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=16)
LONGROPE = dict(rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=0.75,
                short_factor=[1.0, 1.25, 1.5], long_factor=[1.0, 3.0, 4.0],
                original_max_position_embeddings=16, factor=4.0)
GEMMA = dict(head_dim=16, hidden_activation="gelu_pytorch_tanh")
# A text model beside one for images, and what the latter's configuration holds.
VISION = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
              image_size=8, patch_size=4)

# name: (transformers class, config beyond SMALL, tokens); longrope picks its factors by length.
CASES = {
    "llama": ("Llama", dict(), 24),
    "llama_bias": ("Llama", dict(attention_bias=True, mlp_bias=True), 8),
    "llama3_rope": ("Llama", dict(rope_parameters=LLAMA3, tie_word_embeddings=True), 24),
    "llama_linear": ("Llama", dict(rope_parameters=dict(rope_type="linear", rope_theta=500000.0,
                                                        factor=2.0)), 12),
    "mistral": ("Mistral", dict(head_dim=12, sliding_window=6), 24),
    "mistral_full": ("Mistral", dict(head_dim=12, sliding_window=None, intermediate_size=16,
                                     rope_parameters=dict(rope_type="default",
                                                          rope_theta=1000000.0)), 12),
    "smollm3": ("SmolLM3", dict(num_hidden_layers=4, intermediate_size=16), 12),
    "qwen2": ("Qwen2", dict(tie_word_embeddings=True), 24),
    "qwen2_yarn": ("Qwen2", dict(rope_parameters=YARN), 24),
    "qwen2_window": ("Qwen2", dict(use_sliding_window=True, sliding_window=5,
                                   max_window_layers=1), 24),
    "qwen3": ("Qwen3", dict(head_dim=16), 24),
    "phi3": ("Phi3", dict(sliding_window=7), 24),
    "phi3_short": ("Phi3", dict(rope_parameters=LONGROPE, original_max_position_embeddings=16), 16),
    "phi3_long": ("Phi3", dict(rope_parameters=LONGROPE, original_max_position_embeddings=16), 24),
    "granite": ("Granite", dict(embedding_multiplier=6.0, residual_multiplier=0.375,
                                attention_multiplier=0.25, logits_scaling=4.0), 24),
    "gemma2": ("Gemma2", dict(GEMMA, sliding_window=5, query_pre_attn_scalar=24,
                              attn_logit_softcapping=2.0, final_logit_softcapping=3.0), 24),
    "gemma3": ("Gemma3", dict(GEMMA, num_hidden_layers=3, sliding_window=5,
                              query_pre_attn_scalar=24,
                              layer_types=["sliding_attention"] * 2 + ["full_attention"],
                              rope_parameters=dict(
                                  sliding_attention=dict(rope_type="default", rope_theta=100.0),
                                  full_attention=dict(rope_type="linear", rope_theta=10000.0,
                                                      factor=8.0))), 24),
    # GGUF has no layer types: every sixth layer is full.
    "gemma3_deep": ("Gemma3", dict(GEMMA, hidden_size=16, intermediate_size=16, head_dim=12,
                                   num_attention_heads=2, num_key_value_heads=1,
                                   num_hidden_layers=7, sliding_window=5, query_pre_attn_scalar=12,
                                   rope_parameters=dict(
                                       sliding_attention=dict(rope_type="default",
                                                              rope_theta=100.0),
                                       full_attention=dict(rope_type="linear", factor=8.0,
                                                           rope_theta=10000.0))), 16),
}
# Text models inside ones that read images too. What is not here is the class's default, which
# text_config leaves out. Last: whether tensors have the names of published files, or in memory.
WITH_IMAGES = {
    "gemma3_images": ("Gemma3", dict(hidden_size=16, intermediate_size=16, num_hidden_layers=7,
                                     head_dim=4, vocab_size=48, sliding_window=5), True),
    "mistral3_images": ("Mistral3", dict(hidden_size=64, intermediate_size=16, num_hidden_layers=1,
                                         vocab_size=48, sliding_window=None), False),
}
# GGUF "llama" has no sliding window: converters drop Mistral's.
GGUF_CASES = {"llama3_rope": "llama", "mistral_full": "llama", "smollm3": "smollm3",
              "qwen2": "qwen2", "qwen3": "qwen3", "phi3": "phi3", "phi3_long": "phi3",
              "granite": "granite", "gemma2": "gemma2", "gemma3_deep": "gemma3"}
LLAMA_LIKE = ("llama", "smollm3", "granite")


def weight(name, shape, offset, scale):
    """offset + scale * u, u uniform in [-1, 1): splitmix64 of FNV-1a of the name plus the index."""
    mask = (1 << 64) - 1
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = (seed ^ byte) * 0x100000001B3 & mask
    index = np.arange(math.prod(shape), dtype=np.uint64)
    z = np.uint64(seed) + index * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    u = (z >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)
    return (np.float32(offset) + np.float32(scale) * u).reshape(shape)


def offset_and_scale(name, shape, gemma):
    """Powers of two, so that both sides round alike; activations stay near unit size."""
    if "norm" in name:
        return (0.0 if gemma else 1.0), 0.25
    if name.endswith("bias"):
        return 0.0, 0.25
    return 0.0, 2.0 ** round(math.log2(math.sqrt(3 / shape[-1])))


def build(kind, extra):
    config_class = getattr(transformers, kind + ("TextConfig" if kind == "Gemma3" else "Config"))
    config = config_class(**{**SMALL, **extra})
    config._attn_implementation = "eager"
    with torch.device("cpu"):
        model = getattr(transformers, kind + "ForCausalLM")(config).float().eval()
    return model, fill(model, kind, config.tie_word_embeddings, lambda name: name)


def fill(model, kind, tied, stored_name):
    """Gives every tensor its weights; their stored names, shapes, offsets and scales."""
    tensors = []
    for name, value in model.state_dict().items():
        if tied and name == "lm_head.weight":
            continue
        name = stored_name(name)
        offset, scale = offset_and_scale(name, value.shape, kind.startswith("Gemma"))
        tensors.append([name, list(value.shape), offset, scale])
        value.copy_(torch.from_numpy(weight(name, value.shape, offset, scale)))
    return tensors


def published_name(name):
    """Of a tensor of Gemma3ForConditionalGeneration, as its files have it."""
    if name.startswith("model.language_model."):
        return "language_model.model." + name.removeprefix("model.language_model.")
    return name.removeprefix("model.")


def golden_with_images(kind, extra, published):
    whole = getattr(transformers, kind + "Config")(text_config=extra, vision_config=VISION)
    text = whole.text_config
    whole.tie_word_embeddings = text.tie_word_embeddings
    text.max_position_embeddings = 64
    text._attn_implementation = whole._attn_implementation = "eager"
    with torch.device("cpu"):
        model = getattr(transformers, kind + "ForConditionalGeneration")(whole).float().eval()
    tensors = fill(model, kind, text.tie_word_embeddings,
                   published_name if published else lambda name: name)
    defaults = type(text)().to_dict()
    kept = {k: v for k, v in text.to_dict().items()
            if v != defaults.get(k) and k not in ("layer_types", "dtype")}
    config = dict(architectures=[kind + "ForConditionalGeneration"], model_type=whole.model_type,
                  text_config=dict(kept, model_type=text.model_type),
                  vision_config=dict(VISION, model_type=whole.vision_config.model_type))
    return golden_of(model, config, tensors, 16)


def rounded(array):
    return [[float(f"{x:.8g}") for x in row] for row in array.tolist()]


def model_golden(kind, extra, length):
    model, tensors = build(kind, extra)
    config = model.config.to_dict()
    config["architectures"] = [kind + "ForCausalLM"]
    return golden_of(model, config, tensors, length)


def golden_of(model, config, tensors, length):
    tokens = [(7 * i * i + 3 * i + 5) % SMALL["vocab_size"] for i in range(length)]
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0].float()
    return dict(config=config, tensors=tensors, tokens=tokens, logits=rounded(logits))


def permute(matrix, heads):
    """Halves to adjacent pairs, as the converters of llama-like architectures store q and k."""
    rows = matrix.shape[0]
    return (matrix.reshape(heads, 2, rows // heads // 2, *matrix.shape[1:]).swapaxes(1, 2)
            .reshape(matrix.shape))


def write_gguf(path, arch, golden):
    """The keys, names and values that llama.cpp's convert_hf_to_gguf.py writes."""
    config = golden["config"]
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name(path.stem)
    add_sizes(writer, arch, config)
    rope = config["rope_parameters"]
    add_rope(writer, arch, config, rope.get("full_attention", rope))
    add_scales_and_window(writer, arch, config)
    architecture = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == arch)
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    for name, shape, offset, scale in golden["tensors"]:
        values = gguf_values(arch, config, name, weight(name, shape, offset, scale))
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")),
                          np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def head_size(config):
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def add_sizes(writer, arch, config):
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if arch in LLAMA_LIKE:
        writer.add_vocab_size(config["vocab_size"])


def add_rope(writer, arch, config, rope):
    """rope: of the layers that see everything."""
    if arch != "gemma2":
        writer.add_rope_freq_base(rope["rope_theta"])
    if arch in LLAMA_LIKE:
        writer.add_rope_dimension_count(head_size(config))
    if arch == "phi3":
        writer.add_rope_dimension_count(int(head_size(config) * rope["partial_rotary_factor"]))
        writer.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])
    if arch == "gemma3":
        writer.add_rope_freq_base_swa(config["rope_parameters"]["sliding_attention"]["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_divisors(rope, head_size(config)))
    if rope["rope_type"] == "longrope":
        writer.add_rope_scaling_attn_factors(
            math.sqrt(1 + math.log(rope["factor"]) /
                      math.log(rope["original_max_position_embeddings"])))
        for kind in ("short", "long"):
            writer.add_tensor(f"rope_factors_{kind}.weight",
                              np.array(rope[f"{kind}_factor"], dtype=np.float32))


def add_scales_and_window(writer, arch, config):
    if arch == "granite":
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if arch == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if arch in ("gemma2", "gemma3", "phi3"):
        writer.add_sliding_window(config["sliding_window"] or 0)


def gguf_values(arch, config, name, values):
    if arch in LLAMA_LIKE and ("q_proj" in name or "k_proj" in name):
        heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
        values = permute(values, heads)
    if arch.startswith("gemma") and "norm" in name:
        values = values + np.float32(1)
    if arch == "gemma2" and "q_proj" in name:
        # GGUF has no key for query_pre_attn_scalar: readers take head_dim, so q carries the rest.
        values = values * np.float32(math.sqrt(head_size(config) / config["query_pre_attn_scalar"]))
    return values


def llama3_divisors(rope, dims):
    divisors = []
    for i in range(dims // 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (2 * i / dims)
        original = rope["original_max_position_embeddings"]
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        if wavelength < original / high:
            divisors.append(1.0)
        elif wavelength > original / low:
            divisors.append(rope["factor"])
        else:
            blend = (original / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - blend) / rope["factor"] + blend))
    return np.array(divisors, dtype=np.float32)


def rope_goldens():
    """Real models' scalings; long says whether more than original_context is used."""
    def llama(head_dim, context, **rope):
        return dict(architectures=["LlamaForCausalLM"], hidden_size=4 * head_dim,
                    intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
                    vocab_size=64, rms_norm_eps=1e-5, max_position_embeddings=context,
                    rope_parameters=rope)
    llama31 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
                   high_freq_factor=4.0, original_max_position_embeddings=8192)
    yarn = dict(rope_type="yarn", rope_theta=1000000.0, factor=4.0,
                original_max_position_embeddings=32768)
    long = dict(rope_type="longrope", rope_theta=10000.0, original_max_position_embeddings=4096,
                partial_rotary_factor=0.75,
                short_factor=[1 + i / 48 for i in range(48)],
                long_factor=[1 + i for i in range(48)])
    cases = {
        "none": (llama(64, 8192, rope_type="default", rope_theta=100000.0), 0),
        "partial": (llama(128, 4096, rope_type="default", rope_theta=10000.0,
                          partial_rotary_factor=0.5), 0),
        "linear": (llama(256, 131072, rope_type="linear", rope_theta=1000000.0, factor=8.0), 0),
        "llama3": (llama(128, 131072, **llama31), 0),
        "yarn": (llama(128, 131072, **yarn), 0),
        "yarn_betas": (llama(64, 65536, **yarn, beta_fast=16, beta_slow=2, truncate=False), 0),
        "yarn_attention_factor": (llama(64, 65536, **yarn, attention_factor=0.5), 0),
        "yarn_mscale": (llama(64, 163840, **{**yarn, "factor": 40.0}, mscale=0.707,
                              mscale_all_dim=1.0), 0),
        "longrope_short": (llama(128, 131072, **long), 4096),
        "longrope_long": (llama(128, 131072, **long), 131072),
    }
    goldens = {}
    for name, (config, context) in cases.items():
        rope = config["rope_parameters"]
        if rope["rope_type"] == "longrope":
            rope["factor"] = None
        parsed = transformers.LlamaConfig(**{k: v for k, v in config.items()
                                             if k != "architectures"})
        if rope["rope_type"] == "default":
            dims = int(parsed.head_dim * rope.get("partial_rotary_factor", 1.0))
            inv_freq, factor = 1 / rope["rope_theta"] ** (torch.arange(0, dims, 2) / dims), 1.0
        else:
            inv_freq, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](parsed, "cpu",
                                                                      seq_len=context)
        goldens[name] = dict(config=config, context=context, attention_factor=factor,
                             inv_freq=[float(f"{x:.9g}") for x in inv_freq.tolist()])
    return goldens


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    dump = dict(separators=(",", ":"))
    for name, (kind, extra, length) in CASES.items():
        golden = model_golden(kind, extra, length)
        (folder / f"{name}.json").write_text(json.dumps(golden, **dump) + "\n")
        if name in GGUF_CASES:
            write_gguf(folder / f"{name}.gguf", GGUF_CASES[name], golden)
    for name, case in WITH_IMAGES.items():
        golden = golden_with_images(*case)
        (folder / f"{name}.json").write_text(json.dumps(golden, **dump) + "\n")
    (folder / "rope.json").write_text(json.dumps(rope_goldens(), **dump) + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
