"""Records what llama.cpp makes of the texts with SmolLM2's tokenizer.

Needs PyPI's llama-cpp-python:
    python make_smollm2_tokens.py MODEL.gguf ../fixtures/tokenizers/smollm2.json
"""

import json
import pathlib
import sys

import llama_cpp
from tokenizer_texts import TEXTS


def main():
    model = llama_cpp.Llama(model_path=sys.argv[1], vocab_only=True, verbose=False)
    cases = []
    for text in TEXTS:
        data = text.encode()
        plain = model.tokenize(data, add_bos=False, special=False)
        parsed = model.tokenize(data, add_bos=False, special=True)
        cases.append({"plain": plain} | ({"parsed": parsed} if parsed != plain else {}))
    document = {"texts": TEXTS, "cases": cases}
    text = json.dumps(document, ensure_ascii=True, separators=(",", ":"))
    pathlib.Path(sys.argv[2]).write_text(text.replace('],"', '],\n"') + "\n")


main()
