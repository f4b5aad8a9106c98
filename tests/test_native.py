"""The kernels' libraries: every instruction set computes the same, and without them torch takes over."""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from conftest import needs_compiler

from qkv.data import fetch
from qkv.engine import kernels, native
from qkv.engine.linear import QuantizedLinear, round_rows

ROOT = Path(__file__).parent.parent


@needs_compiler
def test_a_compiler_implies_a_library() -> None:
    assert native.library() is not None and kernels.describe() in kernels.LEVELS


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A home of its own, and no memory of what was loaded before."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(kernels.CHOICE, raising=False)
    native.library.cache_clear()
    kernels.choose_level.cache_clear()
    yield
    monkeypatch.undo()
    native.library.cache_clear()
    kernels.choose_level.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_missing_kernels_are_reported_once(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(kernels, "FOLDER", tmp_path)
    for _ in range(2):
        assert native.library() is None and kernels.describe() == "torch only"
        native.library.cache_clear()
        kernels.choose_level.cache_clear()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: the compiled kernels are missing") and "torch computes instead" in line


@needs_compiler
@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(("choice", "expected"), [("portable", "portable"), ("none", "torch only")])
def test_the_kernels_can_be_chosen(choice: str, expected: str, monkeypatch) -> None:
    monkeypatch.setenv(kernels.CHOICE, choice)
    assert kernels.describe() == expected


@needs_compiler
@pytest.mark.usefixtures("fresh")
def test_an_unknown_choice_is_reported_and_the_best_is_used(monkeypatch, capsys) -> None:
    monkeypatch.setenv(kernels.CHOICE, "mmx")
    assert native.library() is not None
    assert "QKV_KERNELS=mmx is not one of" in capsys.readouterr().err


@pytest.mark.usefixtures("fresh")
def test_a_library_that_cannot_be_loaded_is_reported(tmp_path, monkeypatch, capsys) -> None:
    for module in (native, kernels):
        monkeypatch.setattr(module, "FOLDER", tmp_path)
    for name in ("portable", "cpu"):
        (tmp_path / f"{name}.so").write_bytes(b"no library")
    assert native.library() is None
    assert "cannot load the compiled kernels" in capsys.readouterr().err


@needs_compiler
@pytest.mark.usefixtures("fresh")
def test_a_structure_of_another_size_is_not_used(monkeypatch, capsys) -> None:
    class Pair(ctypes.Structure):
        _fields_ = [("first", ctypes.c_long), ("second", ctypes.c_long)]

    monkeypatch.setitem(native.STRUCTURES, "Norm", Pair)
    assert native.library() is None
    assert "Norm has 24 bytes in C++ and 16 in Python" in capsys.readouterr().err


def levels() -> list[str]:
    """Those that were built and that this processor can run."""
    built = [level for level in kernels.LEVELS if (kernels.FOLDER / f"{level}.so").is_file()]
    return built[built.index(kernels.best_level()) :] if built else []


@needs_compiler
@pytest.mark.parametrize("inputs", [32, 96, 1056])
@pytest.mark.parametrize("kind", ["int8", "int8 in groups", "int4"])
def test_every_instruction_set_gives_the_same_integers(kind: str, inputs: int) -> None:
    """Also for the largest numbers, whose sums of 16 bits would overflow, and for several heights of tiles."""
    torch.manual_seed(0)
    if kind == "int4":
        layer = QuantizedLinear.of_int4(
            torch.randint(0, 16, (40, inputs), dtype=torch.uint8), torch.rand(40, inputs // 32)
        )
    else:
        whole = torch.randint(-127, 128, (40, inputs)).to(torch.int8)
        whole[::2], whole[1::4] = 127, -128
        layer = QuantizedLinear.of_int8(whole, torch.rand(40, 1 if kind == "int8" else inputs // 32))
    assert layer.scales is not None
    layer.scales.fill_(1.0)
    x = torch.randint(-127, 128, (30, inputs)).float()
    x[1], x[2] = 127.0, torch.tensor([127.0, -127.0]).repeat(inputs // 2)
    x.unflatten(1, (-1, 32))[..., 0] = 127.0  # the largest of every group: rounding changes nothing
    expected = (x.long() @ layer.integers().long().T).float()
    for level in levels():
        library = native.open_library(level)
        for rows in (1, 2, 3, 5, 13, 30):
            y = torch.empty(rows, 40)
            library.linear(ctypes.byref(layer.describe()), x.data_ptr(), rows, y.data_ptr(), 1)
            torch.testing.assert_close(y, expected[:rows], atol=0.0, rtol=1e-6)


@needs_compiler
@pytest.mark.parametrize("inputs", [32, 38])
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_rows_of_integer_weights(kind: str, inputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel gives the numbers of the torch path, bit for bit, and refuses what is no row."""
    torch.manual_seed(0)
    if kind == "int8":
        layer = QuantizedLinear.of_float(torch.randn(37, inputs))
    else:
        layer = QuantizedLinear.of_int4(torch.randint(0, 16, (37, 32), dtype=torch.uint8), torch.rand(37, 4))
    ids = torch.randint(0, 37, (5, 20))
    found = layer.rows(ids)
    for wrong in (37, -1):
        with pytest.raises(IndexError):
            layer.rows(torch.tensor([0, wrong]))
    monkeypatch.setattr(native, "library", lambda: None)
    assert found.equal(layer.rows(ids)) and found.equal(layer.weight[ids])


def test_rounding_to_int8_is_to_the_nearest_and_symmetric() -> None:
    x = torch.tensor([[1.27, -1.27, 0.014, -0.016, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    whole, scale = round_rows(x)
    assert whole.tolist() == [[127, -127, 1, -2, 0], [0] * 5]
    assert scale.tolist() == pytest.approx([0.01, 0.0])


@needs_compiler
def test_a_failed_allocation_raises_a_memory_error(threads: int) -> None:
    """Before and within the part that threads share: an exception there would end the process."""
    library = native.library()
    assert library is not None
    stack, once = native.StackStruct(width=2**30), native.Pass(rows=2**20, tokens=1, threads=threads)
    with pytest.raises(MemoryError, match="run_stack"):
        library.run_stack(ctypes.byref(stack), ctypes.byref(once))
    layer = native.LinearStruct(inputs=2**30, outputs=1, type=1, group=2**30)
    with pytest.raises(MemoryError, match="linear"):
        library.linear(ctypes.byref(layer), None, 2**20, None, threads)
    spans = torch.tensor([[0, 0, 2**40]])
    attention = native.AttentionStruct(
        spans=spans.data_ptr(), n=1, tokens=2**40, heads=1, key_heads=1, width=64, scale=1.0
    )
    for kernel in (library.attend, library.attend_back):
        with pytest.raises(MemoryError, match="attend"):
            kernel(ctypes.byref(attention))
    with pytest.raises(MemoryError, match="scan_back"):
        library.scan_back(ctypes.byref(native.ScanStruct(rows=1, tokens=2**45, width=8, states=8)))


FORK = """
import os, sys, torch
from qkv.engine.linear import PackedLinear
torch.set_num_threads(3)
layer, x = PackedLinear(torch.randn(700, 64), None), torch.randn(5, 64)
before = layer(x)
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(layer(x), before) else 1)
sys.exit(os.waitpid(child, 0)[1])
"""


@needs_compiler
def test_threads_work_after_a_fork() -> None:
    """A child has none of its parent's threads."""
    subprocess.run([sys.executable, "-c", FORK], check=True, timeout=120)


@needs_compiler
def test_calls_of_several_threads_at_once(threads: int) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from qkv.engine.linear import PackedLinear

    layer, x = PackedLinear(torch.randn(700, 64), None), torch.randn(5, 64)
    expected = layer(x)
    with ThreadPoolExecutor(4) as pool:
        assert all(torch.equal(y, expected) for y in pool.map(lambda _: layer(x), range(400)))


@needs_compiler
def test_without_a_working_compiler_the_package_is_built_without_kernels(tmp_path: Path) -> None:
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "qkv" / "engine" / "cpp", tmp_path / "qkv" / "engine" / "cpp")
    (tmp_path / "qkv" / "__init__.py").write_text('__version__ = "0"')
    broken = os.environ | {"CC": "/bin/false", "CXX": "/bin/false"}
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=tmp_path, env=broken, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "portable" in done.stderr
    assert not [*tmp_path.rglob("*.so")]


def test_data_is_cached_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("QKV_CACHE", raising=False)
    monkeypatch.setattr(Path, "home", unknown)
    assert fetch.cache().is_relative_to(tempfile.gettempdir())
