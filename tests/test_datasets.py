"""Data sets by name: fetched from a server on this machine, checked, kept; read from a path; split without leaks."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path

import pytest

from qkv.config import CorpusConfig, DataConfig
from qkv.data import datasets
from qkv.data.corpora import corpus
from qkv.data.datasets import HELD_OUT, HeldOut, dataset, split_of
from qkv.data.fetch import fetch
from qkv.data.grammar import pairs
from qkv.data.lines import lines
from qkv.data.sources import InMemorySource, Parallel
from qkv.errors import ConfigError, FileError, QkvError
from tests.schemas import schema_of

DATA = Path(os.environ.get("QKV_DATA", Path(__file__).parents[2] / "shared" / "data"))
PAIRS = [(p.source, p.target) for p in islice(pairs("train"), 600)]


class Server:
    """Files by path, and how often each was asked for."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.claims: dict[str, int] = {}
        """Content-Length that is not the file's."""
        self.moved: dict[str, str] = {}
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                if self.path in outer.moved:
                    self.send_response(302)
                    self.send_header("Location", outer.moved[self.path])
                    self.end_headers()
                    return
                if self.path not in outer.files:
                    self.send_error(404)
                    return
                data = outer.files[self.path]
                self.send_response(200)
                if outer.claims.get(self.path) != 0:
                    self.send_header("Content-Length", str(outer.claims.get(self.path, len(data))))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server of our own, an empty cache, and every data set's address turned to it."""
    made = Server()
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    for name in ("MULTI30K", "TATOEBA", "OPUS"):
        monkeypatch.setattr(datasets, name, f"{made.url}/{name.lower()}")
    yield made
    made.http.shutdown()
    made.http.server_close()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def left(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("*") if p.is_file())


# --- fetching


def test_a_file_is_fetched_once_and_held_to_what_it_was(server: Server, tmp_path: Path) -> None:
    server.files["/x.txt"] = b"hello\n" * 100_000
    for checksum in (None, sha256(server.files["/x.txt"])):
        path = tmp_path / str(checksum) / "x.txt"
        assert fetch(f"{server.url}/x.txt", path, 10**6, checksum).read_bytes() == server.files["/x.txt"]
        count = len(server.asked)
        assert fetch(f"{server.url}/x.txt", path, 10**6, checksum) == path and len(server.asked) == count
        path.write_bytes(b"hello, changed")
        with pytest.raises(FileError, match="has changed since it was fetched: delete it"):
            fetch(f"{server.url}/x.txt", path, 10**6, checksum)
        path.unlink()
        assert fetch(f"{server.url}/x.txt", path, 10**6, checksum).read_bytes() == server.files["/x.txt"]


def test_the_checksum_is_of_the_text_in_an_archive(server: Server, tmp_path: Path) -> None:
    text = b"a line\n" * 50
    for level in (1, 9):  # two archives of the same text
        server.files["/x.gz"] = gzip.compress(text, level, mtime=level)
        fetch(f"{server.url}/x.gz", tmp_path / str(level) / "x.gz", 10**6, sha256(text))
    assert sha256((tmp_path / "1" / "x.gz").read_bytes()) != sha256((tmp_path / "9" / "x.gz").read_bytes())
    md5 = hashlib.md5(server.files["/x.gz"]).hexdigest()
    fetch(f"{server.url}/x.gz", tmp_path / "md5" / "x.gz", 10**6, md5=md5)
    with pytest.raises(FileError, match="its MD5 is"):
        fetch(f"{server.url}/x.gz", tmp_path / "bad" / "x.gz", 10**6, md5="0" * 32)


def test_what_goes_wrong_is_said_and_leaves_nothing(server: Server, tmp_path: Path) -> None:
    text = b"line\n" * 1000
    server.files |= {"/x.txt": text, "/cut.txt": text, "/endless.txt": text, "/broken.gz": gzip.compress(text)[:40]}
    server.files["/bomb.gz"] = gzip.compress(b"\0" * 3_000_000)
    server.claims |= {"/cut.txt": 2 * len(text), "/endless.txt": 0}
    server.moved |= {"/away": "http://example.org/x", "/file": "file:///etc/passwd"}
    cases = [
        ("/x.txt", 10**6, "0" * 64, "is not the file it was: the SHA-256 of its text"),
        ("/cut.txt", 10**6, None, "broke off after 5,000 of 10,000 bytes|cannot be fetched"),
        ("/absent", 10**6, None, "cannot be fetched: 404"),
        ("/x.txt", 100, None, "has 5,000 bytes, more than the 100 it may have"),
        ("/endless.txt", 100, None, "goes on beyond the 100 bytes"),
        ("/broken.gz", 10**6, "0" * 64, "is damaged"),
        ("/bomb.gz", 10**5, "0" * 64, "holds more than 2,000,000 bytes when unpacked"),
        ("/away", 10**6, None, "only https"),
        ("/file", 10**6, None, "only https|cannot be fetched"),
    ]
    for address, most, checksum, message in cases:
        with pytest.raises(FileError, match=message):
            fetch(server.url + address, tmp_path / "kept" / "x", most, checksum)
        assert left(tmp_path / "kept") == []
    server.http.server_close()
    with pytest.raises(FileError, match="cannot be fetched"):
        fetch("http://127.0.0.1:1/x", tmp_path / "kept" / "x", 100)


@pytest.mark.parametrize(
    "url", ["http://example.org/x", "ftp://example.org/x", "file:///etc/passwd", "x", "http://127.0.0.1.example.org/x"]
)
def test_only_https(tmp_path: Path, url: str) -> None:
    with pytest.raises(FileError, match="only https"):
        fetch(url, tmp_path / "x", 100)


def test_a_cache_that_cannot_be_written(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="QKV_CACHE names another folder"):
        fetch(f"{server.url}/x", tmp_path / "file" / "x", 100)


# --- Multi30k


def serve_multi30k(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for split, rows in (("train", PAIRS[:50]), ("val", PAIRS[50:60]), ("test_2016_flickr", PAIRS[60:70])):
        for side, language in enumerate(("en", "de")):
            text = "".join(pair[side] + "\n" for pair in rows).encode()
            server.files[f"/multi30k/{split}.{language}.gz"] = gzip.compress(text)
            monkeypatch.setitem(datasets.MULTI30K_TEXTS, f"{split}.{language}", sha256(text))


def test_multi30k_is_fetched_split_by_split(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_multi30k(server, monkeypatch)
    for split, rows in (
        ("train", PAIRS[:50]),
        ("valid", PAIRS[50:60]),
        ("test", PAIRS[60:70]),
        ("test_2016_flickr", PAIRS[60:70]),
    ):
        assert [r for _, r in dataset("multi30k", "en", "de", split).read()] == rows
        assert [r for _, r in dataset("multi30k", "de", "en", split).read()] == [pair[::-1] for pair in rows]
    assert len(server.asked) == 6
    server.files["/multi30k/val.en.gz"] = gzip.compress(b"something else\n")
    (datasets.cache() / "multi30k" / "val.en.gz").unlink()
    with pytest.raises(FileError, match="is not the file it was"):
        dataset("multi30k", "en", "de", "valid")


def test_a_recipe_names_a_data_set_or_where_it_is(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    serve_multi30k(server, monkeypatch)
    data = DataConfig(
        train=(CorpusConfig(dataset="multi30k"),), valid=CorpusConfig(dataset="multi30k"), source="de", target="en"
    )
    assert [r for _, r in corpus(data.train[0], data, "train", schema_of("translation")).read()] == [
        pair[::-1] for pair in PAIRS[:50]
    ]
    assert len(list(corpus(data.valid, data, "valid", schema_of("translation")).read())) == 10
    other = CorpusConfig(dataset="multi30k", split="train")
    assert len(list(corpus(other, data, "valid", schema_of("translation")).read())) == 50
    for language, side in (("en", 0), ("de", 1)):
        (tmp_path / f"val.{language}").write_text(PAIRS[7][side] + "\n")
    here = CorpusConfig(dataset="multi30k", path=tmp_path.name)
    rooted = data.changed(root=str(tmp_path.parent))
    assert [r for _, r in corpus(here, rooted, "valid", schema_of("translation")).read()] == [PAIRS[7][::-1]]
    with pytest.raises(QkvError, match=r"has no train\.de"):
        corpus(here, rooted, "train", schema_of("translation"))
    for wrong in (
        {"dataset": "multi30k", "grammar": 5},
        {"files": ("a", "b"), "path": "x"},
        {"grammar": 5, "split": "test"},
    ):
        with pytest.raises(ValueError, match=r"exactly one of|belong to"):
            CorpusConfig(**wrong)  # type: ignore[arg-type]


@pytest.mark.skipif(not (DATA / "multi30k").is_dir(), reason="Multi30k is not here (QKV_DATA)")
def test_the_real_multi30k_is_what_the_checksums_say() -> None:
    for name, expected in datasets.MULTI30K_TEXTS.items():
        assert sha256(gzip.decompress((DATA / "multi30k" / f"{name}.gz").read_bytes())) == expected
    sizes = [
        sum(1 for _ in dataset("multi30k", "en", "fr", split, DATA / "multi30k").read())
        for split in ("train", "valid", "test")
    ]
    assert sizes == [29000, 1014, 1000]


# --- splits of what comes without


def test_no_sentence_of_the_test_is_trained_on() -> None:
    rows = [(f"word {i % 700}", f"Wort {i % 900}") for i in range(5000)] + [("Word 3!", "Wort"), ("word  3", "anders")]
    found = {s: [r for _, r in HeldOut(InMemorySource(rows), s, 0).read()] for s in ("train", "valid", "test")}
    assert all(found.values()) and set().union(*found.values()) <= set(rows)
    letters = lambda text: "".join(filter(str.isalnum, text.casefold()))  # noqa: E731
    for side in (0, 1):
        trained = {letters(r[side]) for r in found["train"]}
        assert not trained & {letters(r[side]) for s in ("valid", "test") for r in found[s]}
    assert not {letters(r[0]) for r in found["valid"]} & {letters(r[0]) for r in found["test"]}
    assert split_of("Word 3!") == split_of("word  3")
    back = {s: [r[::-1] for _, r in HeldOut(InMemorySource([r[::-1] for r in rows]), s, 1).read()] for s in found}
    assert back == found  # both directions are split alike


def test_a_split_goes_on_where_it_stopped_and_is_bounded() -> None:
    rows = [(f"word {i}", f"Wort {i}") for i in range(3000)]
    for split in ("train", "valid", "test"):
        everything = list(HeldOut(InMemorySource(rows), split, 0).read())
        middle = everything[len(everything) // 2][0]
        assert list(HeldOut(InMemorySource(rows), split, 0).read(middle)) == [
            (n, r) for n, r in everything if n > middle
        ]
        assert 0.002 < len(everything) / len(rows) < 0.03 or split == "train"
    text = next(t for t in map(str, range(999)) if split_of(t) == "test")
    many = InMemorySource([(text, f"{i}") for i in range(HELD_OUT + 50)])
    assert len(list(HeldOut(many, "test", 0).read())) == HELD_OUT


# --- Tatoeba, OPUS, WMT


def zipped(files: dict[str, str]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return made.getvalue()


def test_tatoeba_from_a_server_and_from_a_path(server: Server, tmp_path: Path) -> None:
    text = "".join(f"{a}\t{b}\tCC-BY 2.0 (France)\n" for a, b in PAIRS)
    server.files["/tatoeba/deu-eng.zip"] = zipped({"deu.txt": text, "_about.txt": "about"})
    found = {s: [r for _, r in dataset("tatoeba", "en", "de", s).read()] for s in ("train", "valid", "test")}
    assert set().union(*found.values()) <= set(PAIRS) and len(found["train"]) > 400 and found["test"]
    assert [r[::-1] for _, r in dataset("tatoeba", "de", "en", "test").read()] == found["test"]
    assert len(server.asked) == 1
    (tmp_path / "deu-eng-2018.zip").write_bytes(server.files["/tatoeba/deu-eng.zip"])
    (tmp_path / "pairs.txt").write_text(text)
    for path in (tmp_path / "deu-eng-2018.zip", tmp_path, tmp_path / "pairs.txt"):
        assert [r for _, r in dataset("tatoeba", "en", "de", "test", path).read()] == found["test"]
    with pytest.raises(ConfigError, match="pairs another language with English"):
        dataset("tatoeba", "fr", "de", "test")


def test_opus_from_a_server_and_from_a_path(server: Server, tmp_path: Path) -> None:
    members = {f"Books.de-en.{code}": "".join(p[side] + "\n" for p in PAIRS) for side, code in ((0, "en"), (1, "de"))}
    server.files["/opus/OPUS-Books/v1/moses/de-en.txt.zip"] = zipped(members)
    train = [r for _, r in dataset("opus/Books/v1", "en", "de", "train").read()]
    test = [r for _, r in dataset("opus/Books/v1", "en", "de", "test").read()]
    assert len(train) > 400 and test and set(train + test) <= set(PAIRS) and not set(train) & set(test)
    assert [r[::-1] for _, r in dataset("opus/Books/v1", "de", "en", "test").read()] == test
    assert len(server.asked) == 1
    for name, text in members.items():
        (tmp_path / name).write_text(text)
    assert [r for _, r in dataset("opus/Books/v1", "en", "de", "test", tmp_path).read()] == test
    with pytest.raises(FileError, match="404"):
        dataset("opus/Books/v2", "en", "de", "test")
    with pytest.raises(FileError, match=r"holds no 'Books\.en-fr\.en', but Books\.de-en\.en"):
        list(dataset("opus/Books/v1", "en", "fr", "test", datasets.cache() / "opus/Books/v1/de-en.txt.zip").read())


def test_wmt_is_read_as_sacrebleu_reads_it(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sacrebleu.dataset
    from sacrebleu.dataset.fake_sgml import FakeSGMLDataset

    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, rows in (
            ("t/src.en.sgm", ["One  &amp; two", "A <b> tag"]),
            ("t/ref.de.sgm", ["Eins &amp; zwei ", "Ein <b> Tag"]),
        ):
            body = "".join(f'<seg id="{i}">{text}</seg>\n' for i, text in enumerate(rows, 1))
            data = f'<srcset setid="x">\n<doc docid="1">\n{body}</doc>\n</srcset>\n'.encode()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    server.files["/test.tgz"] = made.getvalue()
    md5 = hashlib.md5(made.getvalue()).hexdigest()
    listed = FakeSGMLDataset(
        "wmt99", data=[f"{server.url}/test.tgz"], md5=[md5], langpairs={"en-de": ["t/src.en.sgm", "t/ref.de.sgm"]}
    )
    monkeypatch.setitem(sacrebleu.dataset.DATASETS, "wmt99", listed)
    found = [r for _, r in dataset("wmt99", "en", "de", "test").read()]
    for side, name in enumerate(("t/src.en.sgm", "t/ref.de.sgm")):
        with tarfile.open(fileobj=io.BytesIO(made.getvalue())) as archive:
            archive.extract(name, tmp_path, filter="data")
        listed._convert_format(str(tmp_path / name), str(tmp_path / "out"))
        assert [r[side] for r in found] == (tmp_path / "out").read_text().splitlines()
    (tmp_path / "x.tgz").write_bytes(made.getvalue())
    assert [r for _, r in dataset("wmt99", "en", "de", "valid", tmp_path / "x.tgz").read()] == found
    (tmp_path / "x.tgz").write_bytes(made.getvalue()[:100])
    for wrong in (("wmt99", "en", "fr", "test"), ("wmt99", "en", "de", "train"), ("wmt98", "en", "de", "test")):
        with pytest.raises(ConfigError, match=r"has no en-fr, but en-de|not for training|no WMT test set"):
            dataset(*wrong)
    with pytest.raises(FileError, match="is damaged"):
        dataset("wmt99", "en", "de", "test", tmp_path / "x.tgz")


def test_sacrebleus_list_has_what_is_needed() -> None:
    """Archives over https, one MD5 each: WMT 2014, the Transformer's own test set, among them."""
    import sacrebleu.dataset
    from sacrebleu.dataset.fake_sgml import FakeSGMLDataset

    for year in range(8, 21):
        listed = sacrebleu.dataset.DATASETS[f"wmt{year:02d}"]
        assert isinstance(listed, FakeSGMLDataset) and len(listed.data) == len(listed.md5) == 1
        assert listed.data[0].startswith("https://")


@pytest.mark.parametrize(
    ("name", "source", "target", "split", "message"),
    [
        ("mutli30k", "en", "de", "train", "no data set 'mutli30k': there are multi30k"),
        ("opus/../x", "en", "de", "train", "no data set"),
        ("opus/Books", "en", "de", "train", "no data set"),
        ("opus/Books/v1", "en", "../de", "train", "OPUS names languages"),
        ("multi30k", "en", "xx", "train", "multi30k has no language 'xx', but cs, de"),
        ("multi30k", "en", "en", "train", "both 'en'"),
        ("multi30k", "en", "de", "tset", "multi30k has no split 'tset'"),
        ("multi30k", "en", "de", "test_2016_/../x", "multi30k has no split"),
    ],
)
def test_names_that_are_none(server: Server, name: str, source: str, target: str, split: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataset(name, source, target, split)
    assert not server.asked


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="does not exist; correct the path"):
        dataset("multi30k", "en", "de", "train", tmp_path / "absent")


# --- files within archives


def test_lines_within_a_zip(tmp_path: Path) -> None:
    (tmp_path / "c.zip").write_bytes(zipped({"a/x.en": "one\ntwo\n", "a/x.de": "eins\nzwei\n"}))
    assert list(lines(tmp_path / "c.zip" / "a" / "x.en")) == ["one", "two"]
    assert [r for _, r in Parallel([tmp_path / "c.zip/a/x.en", tmp_path / "c.zip/a/x.de"]).read()] == [
        ("one", "eins"),
        ("two", "zwei"),
    ]
    with pytest.raises(FileError, match=r"holds no 'x\.fr', but a/x\.en, a/x\.de"):
        list(lines(tmp_path / "c.zip" / "x.fr"))
    whole = (tmp_path / "c.zip").read_bytes()
    for data in (b"no zip", whole[:-30], whole.replace(b"one\ntwo", b"one\nTWO")):
        (tmp_path / "c.zip").write_bytes(data)
        with pytest.raises(FileError, match="damaged"):
            list(lines(tmp_path / "c.zip" / "a" / "x.en"))
