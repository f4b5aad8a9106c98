"""Write the tree of files into docs/architecture.md: every file of the package with the first line of its docstring or comment.

python docs/tree.py          # after adding, moving or describing a file; a test checks that it was run
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- tree: written by docs/tree.py -->\n```\n", "```\n<!-- end of tree -->"
GIVEN = {
    "qkv/serve/page/favicon.svg": "The icon of the page",
    "qkv/serve/page/index.html": "The page: its skeleton, filled by js/",
    "qkv/py.typed": "The package has type annotations (PEP 561)",
    "qkv/pretrained/example": "A translator of the embedded grammar, German and English; the default of translate and serve",
}
"""Descriptions of what cannot describe itself."""
WIDTH = 150


def files() -> list[Path]:
    """Every file of the package in the order of the tree; a folder of `GIVEN` stands for its files."""
    found = [p for p in (ROOT / "qkv").rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    return sorted(p for p in found if p.suffix not in (".pyc", ".so") and str(p.parent.relative_to(ROOT)) not in GIVEN)


def description(path: Path) -> str:
    """First line of a file's docstring or comment."""
    name = path.relative_to(ROOT).as_posix()
    if name in GIVEN:
        return GIVEN[name]
    text = path.read_text()
    if path.suffix == ".py":
        first = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    else:
        comment = re.match(r"(?:<!doctype html>\s*)?(?:#|//|/\*+|<!--)\s*(.*?)\s*(?:\*/|-->)?\s*\n", text, re.I)
        first = comment[1] if comment else ""
    assert first, f"{name} has no first line that says what it is"
    return first if len(first) <= WIDTH else first[:WIDTH].rsplit(" ", 1)[0] + " ..."


def tree() -> str:
    """The package as an indented list, one line per file; a folder has the description of its __init__.py."""
    lines: list[str] = []
    known: set[Path] = set()
    for path in sorted([*files(), *(ROOT / name for name in GIVEN if (ROOT / name).is_dir())]):
        for folder in reversed(path.relative_to(ROOT).parents[:-1]):
            if folder not in known:
                known.add(folder)
                own = ROOT / folder / "__init__.py"
                lines.append(line(folder, f"{folder.name}/", description(own) if own.is_file() else ""))
        if path.name != "__init__.py":
            name = path.relative_to(ROOT)
            lines.append(line(name, path.name, GIVEN.get(name.as_posix()) or description(path)))
    return "".join(lines)


def line(path: Path, name: str, about: str) -> str:
    return f"{'  ' * (len(path.parts) - 1) + name:34} {about}".rstrip() + "\n"


def page() -> str:
    """docs/architecture.md with the tree as it is now."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return before + BEGIN + tree() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page())
