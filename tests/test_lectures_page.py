"""docs/lectures.md: every item of the lectures has a row, every command of the page can be parsed, and names in them exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from qkv.cli import app
from qkv.lab.examples import EXAMPLES
from qkv.presets import PRESETS
from qkv.recipes import names

PAGE = Path(__file__).parent.parent / "docs" / "lectures.md"
TEXT = PAGE.read_text()
COMMANDS = list(dict.fromkeys(re.findall(r"`(qkv [^`]+)`", TEXT)))
COUNTS = {"A": 15, "B": 7, "C": 26, "D": 12}
ROWS = {cells[1].strip(): cells[2:] for line in TEXT.splitlines() if len(cells := line.split("|")) > 3}


@pytest.mark.parametrize(
    "name", [f"{letter}{number}" for letter, count in COUNTS.items() for number in range(1, count + 1)]
)
def test_every_item_has_a_row(name: str) -> None:
    """A and D with their own commands; B are computed by `qkv lectures`, C by `qkv lab run`."""
    row = ROWS[name]
    assert row[0].strip()
    assert name[0] in "BC" or "`qkv " in row[1], name
    assert name[0] == "C" or row[2].strip(), f"{name}: what it gave"
    assert name[0] not in "BD" or name in EXAMPLES


def test_no_item_is_listed_twice() -> None:
    listed = re.findall(r"^\| ([A-D]\d+) \|", TEXT, re.M)
    assert len(listed) == len(set(listed)) == sum(COUNTS.values())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_page_can_be_parsed(command: str) -> None:
    """As far as its arguments go; nothing is run. A placeholder in capitals stands for a folder or a name."""
    words = shlex.split(command)[1:]
    current, parent = get_command(app), None
    while True:
        context = current.make_context("qkv", list(words), parent=parent)
        if not hasattr(current, "resolve_command"):
            return
        if not (rest := [*context._protected_args, *context.args]):
            return  # a group alone lists what it has
        _, current, words = current.resolve_command(context, rest)  # type: ignore[assignment]
        parent = context
        assert current is not None


@pytest.mark.parametrize("command", COMMANDS)
def test_names_in_commands_exist(command: str) -> None:
    verb, *rest = shlex.split(command)[1:]
    if verb == "train" or (verb in ("ablate", "scale") and rest):
        assert rest[0] in names(), command
    if verb in ("params", "cost") and not rest[0].isupper():
        assert rest[0] in PRESETS, command
    if verb == "lectures":
        assert all(one in EXAMPLES for one in rest if re.fullmatch(r"[BD]\d+", one)), command
    if verb == "lab" and rest:
        assert all(one in ROWS for one in rest if re.fullmatch(r"C\d+", one)), command


def test_all_ten_errata_are_listed() -> None:
    errata = TEXT.partition("## Errata")[2]
    assert len(re.findall(r"^- \*\*", errata, re.M)) == 10
