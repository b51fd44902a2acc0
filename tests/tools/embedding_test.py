"""Another CMake project takes this one in with add_subdirectory, as README.md says."""

import json
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROJECT = f"""
cmake_minimum_required(VERSION 3.22)
project(mine LANGUAGES CXX)
add_subdirectory("{ROOT}" reprise)
add_executable(hello "{ROOT}/examples/hello.cc")  # a name that this project has, too
target_link_libraries(hello PRIVATE reprise::engine)
"""


class EmbeddingTest(unittest.TestCase):
    def test_gives_the_library_and_its_public_headers_alone(self):
        with tempfile.TemporaryDirectory(suffix=" with a space") as name:
            folder = pathlib.Path(name)
            (folder / "CMakeLists.txt").write_text(PROJECT)
            done = subprocess.run(
                ["cmake", "-S", name, "-B", str(folder / "build"), "-DREPRISE_CUDA=OFF",
                 "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            commands = json.loads((folder / "build" / "compile_commands.json").read_text())
            of_file = {pathlib.Path(entry["file"]): entry["command"] for entry in commands}
            mine = of_file.pop(ROOT / "examples" / "hello.cc")
            self.assertIn(f"{ROOT}/include", mine)
            self.assertNotIn(f"{ROOT}/src", mine)
            layers = {path.relative_to(ROOT / "src").parts[0] for path in of_file}
            self.assertIn("engine", layers)
            self.assertFalse(layers & {"cli", "bench", "eval"}, "parts of the program")


if __name__ == "__main__":
    unittest.main()
