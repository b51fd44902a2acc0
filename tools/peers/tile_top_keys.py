#!/usr/bin/env python3
"""Times two other ways to the keys with the largest products with queries, on one GPU, beside
tools/gpu/top_keys_bench.cu and in its shapes.

tiles: one winner for every 128 keys, merged into a running top 4 while keys are scanned, as
the kernel published with ReAttention (arXiv 2407.15176) does; of several best keys in a tile
it finds one. matrix: scores as a matrix, then torch.topk.

    python3 tile_top_keys.py [keys ...]       needs torch and triton
"""

import sys

import torch
import triton
import triton.language as tl

KEYS_OF_TILE, PICKS = 128, 4


@triton.autotune(
    configs=[triton.Config({"ROWS": rows}, num_warps=warps, num_stages=stages)
             for rows in (64, 128) for warps in (4, 8) for stages in (2, 3, 4)],
    key=["keys", "DIM"])
@triton.jit
def tile_winners(q, k, scores, found, rows, keys, group, DIM: tl.constexpr, ROWS: tl.constexpr,
                 TILE: tl.constexpr):
    head = tl.program_id(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    dim = tl.arange(0, DIM)
    here = row < rows
    own = tl.load(q + (head * rows + row[:, None]) * DIM + dim[None, :], mask=here[:, None])
    base = k + (head // group).to(tl.int64) * keys * DIM
    s0 = tl.full([ROWS], -float("inf"), tl.float32)
    s1, s2, s3 = s0, s0, s0
    i0 = tl.zeros([ROWS], tl.int32)
    i1, i2, i3 = i0, i0, i0
    for start in range(0, keys, TILE):
        at = start + tl.arange(0, TILE)
        tile = tl.load(base + at[None, :].to(tl.int64) * DIM + dim[:, None])
        products = tl.dot(own, tile)
        s, i = tl.max(products, 1, return_indices=True)
        i += start
        above = s > s3  # it goes to its place among the four
        s3, i3 = tl.where(above, s, s3), tl.where(above, i, i3)
        above = s3 > s2
        s2, s3 = tl.where(above, s3, s2), tl.where(above, s2, s3)
        i2, i3 = tl.where(above, i3, i2), tl.where(above, i2, i3)
        above = s2 > s1
        s1, s2 = tl.where(above, s2, s1), tl.where(above, s1, s2)
        i1, i2 = tl.where(above, i2, i1), tl.where(above, i1, i2)
        above = s1 > s0
        s0, s1 = tl.where(above, s1, s0), tl.where(above, s0, s1)
        i0, i1 = tl.where(above, i1, i0), tl.where(above, i0, i1)
    to = (head * rows + row) * 4
    tl.store(scores + to, s0, mask=here)
    tl.store(scores + to + 1, s1, mask=here)
    tl.store(scores + to + 2, s2, mask=here)
    tl.store(scores + to + 3, s3, mask=here)
    tl.store(found + to, i0, mask=here)
    tl.store(found + to + 1, i1, mask=here)
    tl.store(found + to + 2, i2, mask=here)
    tl.store(found + to + 3, i3, mask=here)


def tiles(q, k):
    """q: [heads, rows, dim], k: [kv_heads, keys, dim]; scores and keys [heads, rows, PICKS]."""
    heads, rows, dim = q.shape
    scores = torch.empty(heads, rows, PICKS, device="cuda")
    found = torch.empty(heads, rows, PICKS, device="cuda", dtype=torch.int32)
    tile_winners[lambda meta: (triton.cdiv(rows, meta["ROWS"]), heads)](
        q, k, scores, found, rows, k.shape[1], heads // k.shape[0], DIM=dim, TILE=KEYS_OF_TILE)
    return scores, found


def matrix(q, k, picks):
    heads, rows, dim = q.shape
    products = torch.matmul(q.reshape(k.shape[0], -1, dim), k.transpose(1, 2))
    return torch.topk(products, picks, dim=-1)


def microseconds(call):
    return triton.testing.do_bench(call, warmup=30, rep=200, quantiles=[0.5]) * 1e3


def main():
    sizes = [int(size) for size in sys.argv[1:]] or [65536, 131072, 1048576]
    torch.manual_seed(1)
    print(torch.cuda.get_device_name())
    for name, heads, kv_heads, dim in (("SmolLM2-135M", 9, 3, 64), ("Llama-8B", 32, 8, 128)):
        for keys in sizes:
            k = torch.randn(kv_heads, keys, dim, device="cuda", dtype=torch.bfloat16)
            q = torch.randn(heads, 512, dim, device="cuda", dtype=torch.bfloat16)
            fast = microseconds(lambda: tiles(q, k))
            flops = 2.0 * keys * dim * heads * 512
            exact = torch.topk(q[0].float() @ k[0].float().T, PICKS).indices
            share = (tiles(q, k)[1][0].unsqueeze(-1) == exact.unsqueeze(-2)).any(-2).float().mean()
            print(f"{name:12} {keys:9} keys  512 rows k {PICKS:<3} tiles {fast:10.1f} us "
                  f"{flops / fast * 1e-6:7.1f} TFLOP/s, finds {share:.3f}")
            one = q[:, :1].contiguous()
            for picks in (4, 16):
                slow = microseconds(lambda: matrix(one, k, picks))
                print(f"{name:12} {keys:9} keys    1 row  k {picks:<3} matrix {slow:9.1f} us")


if __name__ == "__main__":
    main()
