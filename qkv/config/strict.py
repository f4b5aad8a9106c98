"""Strict records, and how files and `--set` fill them. Every problem is a ConfigError in words."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from qkv.errors import ConfigError


class Strict(BaseModel):
    """A frozen record that refuses unknown keys and silent conversions ("3" is not 3)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)

    def changed(self, **fields: Any) -> Any:
        """The same record with some fields replaced, checked again."""
        return checked(type(self), {**self.model_dump(exclude_unset=True), **fields})


def checked(kind: type[Strict], values: Any, where: str = "") -> Any:
    """Build `kind` from plain values; all problems at once, in words."""
    if not isinstance(values, dict):
        raise ConfigError(f"{where!r} is a table of fields, given {values!r}")
    try:
        return kind(**values)
    except ValidationError as error:
        raise ConfigError("; ".join(_in_words(kind, problem, where) for problem in error.errors())) from None


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
        return f"{where + ': ' if where else ''}{problem['ctx']['error']}"
    wanted = {"tuple_type": "a list is needed", "model_type": "a table { key = value } is needed"}
    return f"{name!r}: {wanted.get(problem['type'], problem['msg'].lower())}, given {problem['input']!r}"


def _record_at(kind: type[Strict], path: list[str]) -> type[Strict]:
    """The record that a path of field names leads to."""
    for name in path:
        if name in kind.model_fields:
            annotation = kind.model_fields[name].annotation
            inner = [a for a in (annotation, *get_args(annotation)) if isinstance(a, type) and issubclass(a, Strict)]
            kind = inner[0] if inner else kind
    return kind


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file, or a ConfigError that says where it is broken."""
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"cannot read recipe {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None


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
        table[key] = _toml_value(text.strip())
    return values


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def merged(base: Any, changes: Any) -> Any:
    """Tables laid over tables, at every depth; anything else replaces what was there."""
    if not (isinstance(base, dict) and isinstance(changes, dict)):
        return changes
    return base | {key: merged(base.get(key), value) for key, value in changes.items()}
