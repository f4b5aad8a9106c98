"""Recipes that come with the package: what to build, what to read, how to learn and how to write, in TOML."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from qkv.errors import ConfigError

HERE = Path(__file__).parent


def names() -> list[str]:
    """The shipped ones."""
    return sorted(path.stem for path in HERE.glob("*.toml"))


def find(what: str) -> Path:
    """The file of a shipped recipe by its name (`demo`), or any other by its path (`my/recipe.toml`)."""
    if what in names():
        return HERE / f"{what}.toml"
    path = Path(what)
    if path.is_file():
        return path
    near = get_close_matches(path.stem, names(), n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ConfigError(f"no recipe {what!r}: {hint}give the path of a .toml file, or one of {', '.join(names())}")
