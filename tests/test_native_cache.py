"""Where compiled kernels are kept: nowhere that another user could have written to, and never a crash."""

import os
import stat
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import needs_compiler

from qkv.engine import native

SEVEN = 'extern "C" int seven() { return 7; }'


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A home of our own and a folder of temporary files."""
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    return home / ".cache/qkv/native", temporary / f"qkv-native-{os.geteuid()}"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_folder_is_for_its_user_alone(places: tuple[Path, Path]) -> None:
    before = os.umask(0)
    try:
        assert native.cache_folder() == places[0] and mode(places[0]) == 0o700
    finally:
        os.umask(before)


@pytest.mark.parametrize("bits", [0o720, 0o702, 0o777])
def test_a_folder_that_others_may_write_to_is_not_used(places: tuple[Path, Path], bits: int) -> None:
    home, temporary = places
    home.mkdir(parents=True)
    home.chmod(bits)
    assert native.cache_folder() == temporary and mode(temporary) == 0o700
    temporary.chmod(bits)
    with pytest.raises(PermissionError, match="chmod 700"):
        native.cache_folder()


def test_a_folder_of_another_user_or_a_link_is_not_used(
    places: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, temporary = places
    home.parent.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    home.symlink_to(tmp_path / "elsewhere")
    assert native.cache_folder() == temporary
    home.unlink()
    home.mkdir(mode=0o700)
    real = Path.lstat

    def owned_by_another(path: Path) -> object:
        found = real(path)
        return SimpleNamespace(st_mode=found.st_mode, st_uid=found.st_uid + (path == home))

    monkeypatch.setattr(Path, "lstat", owned_by_another)
    assert native.cache_folder() == temporary


def test_without_a_home_there_is_a_temporary_folder(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nobody)
    assert native.cache_folder() == places[1]
    monkeypatch.setattr(Path, "home", lambda: Path("/dev/null"))  # a folder cannot be made there
    assert native.cache_folder() == places[1]


@needs_compiler
def test_a_library_that_others_may_write_to_is_compiled_again(places: tuple[Path, Path], tmp_path: Path) -> None:
    source = tmp_path / "part.cpp"
    source.write_text(SEVEN)
    compiler = native.find_compiler()
    assert compiler is not None
    path = native.compile_library(compiler, [source])
    assert path.parent == places[0] and mode(path) == 0o700
    good = path.read_bytes()
    path.write_bytes(b"planted")
    assert native.compile_library(compiler, [source]).read_bytes() == b"planted"  # ours: it is not compiled again
    path.chmod(0o722)
    assert native.compile_library(compiler, [source]) == path
    assert path.read_bytes() == good and mode(path) == 0o700
