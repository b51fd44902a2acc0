"""Answers the prompts of `reprise eval --prompts FILE` with llama.cpp and holds both side by side.

    reprise eval --tasks needle,fidelity --policy full --prompts prompts.jsonl --out run.jsonl ...
    .venv-peer/bin/python tools/peers/eval_llama_cpp.py MODEL prompts.jsonl run.jsonl [DATA]

Same weights, same token ids, greedy: answers can part where two tokens are nearly as likely. With
DATA, the answers of both to LongBench and GSM8K are also scored by their published definitions.
"""

import json
import math
import sys

import llama_cpp
import numpy

STEP = 512
# The published score among those that Reprise gives to a task's answers.
SCORES = ("f1", "rougeL_lb", "classification_quirk", "count", "retrieval", "edit_sim", "strict")


class Model:
    def __init__(self, path, context):
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.use_extra_bufts = False  # with them this build crashes on some CPUs that have AMX
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), params)
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.size = llama_cpp.llama_vocab_n_tokens(self.vocab)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = context
        params.n_batch = params.n_ubatch = STEP
        self.ctx = llama_cpp.llama_init_from_model(self.model, params)
        self.memory = llama_cpp.llama_get_memory(self.ctx)
        self.batch = llama_cpp.llama_batch_init(STEP, 0, 1)

    def feed(self, tokens, position, logits_from):
        """Computes tokens at position; returns the logits [vocab] of each from logits_from on."""
        rows = []
        for start in range(0, len(tokens), STEP):
            part = tokens[start : start + STEP]
            self.batch.n_tokens = len(part)
            for i, token in enumerate(part):
                self.batch.token[i] = token
                self.batch.pos[i] = position + start + i
                self.batch.n_seq_id[i] = 1
                self.batch.seq_id[i][0] = 0
                self.batch.logits[i] = start + i >= logits_from
            if llama_cpp.llama_decode(self.ctx, self.batch) != 0:
                raise RuntimeError("llama_decode failed")
            for i in range(max(0, logits_from - start), len(part)):
                pointer = llama_cpp.llama_get_logits_ith(self.ctx, i)
                rows.append(numpy.ctypeslib.as_array(pointer, (self.size,)).astype(numpy.float64))
        return rows

    def read(self, tokens, logits_from):
        llama_cpp.llama_memory_clear(self.memory, True)
        return self.feed(tokens, 0, logits_from)

    def nll(self, prompt, targets):
        """Mean negative log likelihood of targets after prompt."""
        text = prompt + targets[:-1]
        rows = self.read(text, len(prompt) - 1)
        total = 0.0
        for logits, target in zip(rows, targets):
            top = logits.max()
            total += top + math.log(numpy.exp(logits - top).sum()) - logits[target]
        return total / len(targets)

    def answer(self, prompt, count, stop):
        logits, position, text = self.read(prompt, len(prompt) - 1)[-1], len(prompt), b""
        for _ in range(count):
            token = int(logits.argmax())
            if llama_cpp.llama_vocab_is_eog(self.vocab, token):
                break
            text += self.piece(token)
            stops = [text.find(s.encode()) for s in stop if s.encode() in text]
            if stops:
                return text[: min(stops)]
            logits = self.feed([token], position, 0)[-1]
            position += 1
        return text

    def piece(self, token):
        buffer = (llama_cpp.ctypes.c_char * 256)()
        size = llama_cpp.llama_token_to_piece(self.vocab, token, buffer, 256, 0, False)
        return buffer.raw[:size]


def published(prompt, prediction, data):
    """The score that a task's own evaluation code gives, or None."""
    from published_metrics import gsm8k, longbench
    if prompt["task"] == "gsm8k":
        return gsm8k(prediction, prompt["references"][0])
    if prompt["task"] == "longbench":
        return longbench(prompt["id"].split("/")[0], prediction, prompt["references"], data)
    return None


def main():
    model_path, prompts_path, run_path = sys.argv[1:4]
    data = sys.argv[4] if len(sys.argv) > 4 else None
    ours, full = {}, None
    for line in open(run_path, encoding="utf-8"):
        record = json.loads(line)
        if record["type"] == "run" and record["policy"] == "full":
            full = record["id"]
        if record["type"] == "sample" and record["run"] == full:
            ours[record["task"], record["id"]] = record
    prompts = [json.loads(line) for line in open(prompts_path, encoding="utf-8")]
    longest = max(len(p.get("prompt", p.get("tokens", []))) + p.get("max_tokens", 0)
                  for p in prompts)
    model = Model(model_path, longest + 64)
    rows = {}
    for number, prompt in enumerate(prompts):
        print(f"\r{number + 1} of {len(prompts)}", end="", file=sys.stderr, flush=True)
        record = ours[prompt["task"], prompt["id"]]
        row = rows.setdefault(prompt["task"], {"n": 0, "same": [], "nll": [], "hit": [],
                                              "score": []})
        row["n"] += 1
        if "tokens" in prompt:
            first = prompt["first"] + 1
            targets = prompt["tokens"][first : first + prompt["steps"]]
            nll = model.nll(prompt["tokens"][:first], targets)
            row["nll"].append((record["scores"]["nll"], nll))
            continue
        text = model.answer(prompt["prompt"], prompt["max_tokens"], prompt["stop"])
        text = text.decode(errors="replace")
        row["same"].append(text.strip() == record["prediction"].strip())
        contained = [any(r.lower() in t.lower() for r in prompt["references"])
                     for t in (record["prediction"], text)]
        row["hit"].append(contained)
        if data and prompt["task"] in ("longbench", "gsm8k"):
            own = next(record["scores"][name] for name in SCORES if name in record["scores"])
            row["score"].append([own, published(prompt, record["prediction"], data),
                                 published(prompt, text, data)])
        if prompt["gold"] and "nll" in record["scores"]:
            nll = model.nll(prompt["prompt"], prompt["gold"])
            row["nll"].append((record["scores"]["nll"], nll))
    print(file=sys.stderr)
    print("| task | n | same answer | contains a reference: Reprise, llama.cpp | NLL: Reprise, "
          "llama.cpp | largest difference | score: Reprise, its answers by the published code, "
          "llama.cpp's by the published code |\n|---|---|---|---|---|---|---|")
    for task, row in rows.items():
        same = f"{sum(row['same'])}" if row["same"] else "-"
        hit = "{}, {}".format(*numpy.sum(row["hit"], axis=0)) if row["hit"] else "-"
        a, b = numpy.array(row["nll"]).T if row["nll"] else ([0], [0])
        nll = f"{numpy.mean(a):.4f}, {numpy.mean(b):.4f}" if row["nll"] else "-"
        means = numpy.mean(row["score"], axis=0) if row["score"] else []
        score = ", ".join(f"{mean:.4f}" for mean in means) or "-"
        print(f"| {task} | {row['n']} | {same} | {hit} | {nll} | "
              f"{max(abs(x - y) for x, y in zip(a, b)):.4f} | {score} |")


main()
