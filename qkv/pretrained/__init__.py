"""Pretrained models that ship with the package: each is a folder here, and its name is accepted wherever a path is."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
EXAMPLE = "example"
"""A small translator, English to German; trained and stored by `make example-model`."""
NOTE = "This model was trained on a small grammar and some greetings; other words are translated wrongly."
"""Limitations of the example model, shown to users; its config.json holds it."""
ABOUT_EXAMPLE = (
    "using the example model that ships with qkv (English to German, trained on a small grammar only); give a FOLDER to use "
    "your own"
)


def names() -> list[str]:
    """The models that ship with the package."""
    return sorted(path.parent.name for path in HERE.glob("*/config.json"))


def find(path: str | Path) -> Path:
    """Return the folder of a shipped model for its name (`example`), and any other path unchanged.

    A file or folder of that name in the working directory comes first.
    """
    path = Path(path)
    return HERE / path if str(path) in names() and not path.exists() else path
