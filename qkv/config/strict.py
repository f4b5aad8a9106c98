"""Strict records, and how files and `--set` fill them. Every problem is a ConfigError with a readable message."""

from __future__ import annotations

import difflib
import json
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from qkv.errors import ConfigError


class Strict(BaseModel):
    """A frozen record that refuses unknown keys, silent conversions ("3" is not 3), NaN and infinite numbers."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    def changed(self, **fields: Any) -> Any:
        """Return a copy with some fields replaced, validated again."""
        return validate(type(self), {**self.model_dump(exclude_unset=True), **fields})


def validate(kind: type[Strict], values: Any, where: str = "") -> Any:
    """Build `kind` from plain values; one ConfigError lists all problems."""
    if not isinstance(values, dict):
        raise ConfigError(f"{where!r} is a table of fields, given {values!r}")
    try:
        return kind(**values)
    except ValidationError as error:
        found = error.errors()
        places = [problem["loc"] for problem in found]
        told = [p for p in found if not (p["type"] == "too_short" and any(within(q, p["loc"]) for q in places))]
        raise ConfigError("; ".join(_in_words(kind, problem, where) for problem in told)) from None


def within(place: tuple[Any, ...], whole: tuple[Any, ...]) -> bool:
    """Return whether `place` is inside `whole`. A list whose items are wrong is also too short; only the items are reported."""
    return len(place) > len(whole) and place[: len(whole)] == whole


def _in_words(kind: type[Strict], problem: Any, where: str) -> str:
    path = [str(part) for part in problem["loc"] if part not in ("int", "tuple[int, ...]")]
    name = ".".join(([where] if where else []) + path)
    if problem["type"] == "extra_forbidden":
        known = sorted(_record_at(kind, path[:-1]).model_fields)
        near = difflib.get_close_matches(path[-1], known, n=2)
        hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        return f"unknown key {name!r} (given {problem['input']!r}); {hint}known keys: {', '.join(known)}"
    if problem["type"] == "missing":
        return f"{name!r} is missing"
    if problem["type"] == "value_error":
        return f"{name + ': ' if name else ''}{problem['ctx']['error']}"
    wanted = {"tuple_type": "a list is needed", "model_type": "a table { key = value } is needed"}
    return f"{name!r}: {wanted.get(problem['type'], problem['msg'].lower())}, given {problem['input']!r}"


def _record_at(kind: type[Strict], path: list[str]) -> type[Strict]:
    """Return the record at a path of field names."""
    for name in path:
        if name in kind.model_fields:
            annotation = kind.model_fields[name].annotation
            inner = [a for a in (annotation, *get_args(annotation)) if isinstance(a, type) and issubclass(a, Strict)]
            kind = inner[0] if inner else kind
    return kind


def read_toml(path: Path) -> dict[str, Any]:
    """Read the tables of a recipe; raise ConfigError if it is not TOML. `--set` settings stored in it are applied, so the
    recipe of a run, or a copy of it, is what was trained."""
    try:
        text = path.read_bytes().decode()
        return override(tomllib.loads(text), kept_changes(text))
    except OSError as error:
        raise ConfigError(f"cannot read recipe {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # also: no UTF-8, a number of 5,000 digits, a thousand brackets
        raise ConfigError(f"{path} is not TOML: {' '.join(str(error).split())[:200]}") from None


def override(values: dict[str, Any], settings: list[str]) -> dict[str, Any]:
    """Apply `a.b=value` settings to nested tables; the value is read as TOML, and as plain text where it is none."""
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals or not path:
            raise ConfigError(f"--set takes key=value, for example model.d_model=256, not {setting!r}")
        *tables, key = path.strip().split(".")
        table = values
        for name in tables:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise ConfigError(f"--set {setting}: {name!r} is a value, not a table")
        table[key] = _toml_value(text.strip(), setting)
    return values


CHANGE = "# --set "
"""Prefix of the lines in a run's recipe.toml that store `--set` settings, as JSON."""


def with_changes(text: str, settings: list[str]) -> str:
    """Return the text of a recipe as stored in a run folder, with the settings of the command line."""
    return text.rstrip("\n") + "\n" + "".join(f"{CHANGE}{json.dumps(setting)}\n" for setting in settings)


def kept_changes(text: str) -> list[str]:
    """Return the `--set` settings stored in a recipe, in order."""
    found = []
    for line in text.splitlines():
        if line.startswith(CHANGE + '"'):
            with suppress(ValueError):  # a comment of the user
                found.append(json.loads(line.removeprefix(CHANGE)))
    return found


def _toml_value(text: str, setting: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        if text.startswith(("[", "{")):
            raise ConfigError(
                f"--set {setting} is not TOML: put strings in double quotes and the whole setting in single quotes, "
                """--set 'data.train=[{ files = ["text.txt"] }]'"""
            ) from None
        return text


def merge(base: Any, changes: Any) -> Any:
    """Merge nested tables: `changes` overrides `base` at every depth; a value that is not a table replaces the old one."""
    if not (isinstance(base, dict) and isinstance(changes, dict)):
        return changes
    return base | {key: merge(base.get(key), value) for key, value in changes.items()}


def format_value(value: Any) -> str:
    """Format a value as in a recipe, with separators in long numbers; of a long list, the first four items."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:g}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(format_value, value[:4]))}{', ...' if len(value) > 4 else ''}]"
    if isinstance(value, Strict):
        value = {name: getattr(value, name) for name in type(value).model_fields if name in value.model_fields_set}
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {format_value(one)}" for name, one in value.items()) + " }"
    return f'"{value}"'
