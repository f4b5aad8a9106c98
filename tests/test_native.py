"""Compiling the kernels: a compiler gives a library, and what it refuses is reported."""

import ctypes
import tempfile
from pathlib import Path

import pytest
import torch
from conftest import needs_compiler

from qkv.data import fetch
from qkv.engine import native, scan
from qkv.vectors import kernel


@needs_compiler
@pytest.mark.parametrize("module", [native, scan, kernel], ids=lambda module: module.__name__)
def test_a_compiler_implies_a_library(module) -> None:
    assert module.library() is not None


def source(folder: Path, text: str) -> Path:
    path = folder / "part.cpp"
    path.write_text(text)
    return path


@needs_compiler
@pytest.mark.parametrize(
    ("text", "error"),
    [("int wrong() { return missing; }", "missing"), ("#error first\n#error second", "first")],
    ids=["name", "two errors"],
)
def test_a_compile_error_is_one_line_that_names_the_full_message(
    text: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert native.load_library([source(tmp_path, text)]) is None
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        line.startswith("warning: cannot use part.cpp, falling back to slower code: ")
        and "error:" in line
        and error in line
    )
    full = Path(line.split("full message: ")[1].removesuffix(")")).read_text()
    assert "part.cpp" in full and all(word in full for word in ("-O3", error, "second" if "second" in text else ""))
    assert not [*tmp_path.rglob("*.so")]


@needs_compiler
def test_the_error_is_shown_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(native, "SOURCES", [source(tmp_path, "#error here")])
    native.library.cache_clear()
    try:
        assert native.library() is native.library() is None
        assert len(capsys.readouterr().err.splitlines()) == 1
    finally:
        native.library.cache_clear()


@needs_compiler
def test_a_library_that_cannot_be_loaded_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    good = source(tmp_path, 'extern "C" int seven() { return 7; }')
    assert native.load_library([good]).seven() == 7  # type: ignore[union-attr]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(native, "processor", lambda: "another")  # a path that was not loaded before
    other = native.compile_library(native.find_compiler(), [good])  # type: ignore[arg-type]
    other.write_bytes(b"no library")
    assert native.load_library([good]) is None
    assert "cannot use part.cpp" in capsys.readouterr().err


def test_no_compiler_is_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert native.load_library([source(tmp_path, "#error never read")]) is None
    assert capsys.readouterr().err == ""


TEAM = """
extern "C" int team() {
    int threads = 0;
#pragma omp parallel reduction(+ : threads)
    threads += 1;
    return threads;
}
"""


@needs_compiler
def test_kernels_use_as_many_threads_as_torch(threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert native.load_library([source(tmp_path, TEAM)]).team() == threads  # type: ignore[union-attr]


# --- failures


@needs_compiler
def test_a_failed_compilation_is_reported_once_and_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of all processes: the cache remembers it, as long as the sources are the same."""
    monkeypatch.setenv("HOME", str(tmp_path))
    runs, original = [], native.run
    monkeypatch.setattr(native, "run", lambda *arguments: (runs.append(arguments), original(*arguments)))
    for _ in range(3):
        assert native.load_library([source(tmp_path, "#error here")]) is None
    assert len(runs) == 1 and len(capsys.readouterr().err.splitlines()) == 1
    assert native.load_library([source(tmp_path, 'extern "C" int seven() { return 7; }')]) is not None


@needs_compiler
def test_a_structure_of_another_size_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Pair(ctypes.Structure):
        _fields_ = [("first", ctypes.c_long), ("second", ctypes.c_long)]

    monkeypatch.setenv("HOME", str(tmp_path))
    text = 'struct Pair {{ long first{0}; }};\nextern "C" long sizeof_Pair() {{ return sizeof(Pair); }}'
    assert native.load_library([source(tmp_path, text.format(", second"))], {"Pair": Pair}) is not None
    assert capsys.readouterr().err == ""
    assert native.load_library([source(tmp_path, text.format(""))], {"Pair": Pair}) is None
    assert "Pair has 8 bytes in C++ and 16 in Python" in capsys.readouterr().err


@needs_compiler
def test_memory_that_cannot_be_had_is_an_error_of_python(threads: int) -> None:
    """Before and within the part that threads share: an exception there would end the process."""
    library = native.library()
    assert library is not None
    decoder, once = native.DecoderStruct(width=2**30), native.Pass(rows=2**20, tokens=1)
    with pytest.raises(MemoryError, match="decode"):
        library.decode(ctypes.byref(decoder), ctypes.byref(once))
    spans = torch.tensor([[0, 0, 2**40]])
    attention = native.AttentionStruct(
        spans=spans.data_ptr(), n=1, tokens=2**40, heads=1, key_heads=1, width=64, scale=1.0
    )
    for kernel_ in (library.attend, library.attend_back):
        with pytest.raises(MemoryError, match="attend"):
            kernel_(ctypes.byref(attention))
    scanned = scan.ScanArguments(rows=1, tokens=2**45, width=8, states=8)
    with pytest.raises(MemoryError, match="scan_back"):
        scan.library().scan_back(ctypes.byref(scanned))  # type: ignore[union-attr]


def test_data_is_cached_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("QKV_CACHE", raising=False)
    monkeypatch.setattr(Path, "home", unknown)
    assert fetch.cache().is_relative_to(tempfile.gettempdir())
