"""Writes tests/fixtures/quant/TYPE.bin: random blocks and what the gguf package reads from them.

Each file is the raw bytes of one row, then its values as little-endian float32. Needs
`pip install gguf numpy`; the fixtures are committed, so tests do not.
"""

import pathlib

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import quants

# Offsets of the f16 fields inside a block (scale d, then the minimum if there is one).
HALVES = {
    Type.Q8_0: (34, 32, [0]),
    Type.Q4_0: (18, 32, [0]),
    Type.Q4_1: (20, 32, [0, 2]),
    Type.Q5_0: (22, 32, [0]),
    Type.Q5_1: (24, 32, [0, 2]),
    Type.Q2_K: (84, 256, [80, 82]),
    Type.Q3_K: (110, 256, [108]),
    Type.Q4_K: (144, 256, [0, 2]),
    Type.Q5_K: (176, 256, [0, 2]),
    Type.Q6_K: (210, 256, [208]),
    Type.IQ4_NL: (18, 32, [0]),
    Type.F16: (2, 1, [0]),
    Type.BF16: (2, 1, []),
    Type.F32: (4, 1, []),
}
COLUMNS = 512


def main() -> None:
    folder = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "quant"
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(20240607)
    for kind, (block_bytes, block, halves) in HALVES.items():
        blocks = random.integers(0, 256, (COLUMNS // block, block_bytes), dtype=np.uint8)
        for offset in halves:
            field = random.normal(0, 0.01, len(blocks)).astype(np.float16)
            blocks[:, offset : offset + 2] = field.view(np.uint8).reshape(-1, 2)
        if kind in (Type.BF16, Type.F32):
            values = random.normal(0, 1, COLUMNS).astype(np.float32)
            first = 0 if kind is Type.F32 else 2
            raw = values.view(np.uint8).reshape(-1, 4)[:, first:]
            blocks = np.ascontiguousarray(raw)
        row = blocks.reshape(1, -1)
        expected = np.asarray(quants.dequantize(row, kind), dtype="<f4")
        (folder / f"{kind.name}.bin").write_bytes(row.tobytes() + expected.tobytes())


if __name__ == "__main__":
    main()
