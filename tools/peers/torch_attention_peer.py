"""Attention kernels that PyTorch and FlashInfer call, timed for `reprise bench --peer torch`.

Reads a request per line on standard input, answers with one JSON object each. CUDA graph replay,
with as many copies of KV in turn as it takes that the L2 cache does not serve them; medians of 9.
cuDNN and FlashAttention (torch) read contiguous KV, FlashInfer pages of 16 tokens in random order.
"""

import json
import math
import statistics
import sys

import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

try:
    import flashinfer
except ImportError:
    flashinfer = None

PAGE, TOUCHED_BYTES, MAX_COPIES, CALLS, GRAPH_BYTES, REPLAYS = 16, 400e6, 12, 24, 8e9, 9
WORKSPACE_BYTES = 512 << 20
SDPA = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "FlashAttention": SDPBackend.FLASH_ATTENTION}
PAGED = {"FlashInfer": False, "FlashInfer fa2": True}  # by whether it uses tensor cores
XQA = "FlashInfer XQA"
KERNELS = list(SDPA) + (list(PAGED) + [XQA] if flashinfer else [])


def graph_of(call, copies, calls):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for copy in range(min(3, copies)):
            call(copy)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for i in range(calls):
            call(i % copies)
    return captured


class Case:
    """KV and queries of one case, and the graphs of the kernels that were asked for."""

    def __init__(self, shape, key):
        self.heads, self.kv_heads, self.dim = shape
        self.key = key
        self.decode, self.context, self.batch = key
        rows = 1 if self.decode else self.context
        self.batch = self.batch if self.decode else 1
        kv_bytes = self.batch * self.context * self.kv_heads * self.dim * 4
        self.copies = min(math.ceil(TOUCHED_BYTES / kv_bytes), MAX_COPIES) if self.decode else 1
        fit = min(CALLS, int(GRAPH_BYTES / kv_bytes))
        self.calls = max(1, fit // self.copies) * self.copies if self.decode else 1
        size = (2, self.batch, self.kv_heads, self.context, self.dim)
        self.kv = [self.random(*size) for _ in range(self.copies)]
        self.q = self.random(self.batch, self.heads, rows, self.dim)
        self.graphs, self.kept = {}, []

    @staticmethod
    def random(*size):
        return torch.empty(*size, device="cuda", dtype=torch.bfloat16).uniform_(-1, 1)

    def sdpa(self, kernel):
        def call(copy):
            with sdpa_kernel(SDPA[kernel]):
                functional.scaled_dot_product_attention(
                    self.q, *self.kv[copy], is_causal=not self.decode, enable_gqa=True)
        return call

    def pages(self, copy):
        """The copy's memory as pages [pages, 2, kv_heads, 16, dim]: its values are noise."""
        return self.kv[copy].view(-1, 2, self.kv_heads, PAGE, self.dim)

    def table(self):
        count = self.batch * self.context // PAGE
        return torch.randperm(count, device="cuda").int()

    def paged(self, kernel):
        starts = torch.arange(self.batch + 1, dtype=torch.int32, device="cuda")
        starts *= self.context // PAGE
        last = torch.full((self.batch,), PAGE, dtype=torch.int32, device="cuda")
        table = self.table()
        workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            workspace, "HND", use_cuda_graph=True, use_tensor_cores=PAGED[kernel],
            paged_kv_indptr_buffer=starts.clone(), paged_kv_indices_buffer=table.clone(),
            paged_kv_last_page_len_buffer=last.clone(),
            backend="fa2" if PAGED[kernel] else "auto")
        wrapper.plan(starts, table, last, self.heads, self.kv_heads, self.dim, PAGE,
                     q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16)
        self.kept.append((wrapper, workspace))
        q = self.q[:, :, 0]
        return lambda copy: wrapper.run(q, self.pages(copy))

    def xqa(self):
        table = self.table().view(self.batch, -1)
        lengths = torch.full((self.batch,), self.context, dtype=torch.int32, device="cuda")
        workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
        q = self.q[:, :, 0].contiguous()
        self.kept.append((table, lengths, workspace, q))
        return lambda copy: flashinfer.decode.xqa_batch_decode_with_kv_cache(
            q, self.pages(copy), workspace, table, lengths, self.context,
            bmm1_scale=self.dim ** -0.5, bmm2_scale=1.0, kv_layout="HND")

    def call_of(self, kernel):
        if kernel in SDPA:
            return self.sdpa(kernel)
        if not self.decode or self.context % PAGE != 0:
            return None  # what is compared of FlashInfer is decoding from whole pages
        return self.xqa() if kernel == XQA else self.paged(kernel)

    def microseconds(self, kernel):
        if kernel not in self.graphs:
            try:
                call = self.call_of(kernel)
                self.graphs[kernel] = call and graph_of(call, self.copies, self.calls)
            except (RuntimeError, ValueError, TypeError, AssertionError) as error:
                print(f"{kernel} does not do this: {str(error)[:300]}", file=sys.stderr)
                self.graphs[kernel] = None
        captured = self.graphs[kernel]
        if captured is None:
            return None
        times = []
        for _ in range(REPLAYS + 1):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            captured.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e3 / self.calls)
        return statistics.median(times[1:])  # the first one warms up


def version():
    names = ["torch " + torch.__version__, f"cuDNN {torch.backends.cudnn.version()}"]
    if flashinfer:
        names.append("FlashInfer " + flashinfer.__version__)
    return ", ".join(names)


class Peer:
    def __init__(self):
        self.shape, self.case = None, None

    def answer(self, request):
        operation = request["op"]
        if operation == "start":
            self.shape = (request["n_head"], request["n_kv_head"], request["head_dim"])
            return {"version": version(), "settings": KERNELS}
        key = (operation == "decode", request["context"], request["batch"])
        if self.case is None or self.case.key != key:
            self.case = None  # frees its memory before the next one's is taken
            torch.cuda.empty_cache()
            self.case = Case(self.shape, key)
        return {"us": self.case.microseconds(KERNELS[request["setting"]])}


def main():
    peer = Peer()
    answers = sys.stdout
    sys.stdout = sys.stderr  # libraries print as they compile
    for line in sys.stdin:
        try:
            result = peer.answer(json.loads(line))
        except Exception as error:  # told to the caller, who decides
            result = {"error": str(error)}
        print(json.dumps(result), file=answers, flush=True)


main()
