"""Times one layer of decode and prefill attention against PyTorch's cuDNN and FlashAttention.

    cmake --build build --target attention_bench
    python tools/gpu/attention_bench.py build/libattention_bench.so

Shape of decode: 32 query heads, 8 KV heads, head_dim 128, bf16, pages of 16 tokens in random order
(the peers read contiguous KV); and the same with pages of e4m3 codes, which no peer here reads.
CUDA graph replay, in turns, with as many copies of KV as it takes that the L2 cache does not serve
them; medians of 25 replays.
"""

import ctypes
import math
import statistics
import sys

import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

HEADS, KV_HEADS, DIM, PAGE = 32, 8, 128, 16
CACHE_BYTES, REPLAYS = 400e6, 25
LIBRARY = ctypes.CDLL(sys.argv[1])
LIBRARY.bench_workspace.restype = ctypes.c_size_t


def pointer(tensor):
    return ctypes.c_void_p(tensor.data_ptr())


def graph(call, copies, calls):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for i in range(3):
            call(i % copies)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for i in range(calls):
            call(i % copies)
    return captured


def microseconds(graphs, calls):
    times = {name: [] for name in graphs}
    for captured in graphs.values():
        captured.replay()
    for _ in range(REPLAYS):
        for name, captured in graphs.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            captured.replay()
            end.record()
            end.synchronize()
            times[name].append(begin.elapsed_time(end) * 1e3 / calls)
    return {name: statistics.median(values) for name, values in times.items()}


def fp8_pages(pages, kv_heads, dim):
    tiles = torch.randint(0, 256, (pages, kv_heads, 2, PAGE * dim + 4 * PAGE), device="cuda",
                          dtype=torch.uint8)
    codes, scales = tiles[..., :PAGE * dim], tiles[..., PAGE * dim:]
    codes.bitwise_and_(0xf7)  # no NaN
    scales.copy_(torch.full((PAGE,), 0.01, device="cuda").view(torch.uint8))
    return tiles


def check(status):
    if status != 0:
        raise RuntimeError(f"CUDA error {status}")


def measure(batch, context):
    kv_bytes = batch * context * KV_HEADS * DIM * 4
    copies = max(2, min(12, math.ceil(CACHE_BYTES / kv_bytes)))
    calls = max(copies, min(24, int(8e9 // kv_bytes) // copies * copies))
    pages = batch * context // PAGE
    kv = [torch.randn(pages, KV_HEADS, 2, PAGE, DIM, device="cuda", dtype=torch.bfloat16)
          for _ in range(copies)]
    kv_fp8 = [fp8_pages(pages, KV_HEADS, DIM) for _ in range(copies)]
    ids = torch.randperm(pages, device="cuda").int()
    keys = torch.full((batch,), context, dtype=torch.int32, device="cuda")
    q = torch.randn(batch, HEADS, 1, DIM, device="cuda", dtype=torch.bfloat16)
    out = torch.empty(batch, HEADS, DIM, device="cuda")
    lse = torch.empty(batch, HEADS, device="cuda")
    workspace = torch.zeros(LIBRARY.bench_workspace(batch, HEADS, KV_HEADS, DIM),
                            dtype=torch.uint8, device="cuda")

    def decode(tiles, fp8):
        check(LIBRARY.bench_paged_decode(
            pointer(tiles), fp8, HEADS, KV_HEADS, DIM, pointer(ids), pointer(keys),
            context // PAGE, batch, pointer(q), ctypes.c_float(DIM ** -0.5), pointer(out),
            pointer(lse), pointer(workspace),
            ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)))

    views = [pages_.view(2, batch, KV_HEADS, context, DIM) for pages_ in kv]
    graphs = {"reprise": graph(lambda i: decode(kv[i], False), copies, calls),
              "fp8": graph(lambda i: decode(kv_fp8[i], True), copies, calls)}
    for name, backend in (("cuDNN", SDPBackend.CUDNN_ATTENTION),
                          ("flash", SDPBackend.FLASH_ATTENTION)):
        def peer(i, backend=backend):
            with sdpa_kernel(backend):
                functional.scaled_dot_product_attention(q, *views[i], enable_gqa=True)
        graphs[name] = graph(peer, copies, calls)
    times = microseconds(graphs, calls)
    best = min(times["cuDNN"], times["flash"])
    print(f"| {context} | {batch} | {times['reprise']:.2f} | {times['cuDNN']:.2f} | "
          f"{times['flash']:.2f} | {times['reprise'] / best:.3f} | "
          f"{kv_bytes / times['reprise'] / 1e3:.0f} | {times['fp8']:.2f} | "
          f"{times['fp8'] / times['reprise']:.3f} | "
          f"{kv_fp8[0].numel() / times['fp8'] / 1e3:.0f} |", flush=True)


def measure_prefill(rows, heads, kv_heads, dim):
    pages = rows // PAGE
    kv = torch.randn(pages, kv_heads, 2, PAGE, dim, device="cuda", dtype=torch.bfloat16)
    kv_fp8 = fp8_pages(pages, kv_heads, dim)
    ids = torch.randperm(pages, device="cuda").int()
    sequence = torch.tensor([0, rows, 0], dtype=torch.int32, device="cuda")  # PrefillRows
    q = torch.randn(rows, heads, dim, device="cuda", dtype=torch.bfloat16)
    out, lse = torch.empty_like(q), torch.empty(rows, heads, device="cuda")
    workspace = torch.zeros(16, dtype=torch.uint8, device="cuda")

    def prefill(tiles, fp8):
        check(LIBRARY.bench_paged_prefill(
            pointer(tiles), fp8, heads, kv_heads, dim, pointer(sequence), pointer(ids), rows,
            pointer(q), ctypes.c_float(dim ** -0.5), pointer(out), pointer(lse),
            pointer(workspace), ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)))

    view, queries = kv.view(2, 1, kv_heads, rows, dim), q.view(1, heads, rows, dim)

    def cudnn(_):
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            functional.scaled_dot_product_attention(queries, *view, is_causal=True,
                                                    enable_gqa=True)

    times = microseconds({"reprise": graph(lambda _: prefill(kv, False), 1, 1),
                          "fp8": graph(lambda _: prefill(kv_fp8, True), 1, 1),
                          "cuDNN": graph(cudnn, 1, 1)}, 1)
    work = 4 * heads * dim * rows * (rows + 1) / 2
    ours, fp8, theirs = (work / times[name] / 1e6 for name in ("reprise", "fp8", "cuDNN"))
    print(f"| {rows} | {dim} | {ours:.0f} | {theirs:.0f} | {ours / theirs:.2f} | {fp8:.0f} | "
          f"{fp8 / ours:.2f} |", flush=True)


def main():
    print("| context | batch | Reprise us | cuDNN us | FlashAttention us | of the best | GB/s | "
          "fp8 us | of bf16 | fp8 GB/s |\n|---|---|---|---|---|---|---|---|---|---|")
    for batch in (1, 8, 32):
        for context in (2048, 8192, 32768, 131072, 262144):
            measure(batch, context)
    print("\n| rows | head_dim | Reprise TFLOP/s | cuDNN TFLOP/s | ratio | fp8 TFLOP/s | "
          "of bf16 |\n|---|---|---|---|---|---|---|")
    for rows, heads, kv_heads, dim in ((8192, 32, 8, 128), (32768, 32, 8, 128),
                                       (131072, 32, 8, 128), (32768, 32, 8, 64),
                                       (16384, 16, 8, 256), (8192, 32, 8, 96)):
        measure_prefill(rows, heads, kv_heads, dim)


if __name__ == "__main__":
    main()
