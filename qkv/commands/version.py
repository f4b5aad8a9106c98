"""`qkv version`: which qkv, Python, torch and kernels these are."""

from __future__ import annotations

import platform


def run() -> None:
    """Print the versions of qkv, Python and torch, and which compiled kernels are used."""
    from importlib.metadata import version

    import qkv
    from qkv.engine import kernels

    print(
        f"qkv {qkv.__version__} (Python {platform.python_version()}, torch {version('torch')}, kernels: {kernels.describe()})"
    )
