#!/usr/bin/env python3
"""Makes a network for `attention_predictor:mode=paper` of one that AttentionPredictor's authors
published.

    tools/import_predictor.py best_model.pth --like net.safetensors -o cnn.safetensors

best_model.pth: of MIRALab-USTC/LLM-AttentionPredictor, model/CNN_*; its pickle is not run.
net.safetensors: a network of `reprise train predictor` for the model that the imported one is to
serve, whose name is taken from there. The published ones are for Llama-3.1-8B-Instruct and
LongChat-7B.
"""

import argparse
import json
import pathlib
import struct
import sys
import zipfile

TENSORS = {  # in the order of the archive
    "conv1.weight": [16, 1, 3, 3],
    "conv1.bias": [16],
    "conv2.weight": [32, 16, 3, 3],
    "conv2.bias": [32],
    "conv3.weight": [1, 32, 1],
    "conv3.bias": [1],
}
ROWS = 64  # of history, which the published networks see
COPIED = ("format", "model", "block")


def elements(shape):
    count = 1
    for size in shape:
        count *= size
    return count


def read_archive(path):
    """The tensors' bytes, little-endian float32. ValueError: not the published layout."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        root = names[0].split("/")[0]
        if f"{root}/byteorder" in names and archive.read(f"{root}/byteorder") != b"little":
            raise ValueError("numbers are not little-endian")
        stored = [name for name in names if name.startswith(f"{root}/data/")]
        if len(stored) != len(TENSORS):
            raise ValueError(f"{len(stored)} tensors, not {len(TENSORS)}")
        values = {}
        for number, (name, shape) in enumerate(TENSORS.items()):
            entry = f"{root}/data/{number}"
            size = archive.getinfo(entry).file_size if entry in names else 0
            if size != 4 * elements(shape):
                raise ValueError(f"{name} has {size} bytes, not {4 * elements(shape)}")
            values[name] = archive.read(entry)
    return values


def read_metadata(path):
    content = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    return json.loads(content[8:8 + length]).get("__metadata__", {})


def network(values, like):
    """The file's bytes."""
    header = {"__metadata__": {key: like[key] for key in COPIED}}
    header["__metadata__"].update(pool="max", rows=str(ROWS), form="published")
    at = 0
    for name, shape in TENSORS.items():
        end = at + len(values[name])
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(values.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archive")
    parser.add_argument("--like", required=True, metavar="FILE")
    parser.add_argument("-o", "--out", required=True, metavar="FILE")
    arguments = parser.parse_args()
    try:
        made = network(read_archive(arguments.archive), read_metadata(arguments.like))
        pathlib.Path(arguments.out).write_bytes(made)
    except (OSError, ValueError, KeyError, IndexError, struct.error, zipfile.BadZipFile) as error:
        print(f"import_predictor: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
