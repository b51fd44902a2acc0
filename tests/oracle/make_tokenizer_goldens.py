"""Trains small tokenizers and records what the reference libraries make of the texts.

Needs PyPI's tokenizers and sentencepiece:
    python make_tokenizer_goldens.py ../fixtures/tokenizers
"""

import io
import json
import pathlib
import sys

import sentencepiece
from tokenizer_texts import TEXTS, TRAINING
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def train(tokenizer, size, specials=(), alphabet=()):
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(specials),
                                  initial_alphabet=list(alphabet), show_progress=False)
    tokenizer.train_from_iterator(TRAINING, trainer)
    return tokenizer


def byte_level(size, steps, specials=("<|im_start|>", "<|im_end|>"), normalizer=None):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    return train(tokenizer, size, specials, pre_tokenizers.ByteLevel.alphabet())


def gpt2():
    return byte_level(400, [pre_tokenizers.ByteLevel(add_prefix_space=False)])


def llama3():
    steps = [pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
             pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    tokenizer = byte_level(400, steps, ["<|begin_of_text|>", "<|end_of_text|>"])
    document = json.loads(tokenizer.to_str())
    # A merge less: its token is reached only because ignore_merges looks at whole pieces.
    document["model"]["ignore_merges"] = True
    document["model"]["merges"] = document["model"]["merges"][:-20]
    tokenizer = Tokenizer.from_str(json.dumps(document))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", pair=None, special_tokens=[("<|begin_of_text|>", 0)])
    return tokenizer


def qwen2():
    steps = [pre_tokenizers.Split(Regex(QWEN2), "isolated"),
             pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    tokenizer = byte_level(400, steps, normalizer=normalizers.NFC())
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False, special=False),
                          AddedToken("wordsep", single_word=True),
                          AddedToken("ÅBC", normalized=True)])
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=False),
                                  AddedToken("</tool_call>", rstrip=True)])
    return tokenizer


def falcon():
    return byte_level(400, [pre_tokenizers.Punctuation("contiguous"),
                            pre_tokenizers.ByteLevel(add_prefix_space=True),
                            pre_tokenizers.Digits(individual_digits=False),
                            pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")])


def deepseek():
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated")
             for pattern in [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+"]]
    steps += [pre_tokenizers.Digits(individual_digits=True),
              pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    return byte_level(400, steps)


def byte_fallback_bpe(normalizer, pre_tokenizer, decoder):
    """A character BPE as Llama 2 has it; trained on words, used without cutting into words."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    train(tokenizer, 250)
    document = json.loads(tokenizer.to_str())
    offset = 3 + len(BYTES)
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    vocab |= {byte: 3 + i for i, byte in enumerate(BYTES)}
    vocab |= {token: offset + i for token, i in document["model"]["vocab"].items()}
    merges = [tuple(merge) for merge in document["model"]["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True,
                                     byte_fallback=True))
    specials = ["<unk>", "<s>", "</s>"]
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in specials])
    tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoder
    return tokenizer


def llama2():
    tokenizer = byte_fallback_bpe(
        normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), None,
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                           decoders.Strip(" ", 1, 0)]))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair=None, special_tokens=[("<s>", 1)])
    return tokenizer


def gemma():
    tokenizer = byte_fallback_bpe(
        normalizers.Replace(" ", "▁"), pre_tokenizers.Split(" ", "merged_with_previous"),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]))
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in ["\n\n", "▁▁", "▁▁▁▁"]])
    return tokenizer


def mixed():
    """Characters without tokens become fused unknown tokens; most other components once."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(),
                                                 normalizers.Lowercase(), normalizers.Strip(),
                                                 normalizers.Replace(Regex("o+"), "0")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Whitespace(),
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.Punctuation("merged_with_next"),
        pre_tokenizers.Split("th", "merged_with_next"),
        pre_tokenizers.Split(Regex("[aeiou]"), "merged_with_previous"),
        pre_tokenizers.Split("q", "removed"), pre_tokenizers.Split(Regex("[b-d]"), "contiguous"),
        pre_tokenizers.Split(Regex("[w-z]+"), "isolated", invert=True)])
    tokenizer.decoder = decoders.Fuse()
    return train(tokenizer, 200, ["<unk>"])


def unigram():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trainer = trainers.UnigramTrainer(vocab_size=250, special_tokens=["<unk>", "</s>"],
                                      unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(TRAINING, trainer)
    document = json.loads(tokenizer.to_str())
    document["model"]["vocab"] += [[byte, -20.0] for byte in BYTES]
    document["model"]["byte_fallback"] = True
    tokenizer = Tokenizer.from_str(json.dumps(document))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return tokenizer


def record(tokenizer):
    """For each text: ids with special tokens as text, and with them parsed where that differs."""
    cases = []
    for text in TEXTS:
        if isinstance(tokenizer.model, models.Unigram) and ("<0x" in text or "</s>" in text):
            cases.append({})  # there, the spelling of a byte or special token becomes the token
            continue
        parsed = tokenizer.encode(text, add_special_tokens=True).ids
        tokenizer.encode_special_tokens = True
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        tokenizer.encode_special_tokens = False
        cases.append({"plain": plain} | ({"parsed": parsed} if parsed != plain else {}))
    return cases


def sentencepiece_model(folder, name, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TRAINING), model_writer=model, byte_fallback=True,
        minloglevel=2, **options)
    (folder / f"{name}.model").write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return [{"plain": processor.encode(text)} for text in TEXTS]


def main():
    folder = pathlib.Path(sys.argv[1])
    goldens = {"texts": TEXTS, "tokenizers": {}}
    for make in [gpt2, llama3, qwen2, falcon, deepseek, llama2, gemma, mixed, unigram]:
        tokenizer = make()
        tokenizer.save(str(folder / f"{make.__name__}.json"), pretty=False)
        goldens["tokenizers"][f"{make.__name__}.json"] = record(tokenizer)
    rules = folder / "rules.tsv"
    rules.write_text("41\t61\nDF\t73 73\nFB01\t66 69\nA0\t20\n3000\t20\n9\t20\n")
    models_ = {
        "spm_bpe": dict(model_type="bpe", vocab_size=450, normalization_rule_name="identity",
                        remove_extra_whitespaces=False, user_defined_symbols=["<tool_call>"]),
        "spm_unigram": dict(model_type="unigram", vocab_size=450, hard_vocab_limit=False,
                            normalization_rule_tsv=str(rules)),
    }
    for name, options in models_.items():
        goldens["tokenizers"][f"{name}.model"] = sentencepiece_model(folder, name, **options)
    rules.unlink()
    text = json.dumps(goldens, ensure_ascii=True, separators=(",", ":"))
    (folder / "goldens.json").write_text(text.replace('"tokenizers":', '\n"tokenizers":')
                                         .replace('],"', '],\n"') + "\n")


main()
