"""tools/import_predictor.py on archives laid out as the published ones."""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest
import zipfile

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools" / "import_predictor.py"
SIZES = [144, 16, 4608, 32, 32, 1]  # numbers of each tensor
METADATA = {"format": "reprise forecast", "model": "a model", "block": "16", "pool": "sum",
            "rows": "16", "form": "residual", "seed": "1"}


class ImportPredictor(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)
        header = json.dumps({"__metadata__": METADATA}).encode()
        (self.path / "like").write_bytes(struct.pack("<Q", len(header)) + header)

    def run_tool(self, sizes, byteorder=b"little"):
        """Its outcome for tensors of these sizes that count on from one to the next."""
        with zipfile.ZipFile(self.path / "in.pth", "w") as archive:
            archive.writestr("best_model/data.pkl", b"cos\nsystem\n(S'false'\ntR.")  # is not run
            archive.writestr("best_model/byteorder", byteorder)
            at = 0
            for number, size in enumerate(sizes):
                values = struct.pack(f"<{size}f", *range(at, at + size))
                archive.writestr(f"best_model/data/{number}", values)
                at += size
        return subprocess.run([sys.executable, TOOL, self.path / "in.pth", "--like",
                               self.path / "like", "-o", self.path / "out"],
                              capture_output=True, text=True, check=False)

    def test_keeps_every_number(self):
        self.assertEqual(self.run_tool(SIZES).returncode, 0)
        content = (self.path / "out").read_bytes()
        (length,) = struct.unpack_from("<Q", content)
        header = json.loads(content[8:8 + length])
        self.assertEqual(header.pop("__metadata__"),
                         {"format": "reprise forecast", "model": "a model", "block": "16",
                          "pool": "max", "rows": "64", "form": "published"})
        self.assertEqual(header["conv2.weight"]["shape"], [32, 16, 3, 3])
        first = 0
        for tensor, size in zip(header.values(), SIZES):
            begin, end = tensor["data_offsets"]
            values = struct.unpack(f"<{size}f", content[8 + length:][begin:end])
            self.assertEqual(values, tuple(range(first, first + size)))
            first += size

    def test_refuses_other_layouts(self):
        for sizes in (SIZES[:5], SIZES + [1], SIZES[::-1], [144, 16, 4608, 32, 33, 1]):
            refused = self.run_tool(sizes)
            self.assertEqual(refused.returncode, 1)
            self.assertTrue(refused.stderr.startswith("import_predictor: "), refused.stderr)
        self.assertIn("little-endian", self.run_tool(SIZES, b"big").stderr)
        (self.path / "in.pth").write_bytes(b"no archive")
        self.assertFalse((self.path / "out").exists())


if __name__ == "__main__":
    unittest.main()
