"""The house is in order: the tree of files is up to date, imports go one way, recipes load, README commands run."""

from __future__ import annotations

import ast
import re
import shlex
import sys
from pathlib import Path

import pytest

from docs import tree
from qkv.config import load_recipe
from qkv.config.vectors import learns_vectors, load_vectors_recipe

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


# --- the tree


def test_the_tree_is_up_to_date() -> None:
    """docs/architecture.md lists every file with its own first line."""
    assert tree.PAGE.read_text() == tree.page(), "run: python docs/tree.py"


def test_every_file_says_what_it_is() -> None:
    assert [path for path in tree.files() if len(tree.description(path)) < 8] == []


# --- imports go one way

RANKS = [
    {"errors", "memory", "device"},
    {"config", "presets", "recipes", "pretrained"},
    {"batch"},
    {"parts", "text", "data"},
    {"models"},
    {"objectives", "generate", "look"},
    {"train", "tasks", "evaluate", "convert", "engine", "vectors"},
    {"base_model"},
    {"api", "check", "check_export", "workflow"},
    {"serve", "lab"},
    {"commands"},
    {"cli"},
    {"__main__"},
]
RANK = {room: rank for rank, rooms in enumerate(RANKS) for room in rooms}


def room_of(path: Path) -> str:
    return path.relative_to(ROOT / "qkv").parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """The rooms that a file imports, anywhere in it."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the room"
            module = node.module or ""
            names = [f"qkv.{alias.name}" for alias in node.names] if module == "qkv" else [module]
        rooms |= {name.split(".")[1] for name in names if name.startswith("qkv.")}
    return rooms


def test_every_room_has_a_rank() -> None:
    assert {room_of(p) for p in (ROOT / "qkv").rglob("*.py")} - {"__init__"} <= RANK.keys()


@pytest.mark.parametrize("path", sorted((ROOT / "qkv").rglob("*.py")), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_imports_go_one_way(path: Path) -> None:
    """config < batch < parts < models < {objectives, generate, look} < {train, convert, engine ...} < {api ...} < cli."""
    room = room_of(path)
    if room == "__init__":  # qkv.load is fetched from api when it is asked for
        return
    wrong = {other for other in imports(path) if RANK[other] > RANK[room]}
    assert not wrong, f"{room} must not import {wrong}"


def test_rooms_of_one_rank_do_not_go_in_circles() -> None:
    """Within a rank one may use the other (training writes files with convert), but not both ways."""
    graph = {room: set[str]() for room in RANK}
    for path in (ROOT / "qkv").rglob("*.py"):
        if room_of(path) in graph:
            graph[room_of(path)] |= imports(path)
    allowed = {("config", "presets")}  # a recipe names a preset, a preset is a configuration
    pairs = {tuple(sorted((a, b))) for a in graph for b in graph[a] if a != b and a in graph[b]}
    assert pairs <= allowed


def test_text_and_data_know_no_network() -> None:
    for path in [*(ROOT / "qkv/text").rglob("*.py"), *(ROOT / "qkv/data").rglob("*.py")]:
        assert imports(path) <= {"errors", "config", "batch", "text", "data"}, path


def test_the_starting_files_do_not_import_torch_at_the_top() -> None:
    """So that `qkv --help` answers at once."""
    light = [ROOT / f"qkv/{name}.py" for name in ("__init__", "__main__", "cli", "errors", "presets")]
    for path in [*light, *(ROOT / "qkv/config").glob("*.py"), *(ROOT / "qkv/commands").glob("*.py")]:
        for node in ast.parse(path.read_text()).body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            heavy = {n.split(".")[0] for n in [*names, module]} & {"torch", "numpy", "tokenizers", "safetensors"}
            assert not heavy, f"{path.name} imports {heavy}"


# --- recipes and the README's commands


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.toml")), ids=lambda p: p.name)
def test_every_recipe_loads(path: Path) -> None:
    if learns_vectors(path):
        assert load_vectors_recipe(path).vectors.width > 0
    else:
        assert load_recipe(path).model.d_model > 0


def test_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Every block marked as tested, in order, in an empty folder with the recipes."""
    from qkv.cli import main

    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"<!-- tested -->\n```(\w+)\n(.*?)```", README, re.S)
    assert len(blocks) >= 2
    for language, code in blocks:
        if language == "python":
            exec(compile(code, "README.md", "exec"), {})
            continue
        for line in code.replace("\\\n", " ").splitlines():
            command = shlex.split(line, comments=True)
            if not command:
                continue
            assert command[0] == "qkv", line
            monkeypatch.setattr(sys, "argv", command)
            with pytest.raises(SystemExit) as end:
                main()
            assert not end.value.code, f"{line}\n{capsys.readouterr().err}"
