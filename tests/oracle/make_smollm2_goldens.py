"""Writes tests/fixtures/models/smollm2.json: logits of llama.cpp for SmolLM2-135M-Instruct Q4_1.

    pip install llama-cpp-python numpy
    python tests/oracle/make_smollm2_goldens.py MODEL.gguf tests/fixtures/models/smollm2.json
"""

import ctypes
import json
import sys

import llama_cpp
import numpy as np

PROMPTS = [
    "The capital of France is",
    "Water boils at 100 degrees Celsius, which is 212 degrees",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "<|im_start|>user\nWhat is the largest planet in our solar system?<|im_end|>\n"
    "<|im_start|>assistant\n",
    "One two three four five six seven eight nine ten. " * 12 + "One two three",
]
SAMPLE_STEP = 64  # every so many-th logit is kept
TOP = 8


def logits_of(model, context, tokens):
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
    array = (ctypes.c_int32 * len(tokens))(*tokens)
    if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(array, len(tokens))) != 0:
        raise RuntimeError("llama_decode failed")
    vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    return np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, -1), (vocab,)).copy()


def tokenize(model, text):
    vocab = llama_cpp.llama_model_get_vocab(model)
    raw = text.encode()
    buffer = (ctypes.c_int32 * 1024)()
    count = llama_cpp.llama_tokenize(vocab, raw, len(raw), buffer, 1024, False, True)
    return list(buffer[:count])


def main(model_path, output):
    quiet = llama_cpp.llama_log_callback(lambda *arguments: None)
    llama_cpp.llama_log_set(quiet, None)
    llama_cpp.llama_backend_init()
    model_params = llama_cpp.llama_model_default_params()
    model_params.use_extra_bufts = False  # repacked weights would be computed in another precision
    model = llama_cpp.llama_model_load_from_file(model_path.encode(), model_params)
    context_params = llama_cpp.llama_context_default_params()
    context_params.n_ctx = 1024
    context_params.n_threads = context_params.n_threads_batch = 2
    context = llama_cpp.llama_init_from_model(model, context_params)
    cases = []
    for prompt in PROMPTS:
        tokens = tokenize(model, prompt)
        logits = logits_of(model, context, tokens)
        top = np.argsort(-logits)[:TOP]
        cases.append(dict(
            prompt=prompt, tokens=tokens, top=top.tolist(),
            top_logits=[float(f"{x:.6g}") for x in logits[top]],
            sample=[float(f"{x:.6g}") for x in logits[::SAMPLE_STEP]]))
    with open(output, "w", encoding="utf-8") as file:
        json.dump(dict(sample_step=SAMPLE_STEP, cases=cases), file, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
