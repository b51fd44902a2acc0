#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets for file formats: python3 tests/fuzz/make_corpus.py"""

import json
import pathlib
import struct

CORPUS = pathlib.Path(__file__).parent / "corpus"


def gguf_string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def gguf_array(tag, items):
    return struct.pack("<IQ", tag, len(items)) + b"".join(items)


def gguf(pairs, tensors=()):
    """pairs: (key, type, value bytes); tensors: (name, dims, ggml type, data bytes)."""
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs))
    for key, tag, value in pairs:
        out += gguf_string(key) + struct.pack("<I", tag) + value
    data = b""
    for name, dims, tag, content in tensors:
        data += b"\0" * (-len(data) % 32)
        out += gguf_string(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        out += struct.pack("<IQ", tag, len(data))
        data += content
    if tensors:
        out += b"\0" * (-len(out) % 32) + data
    return out


def gguf_tokenizer(model, extra):
    tokens = ["<unk>", "<s>", "a", "b", "ab", "<0x41>", "<|im_end|>"]
    kinds = [2, 3, 1, 1, 1, 6, 3]
    key = "tokenizer.ggml."
    return [
        (key + "model", 8, gguf_string(model)),
        (key + "tokens", 9, gguf_array(8, [gguf_string(t) for t in tokens])),
        (key + "token_type", 9, gguf_array(5, [struct.pack("<i", k) for k in kinds])),
        (key + "bos_token_id", 4, struct.pack("<I", 1)),
        (key + "add_bos_token", 7, b"\1"),
        ("tokenizer.chat_template", 8, gguf_string("{{ messages }}")),
        *extra,
    ]


def gguf_seeds():
    scores = gguf_array(6, [struct.pack("<f", -i) for i in range(7)])
    merges = gguf_array(8, [gguf_string("a b")])
    numbers = [
        ("general.alignment", 4, struct.pack("<I", 32)),
        ("u8", 0, b"\1"), ("i8", 1, b"\1"), ("u16", 2, b"\1\0"), ("i16", 3, b"\1\0"),
        ("i32", 5, b"\1\0\0\0"), ("f32", 6, struct.pack("<f", 1)), ("u64", 10, b"\1" + b"\0" * 7),
        ("i64", 11, b"\1" + b"\0" * 7), ("f64", 12, struct.pack("<d", 1)),
        ("bools", 9, gguf_array(7, [b"\0", b"\1"])),
    ]
    tensors = [("f", (3, 2), 0, bytes(24)), ("q", (32,), 3, bytes(20)),
               ("k", (256,), 14, bytes(210))]
    return {
        "empty": gguf([]),
        "tensors": gguf(numbers, tensors),
        "bpe": gguf(gguf_tokenizer("gpt2", [("tokenizer.ggml.merges", 9, merges)])),
        "sentencepiece": gguf(gguf_tokenizer("llama", [("tokenizer.ggml.scores", 9, scores)])),
    }


def safetensors(header, data):
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def safetensors_seeds():
    two = {
        "__metadata__": {"format": "pt"},
        "w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "v": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
    }
    scalar = {"s": {"dtype": "F16", "shape": [], "data_offsets": [0, 2]}}
    return {"empty": safetensors({}, b""), "two": safetensors(two, bytes(32)),
            "scalar": safetensors(scalar, bytes(2))}


def tokenizer_json_seeds():
    added = [{"id": 3, "content": "<s>", "special": True, "lstrip": False, "rstrip": True}]
    template = {"type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [3], "tokens": ["<s>"]}}}
    split = {"type": "Split", "pattern": {"Regex": "\\d+"}, "behavior": "Isolated", "invert": False}
    bytes_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    bpe = {
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "NFC"}, {"type": "Replace", "pattern": {"String": " "}, "content": "_"}]},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytes_level]},
        "post_processor": template,
        "decoder": {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"],
                  "byte_fallback": True, "unk_token": "a"},
    }
    unigram = {
        "pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first"},
        "post_processor": {"type": "RobertaProcessing", "cls": ["a", 0], "sep": ["b", 1]},
        "model": {"type": "Unigram", "unk_id": 0, "vocab": [["a", 0], ["b", -1.5]]},
    }
    pairs = {"model": {"vocab": {"a": 0}, "merges": [["a", "a"]]}}
    return {name: json.dumps(value, separators=(",", ":")).encode()
            for name, value in {"bpe": bpe, "unigram": unigram, "pairs": pairs}.items()}


def field(number, content):
    """A protobuf field: bytes, or a varint below 128."""
    if isinstance(content, bytes):
        return bytes([number << 3 | 2, len(content)]) + content
    return bytes([number << 3 & 0x7F | 0x80, number >> 4, content]) if number > 15 else bytes(
        [number << 3, content])


def sentencepiece_seeds():
    def piece(text, score, kind):
        real = bytes([2 << 3 | 5]) + struct.pack("<f", score)
        return field(1, field(1, text) + real + field(3, kind))

    pieces = (piece(b"<unk>", 0, 2) + piece(b"<s>", 0, 3) + piece(b"</s>", 0, 3) +
              piece(b"<0x41>", 0, 6) + piece(b"a", -1, 1) + piece(b"b", -2, 4))
    normalizer = field(3, field(2, b"map") + field(3, 1) + field(4, 0))
    bpe = field(2, field(3, 2) + field(35, 1) + field(41, 1) + field(42, 2)) + normalizer
    return {"unigram": pieces, "bpe": pieces + bpe}


def config_seeds():
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
             "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
             "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "head_dim": 16}

    def config(name, **keys):
        return sizes | {"architectures": [name + "ForCausalLM"]} | keys

    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
              "high_freq_factor": 4.0, "original_max_position_embeddings": 2048}
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024,
            "beta_fast": 32, "beta_slow": 1, "mscale": 1.0}
    longrope = {"type": "longrope", "short_factor": [1.0] * 6, "long_factor": [2.0] * 6}
    configs = {
        "llama": config("Llama", rope_theta=5e5, rope_scaling=llama3, tie_word_embeddings=True),
        "qwen2": config("Qwen2", rope_scaling=yarn, use_sliding_window=True, sliding_window=256,
                        max_window_layers=2),
        "phi3": config("Phi3", rope_scaling=longrope, partial_rotary_factor=0.75,
                       original_max_position_embeddings=1024, sliding_window=2047),
        "gemma2": config("Gemma2", sliding_window=128, attn_logit_softcapping=50.0,
                         final_logit_softcapping=30.0, query_pre_attn_scalar=16,
                         hidden_activation="gelu_pytorch_tanh"),
        "granite": config("Granite", attention_multiplier=0.1, residual_multiplier=0.2,
                          embedding_multiplier=12.0, logits_scaling=8.0),
        "gemma3": {"architectures": ["Gemma3ForConditionalGeneration"],
                   "text_config": sizes | {"model_type": "gemma3_text", "sliding_window": 64,
                                           "rope_scaling": {"rope_type": "linear", "factor": 8}}},
    }
    return {name: json.dumps(value, separators=(",", ":")).encode()
            for name, value in configs.items()}


def main():
    seeds = {"config": config_seeds(), "gguf": gguf_seeds(), "safetensors": safetensors_seeds(),
             "tokenizer_json": tokenizer_json_seeds(), "sentencepiece": sentencepiece_seeds()}
    for target, files in seeds.items():
        folder = CORPUS / target
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
