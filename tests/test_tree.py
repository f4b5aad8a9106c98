"""The structure of the package: tree of files, direction of imports, sizes, names; recipes load and documented commands run.

A check that does not hold everywhere yet has a list of the places where it does not. Nothing may be added to such a list, and
an entry that no longer applies fails: remove it in the change that mends it.
"""

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


# --- the tree


def test_the_tree_is_up_to_date() -> None:
    """docs/architecture.md lists every file with its own first line."""
    assert tree.PAGE.read_text() == tree.page(), "run: python docs/tree.py"


def test_every_file_says_what_it_is() -> None:
    assert [path for path in tree.files() if len(tree.description(path)) < 8] == []


# --- imports go one way

RANKS = [
    {"errors", "memory", "device", "distributed", "shared_work"},
    {"config", "presets", "recipes", "pretrained"},
    {"batch"},
    {"parts", "text", "data"},
    {"models"},
    {"objectives", "generate", "look"},
    {"evaluate", "convert", "engine"},
    {"tasks"},
    {"train"},
    {"vectors", "plan"},
    {"base_model"},
    {"api", "check", "check_export", "workflow", "quantization"},
    {"serve", "lab"},
    {"commands"},
    {"cli"},
    {"__main__", "worker"},
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
    """A module imports only from rooms of its own rank or a lower one."""
    room = room_of(path)
    if room == "__init__":  # qkv.load is fetched from api when it is asked for
        return
    wrong = {other for other in imports(path) if RANK[other] > RANK[room]}
    assert not wrong, f"{room} must not import {wrong}"


# --- no import cycles, neither at the top of a module nor inside functions

FACADE = "qkv"
"""qkv/__init__.py names `load`, `train` and `evaluate` for type checkers and imports their modules at the first use. Whoever
imports `qkv` for its version needs none of them, so these imports are no edges. All other `if TYPE_CHECKING` imports are, but: """
TYPE_ONLY = {
    ("qkv.config.rules", "qkv.config.model"): "a configuration is validated by rules, whose argument it is",
    ("qkv.train.results", "qkv.train.run"): "a run ends by writing its results, whose argument it is",
}
"""(module, the module that it imports for type checkers alone) -> why."""

CYCLES: list[set[str]] = []


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def import_graph(sources: dict[str, str]) -> dict[str, set[str]]:
    """Return for each module the modules of `sources` that its text imports, anywhere in it."""
    graph = {module: set[str]() for module in sources}
    for module, text in sources.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                graph[module] |= {alias.name for alias in node.names} & sources.keys()
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:  # a module of a package, or a name within a module
                    full = f"{node.module}.{alias.name}"
                    graph[module] |= {full if full in sources else node.module or ""} & sources.keys()
    return graph


def cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the strongly connected components of more than one module, and modules that import themselves."""
    reach = {module: set(graph[module]) for module in graph}
    while True:  # the transitive closure
        wider = {module: near.union(*(reach[other] for other in near)) for module, near in reach.items()}
        if wider == reach:
            break
        reach = wider
    inside = {module for module in graph if module in reach[module]}
    components = {frozenset(other for other in inside if other in reach[m] and m in reach[other]) for m in inside}
    return [set(component) for component in components]


def test_the_search_for_cycles_finds_them() -> None:
    """At the top, inside a function, for type checkers, through a package, of length one."""
    sources = {
        "a": "import b",
        "b": "def f():\n    from p import c",
        "p.c": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from a import f",
        "d": "import d",
        "e": "import a, json",
        "p": "from p.f import x",
        "p.f": "from p import y",
    }
    assert sorted(map(sorted, cycles(import_graph(sources)))) == [["a", "b", "p.c"], ["d"], ["p", "p.f"]]


def test_modules_do_not_import_each_other_in_cycles() -> None:
    sources = {module_of(path): path.read_text() for path in (ROOT / "qkv").rglob("*.py")}
    graph = import_graph(sources) | {FACADE: set()}
    for module, other in TYPE_ONLY:
        assert f"if TYPE_CHECKING:\n    from {other} import" in sources[module], f"remove {module} from TYPE_ONLY"
        graph[module].discard(other)
    today = cycles(graph)
    new = [sorted(cycle) for cycle in today if not any(cycle <= known for known in CYCLES)]
    assert not new, f"import cycles: {[{m: sorted(graph[m] & set(cycle)) for m in cycle} for cycle in new]}"
    assert set().union(*CYCLES) <= set().union(*today), "no longer in a cycle: remove it from CYCLES"


# --- sizes and names

LONG_FUNCTIONS: set[str] = set()
LONG_FILES: set[str] = set()
SHARED_CLASS_NAMES: set[str] = set()
PARTICIPLES: set[str] = set()
"""Functions at the top of a module, "room: name", that are named by a past participle."""

IRREGULAR = set(
    "begun bound broken brought built chosen dealt done drawn fed felt found given gone gotten heard held hidden hung kept known "
    "laid led left lent lost made meant met paid said seen sent shaken shown sold sought spent spoken stood stuck swept taken "
    "taught thought thrown told understood won worn woven wound written".split()
)
NOT_PARTICIPLES = {"embed", "feed", "need", "seed", "speed", "unused"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def parsed() -> dict[str, ast.Module]:
    paths = sorted((ROOT / "qkv").rglob("*.py"))
    return {path.relative_to(ROOT / "qkv").as_posix(): ast.parse(path.read_text()) for path in paths}


def is_participle(name: str) -> bool:
    """`shown`, `_shown`, `items_given`, `asked_of`; not `hidden_states`, where it goes with a noun."""
    *words, last = name.strip("_").split("_")
    if words and last in {"as", "by", "for", "from", "in", "into", "of", "on", "to", "twice"}:
        last = words[-1]
    return last in IRREGULAR or (last.endswith("ed") and last not in NOT_PARTICIPLES)


def same(today: set[str], known: set[str], rule: str) -> None:
    """Fail on what breaks the rule and is not on the list, and on what is on the list and keeps the rule."""
    assert not today - known, f"{rule}: {sorted(today - known)}"
    assert not known - today, f"mended, remove from the list: {sorted(known - today)}"


def test_no_function_is_longer_than_50_lines() -> None:
    functions = [
        (path, node) for path, tree in parsed().items() for node in ast.walk(tree) if isinstance(node, Function)
    ]
    long = {f"{path}: {node.name}" for path, node in functions if (node.end_lineno or 0) - node.lineno >= 50}
    same(long, LONG_FUNCTIONS, "longer than 50 lines")


def test_no_file_is_longer_than_400_lines() -> None:
    paths = (ROOT / "qkv").rglob("*.py")
    long = {p.relative_to(ROOT / "qkv").as_posix() for p in paths if len(p.read_text().splitlines()) > 400}
    same(long, LONG_FILES, "longer than 400 lines")


def test_no_two_classes_have_one_name() -> None:
    names = [node.name for tree in parsed().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    same({name for name in names if names.count(name) > 1}, SHARED_CLASS_NAMES, "several classes of one name")


def test_no_function_is_named_by_a_participle() -> None:
    found = {
        f"{path}: {node.name}"
        for path, tree in parsed().items()
        for node in tree.body
        if isinstance(node, Function) and is_participle(node.name)
    }
    same(found, PARTICIPLES, "functions are verbs or nouns, not past participles (show, not shown)")


# --- what the rooms know of each other


def test_rooms_of_one_rank_do_not_go_in_circles() -> None:
    """Within a rank one may use the other, but not both ways."""
    graph = {room: set[str]() for room in RANK}
    for path in (ROOT / "qkv").rglob("*.py"):
        if room_of(path) in graph:
            graph[room_of(path)] |= imports(path)
    pairs = {tuple(sorted((a, b))) for a in graph for b in graph[a] if a != b and a in graph[b]}
    assert pairs == {("config", "presets")}  # a recipe names a preset, a preset is a configuration


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


# --- recipes and documented commands


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.toml")), ids=lambda p: p.name)
def test_every_recipe_loads(path: Path) -> None:
    if learns_vectors(path):
        assert load_vectors_recipe(path).vectors.width > 0
    else:
        assert load_recipe(path).model.d_model > 0


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"<!-- tested -->\n```(\w+)\n(.*?)```", re.S)


@pytest.mark.parametrize("page", [page for page in PAGES if BLOCK.search(page.read_text())], ids=lambda page: page.name)
def test_documented_commands_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every block of a page that is marked as tested, in order, in an empty folder with the recipes."""
    from qkv.cli import main

    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    monkeypatch.chdir(tmp_path)
    for language, code in BLOCK.findall(page.read_text()):
        if language == "python":
            exec(compile(code, page.name, "exec"), {})
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


def test_the_readme_is_short_and_has_tested_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 160 and BLOCK.search(text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []
