"""Dependencies: what is imported is declared, what is installed is admitted, and the package works without its extras."""

import ast
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {name: list(map(Requirement, own)) for name, own in PROJECT["optional-dependencies"].items()}
BASE = list(map(Requirement, PROJECT["dependencies"]))
NAMES = {"PIL": "pillow", "sklearn": "scikit-learn", "yaml": "pyyaml"}
"""Packages that are imported by another name."""
PRIVATE = ("uvicorn", "gguf", "sacrebleu", "fastapi", "pydantic", "torch", "transformers")
"""Packages of which more than the stable interface is used: a new version may break it."""


def imported(folder: str) -> dict[str, str]:
    """Top-level packages that the files of a folder import, each with the file that does."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            found |= {name.partition(".")[0]: str(path.relative_to(ROOT)) for name in names}
    return {name: path for name, path in found.items() if name not in sys.stdlib_module_names}


def declared(*extras: str) -> set[str]:
    found = {canonicalize_name(one.name) for one in [*BASE, *(one for extra in extras for one in EXTRAS[extra])]}
    for extra in extras:
        for one in EXTRAS[extra]:
            found |= declared(*one.extras) if one.name == "qkv" else set()
    return found


@pytest.mark.parametrize(("folder", "extras"), [("qkv", sorted(EXTRAS.keys() - {"dev"})), ("tests", ["dev"])])
def test_what_is_imported_is_declared(folder: str, extras: list[str]) -> None:
    own = {
        "qkv",
        "tests",
        "docs",
        "benchmarks",
        *(path.stem for place in (folder, "benchmarks") for path in (ROOT / place).glob("*.py")),
    }
    # an exported model is compared with transformers where it is installed
    own |= {"transformers"} if folder == "qkv" else set()
    missing = {name: path for name, path in imported(folder).items()
               if name not in own and canonicalize_name(NAMES.get(name, name)) not in declared(*extras)}  # fmt: skip
    assert not missing


@pytest.mark.parametrize("one", [*BASE, *(one for own in EXTRAS.values() for one in own if one.name != "qkv")], ids=str)
def test_what_is_installed_is_admitted(one: Requirement) -> None:
    if one.name in PRIVATE:
        assert any(part.operator == "<" for part in one.specifier)
    try:
        version = metadata.version(one.name)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{one.name} is not installed")
    assert version in one.specifier


BARE = """
import importlib, pkgutil, sys
for name in {blocked!r}:
    sys.modules[name] = None
import qkv
for one in pkgutil.walk_packages(qkv.__path__, "qkv."):
    if not one.name.startswith("qkv.serve.") and one.name != "qkv.__main__":
        importlib.import_module(one.name)
"""


def test_the_package_is_imported_without_its_extras() -> None:
    blocked = {one.name.replace("-", "_") for own in EXTRAS.values() for one in own if one.name != "qkv"}
    blocked = {{theirs: ours for ours, theirs in NAMES.items()}.get(name.replace("_", "-"), name) for name in blocked}
    done = subprocess.run([sys.executable, "-c", BARE.format(blocked=sorted(blocked))], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_demo_installs_nothing_for_tests() -> None:
    """Two steps in the Makefile; the second one adds to the first, so that a demo after the tests finds all done."""
    lines = (ROOT / "Makefile").read_text().splitlines()
    needs = {name: rest.split("#")[0].split() for name, colon, rest in (line.partition(":") for line in lines)
             if colon and not line_is_command(name)}  # fmt: skip
    assert needs["demo"] == needs["serve"] == [".venv/.use"] and needs[".venv/.dev"] == [".venv/.use"]
    assert all(needs[name][0] == ".venv/.dev" for name in ("test", "lint", "bench"))


def line_is_command(line: str) -> bool:
    return line.startswith(("\t", "#", " "))
