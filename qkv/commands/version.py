"""`qkv version`: which qkv, Python and torch this is."""

from __future__ import annotations

import platform


def run() -> None:
    """Print the versions of qkv, Python and torch."""
    from importlib.metadata import version

    import qkv

    print(f"qkv {qkv.__version__} (Python {platform.python_version()}, torch {version('torch')})")
