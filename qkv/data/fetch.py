"""Download public files into the cache: bounded in size, verified, and complete or not stored.

The file is written under a temporary name and gets its own only when it is complete and right. Its SHA-256 stands beside
it, and each later use compares: what was measured yesterday is measured on the same bytes today.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from qkv.errors import FileError

CHUNK = 1 << 18
TIMEOUT = 30
"""Seconds without an answer."""
LOCAL = ("localhost", "127.0.0.1", "::1")


def cache() -> Path:
    """Where fetched data is kept: $QKV_CACHE, or ~/.cache/qkv/data."""
    if given := os.environ.get("QKV_CACHE"):
        return Path(given)
    try:
        return Path.home() / ".cache" / "qkv" / "data"
    except RuntimeError:  # no HOME, and a user without an entry in the system's list
        return Path(tempfile.gettempdir()) / f"qkv-data-{os.geteuid()}"


def fetch(url: str, path: Path, most: int, sha256: str | None = None, md5: str | None = None) -> Path:
    """The file at `url`, kept at `path`, of at most `most` bytes.

    `sha256` is that of the text within (a .gz is decompressed: archives of the same text differ); `md5` that of the file as
    it comes, where only that is published. Without either, the first fetch is believed and later uses are held to it.
    """
    record = path.with_name(path.name + ".sha256")
    if path.is_file() and record.is_file():
        if digest(path) != record.read_text().strip():
            raise FileError(f"{path} has changed since it was fetched: delete it, and it is fetched again")
        return path
    refuse_plain_http(url)
    with writing(path) as (file, temporary):
        download(url, file, most)
        file.close()
        check(temporary, url, most, sha256, md5)
        record.write_text(digest(temporary) + "\n")
        os.replace(temporary, path)
    return path


@contextmanager
def writing(path: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """A temporary file beside `path`, gone afterwards unless it was renamed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name + ".", suffix=".part", delete=False)  # noqa: SIM115
    except OSError as error:
        raise FileError(f"cannot write to {path.parent}: {error.strerror}; QKV_CACHE names another folder") from None
    try:
        yield file, Path(file.name)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}; QKV_CACHE names another folder") from None
    finally:
        file.close()
        Path(file.name).unlink(missing_ok=True)


# --- the transfer


def refuse_plain_http(url: str) -> None:
    """https, except to this machine itself."""
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOCAL):
        raise FileError(f"{url} is not fetched: only https addresses are")


class Redirects(HTTPRedirectHandler):
    """Follow a redirect only to where one may fetch from."""

    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: str) -> Any:
        refuse_plain_http(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def download(url: str, file: IO[bytes], most: int) -> None:
    """The bytes at `url` into `file`; what goes wrong is said in one line, with the way around it."""
    handlers: list[Any] = [Redirects()]
    if urlsplit(url).hostname in LOCAL:
        handlers.append(ProxyHandler({}))
    advice = "try again later, or fetch it yourself and give its path"
    try:
        with build_opener(*handlers).open(Request(url, headers={"User-Agent": "qkv"}), timeout=TIMEOUT) as answer:
            total = int(answer.headers.get("Content-Length") or 0)
            if total > most:
                raise FileError(f"{url} has {total:,} bytes, more than the {most:,} it may have; download it yourself")
            done = copy(answer, file, most, url, total)
    except HTTPError as error:
        raise FileError(f"{url} cannot be fetched: {error.code} {error.reason}; {advice}") from None
    except (URLError, http.client.HTTPException, TimeoutError, ConnectionError, ValueError) as error:
        raise FileError(f"{url} cannot be fetched ({getattr(error, 'reason', None) or error}); {advice}") from None
    if total and done != total:
        raise FileError(f"{url} broke off after {done:,} of {total:,} bytes; {advice}")


def copy(answer: Any, file: IO[bytes], most: int, url: str, total: int) -> int:
    """Piece by piece, with a progress bar on a terminal; how many bytes there were."""
    from rich.console import Console
    from rich.progress import Progress

    done = 0
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"fetching {url.rpartition('/')[2]}", total=total or None)
        while piece := answer.read(CHUNK):
            done += len(piece)
            if done > most:
                raise FileError(f"{url} goes on beyond the {most:,} bytes it may have; download it yourself")
            file.write(piece)
            bar.update(task, completed=done)
    return done


# --- is it the right one?


def check(path: Path, url: str, most: int, sha256: str | None, md5: str | None) -> None:
    """Compare with what is known of the file at `url`."""
    if md5 is not None and (found := digest(path, "md5")) != md5:
        raise FileError(
            f"{url} is not the file it was: its MD5 is {found}, not {md5}; download it yourself and give its path"
        )
    if sha256 is None:
        return
    try:
        found = digest(path, opener=gzip.open if url.endswith(".gz") else open, most=20 * most)
    except (OSError, EOFError, zlib.error) as error:
        raise FileError(f"{url} is damaged ({error}); try again later") from None
    if found != sha256:
        raise FileError(
            f"{url} is not the file it was: the SHA-256 of its text is {found}, not {sha256}; download it yourself and give its path"
        )


def digest(path: Path, kind: str = "sha256", opener: Callable[..., Any] = open, most: int | None = None) -> str:
    """The checksum of a file, or of what `opener` reads from it, in hexadecimal."""
    found, done = hashlib.new(kind, usedforsecurity=False), 0
    with opener(path, "rb") as file:
        while piece := file.read(CHUNK):
            done += len(piece)
            if most is not None and done > most:
                raise FileError(f"{path.name} holds more than {most:,} bytes when unpacked, which cannot be right")
            found.update(piece)
    return found.hexdigest()
