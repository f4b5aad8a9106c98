"""qkv: the whole Transformer in one package. `qkv.load(folder)` opens a model; see README.md for the tour."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qkv.api import Model, load

__version__ = "0.1.0"
__all__ = ["Model", "load", "__version__"]


def __getattr__(name: str) -> object:
    """`qkv.load` without importing torch before it is needed: `qkv --help` must answer at once."""
    if name in ("load", "Model"):
        from qkv import api

        return getattr(api, name)
    raise AttributeError(f"module 'qkv' has no attribute {name!r}")
