"""Measures llama.cpp for `reprise bench --peer llama.cpp`.

One JSON object per line on stdin, one answer per line on stdout. Two contexts are kept, without and
with flash attention, since which of them is faster depends on the context length; a third one has
KV of q8_0 where the engine's is.
"""

import ctypes
import json
import struct
import sys
import time

import llama_cpp

BATCH, UBATCH = 2048, 512
FILL = 4096  # tokens that are really read before decoding is timed
# Name, flash attention, type of K and V (null: the default, f16).
SETTINGS = [("fa=0", 0, None), ("fa=1", 1, None)]
OF_KV_TYPE = {"q8_0": [("fa=1, KV q8_0", 1, llama_cpp.GGML_TYPE_Q8_0)]}


@llama_cpp.llama_log_callback
def log_errors(level, text, _data):
    if level == 4:  # GGML_LOG_LEVEL_ERROR
        sys.stderr.write(text.decode(errors="replace"))


def repeated(state, cells, length):
    """The state of a sequence whose cells hold those of `state` over and over, at positions
    0 to length - 1. Layout: magic, sequence, streams, number of cells; per cell position, number of
    sequences, sequence; transposed V?, number of layers; the K of every layer by rows (type, size
    of a row), then the V (or, transposed: type, size of a value, number of rows).
    """
    head = state[:12]
    if struct.unpack_from("<4xII", state, 4) != (1, cells):
        raise RuntimeError("llama.cpp's state has another layout than expected")
    times = -(-length // cells)
    parts = [head, struct.pack("<I", length)]
    parts += [struct.pack("<iII", position, 1, 0) for position in range(length)]
    at = 16 + 12 * cells
    transposed, layers = struct.unpack_from("<II", state, at)
    parts.append(state[at : at + 8])
    at += 8
    for kind in range(2 * layers):
        by_value = kind >= layers and transposed
        header = "<iII" if by_value else "<iQ"
        fields = struct.unpack_from(header, state, at)
        parts.append(state[at : at + 12])
        at += 12
        rows = fields[2] if by_value else 1
        size = fields[1] * cells
        wanted = fields[1] * length
        for _ in range(rows):
            parts.append((state[at : at + size] * times)[:wanted])
            at += size
    if at != len(state):
        raise RuntimeError("llama.cpp's state has another layout than expected")
    return b"".join(parts)


class Setting:
    """A context of its own."""

    def __init__(self, model, threads, context, flash, kv_type):
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = context
        params.n_batch, params.n_ubatch = BATCH, UBATCH
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = flash
        if kv_type is not None:
            params.type_k = params.type_v = kv_type
        self.ctx = llama_cpp.llama_init_from_model(model, params)
        if not self.ctx:
            raise RuntimeError(f"llama.cpp cannot make a context of {context} tokens")
        self.memory = llama_cpp.llama_get_memory(self.ctx)
        self.held = []  # tokens in the cache

    def read(self, tokens):
        """Computes the tokens from an empty cache; only the last one's logits are wanted."""
        self.held = []
        llama_cpp.llama_memory_clear(self.memory, True)
        batch = llama_cpp.llama_batch_init(BATCH, 0, 1)
        try:
            for start in range(0, len(tokens), BATCH):
                part = tokens[start : start + BATCH]
                batch.n_tokens = len(part)
                for i, token in enumerate(part):
                    batch.token[i] = token
                    batch.pos[i] = start + i
                    batch.n_seq_id[i] = 1
                    batch.seq_id[i][0] = 0
                    batch.logits[i] = start + i == len(tokens) - 1
                if llama_cpp.llama_decode(self.ctx, batch) != 0:
                    raise RuntimeError("llama_decode failed")
            llama_cpp.llama_synchronize(self.ctx)
        finally:
            llama_cpp.llama_batch_free(batch)
        self.held = tokens

    def prefill(self, tokens):
        start = time.perf_counter()
        self.read(tokens)
        return (time.perf_counter() - start) * 1e3

    def fill(self, tokens):
        """Holds len(tokens) tokens, of which those beyond FILL are copies: a step's time depends
        on how many there are, not on what they say, and reading them would take minutes."""
        if self.held == tokens:
            return len(tokens)
        self.read(tokens[:FILL])
        if len(tokens) > FILL:
            state = (ctypes.c_uint8 * llama_cpp.llama_state_seq_get_size(self.ctx, 0))()
            size = llama_cpp.llama_state_seq_get_data(self.ctx, state, len(state), 0)
            longer = repeated(bytes(state[:size]), FILL, len(tokens))
            llama_cpp.llama_memory_clear(self.memory, True)
            data = (ctypes.c_uint8 * len(longer)).from_buffer_copy(longer)
            if llama_cpp.llama_state_seq_set_data(self.ctx, data, len(longer), 0) == 0:
                raise RuntimeError("llama.cpp does not take its state back")
        self.held = tokens
        return len(tokens)

    def decode(self, count):
        vocab = llama_cpp.llama_vocab_n_tokens(
            llama_cpp.llama_model_get_vocab(llama_cpp.llama_get_model(self.ctx))
        )
        times, token = [], self.held[-1]
        for _ in range(count):
            start = time.perf_counter()
            one = (ctypes.c_int32 * 1)(token)
            if llama_cpp.llama_decode(self.ctx, llama_cpp.llama_batch_get_one(one, 1)) != 0:
                raise RuntimeError("llama_decode failed")
            llama_cpp.llama_synchronize(self.ctx)
            times.append((time.perf_counter() - start) * 1e3)
            logits = llama_cpp.llama_get_logits_ith(self.ctx, -1)
            token = max(range(0, vocab, 97), key=lambda t: logits[t])  # any token costs the same
        llama_cpp.llama_memory_seq_rm(self.memory, 0, len(self.held), -1)
        return times


def has_amx():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as cpuinfo:
            return " amx_tile" in cpuinfo.read()
    except OSError:
        return False


def load(request):
    llama_cpp.llama_log_set(log_errors, None)
    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_default_params()
    params.use_extra_bufts = not has_amx()  # with them it crashes on some CPUs that have AMX
    model = llama_cpp.llama_model_load_from_file(request["model"].encode(), params)
    if not model:
        raise RuntimeError(f"llama.cpp cannot load {request['model']}")
    wanted = SETTINGS + OF_KV_TYPE.get(request["kv_type"], [])
    own = (model, request["threads"], request["context"])
    return {name: Setting(*own, flash, kv_type) for name, flash, kv_type in wanted}


def answer(settings, request):
    operation = request["op"]
    if operation == "start":
        loaded = load(request)
        settings.extend(loaded.values())
        version = "llama-cpp-python " + llama_cpp.__version__
        return {"version": version, "settings": list(loaded)}
    setting = settings[request["setting"]]
    if operation == "prefill":
        return {"ms": setting.prefill(request["tokens"])}
    if operation == "fill":
        return {"filled": setting.fill(request["tokens"])}
    return {"ms": setting.decode(request["n"])}


def main():
    settings = []
    for line in sys.stdin:
        try:
            result = answer(settings, json.loads(line))
        except Exception as error:  # told to the caller, who decides
            result = {"error": str(error)}
        print(json.dumps(result), flush=True)


main()
