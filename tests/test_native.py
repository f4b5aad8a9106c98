"""Compiling the kernels: a compiler gives a library, and what it refuses is reported."""

from pathlib import Path

import pytest
from conftest import needs_compiler

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
    assert native.opened([source(tmp_path, text)]) is None
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        line.startswith("warning: cannot use part.cpp, falling back to slower code: ")
        and "error:" in line
        and error in line
    )
    full = Path(line.split("(full message: ")[1].removesuffix(")")).read_text()
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
    assert native.opened([good]).seven() == 7  # type: ignore[union-attr]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(native, "processor", lambda: "another")  # a path that was not loaded before
    other = native.compiled(native.find_compiler(), [good])  # type: ignore[arg-type]
    other.write_bytes(b"no library")
    assert native.opened([good]) is None
    assert "cannot use part.cpp" in capsys.readouterr().err


def test_no_compiler_is_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert native.opened([source(tmp_path, "#error never read")]) is None
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
    assert native.opened([source(tmp_path, TEAM)]).team() == threads  # type: ignore[union-attr]
