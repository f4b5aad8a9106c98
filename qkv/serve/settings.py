"""Settings of a server, and the default number of its worker processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from qkv.generate.free_cores import free_cores
from qkv.pretrained import find
from qkv.serve.http.auth import ApiKeys
from qkv.serve.http.limits import Limits

SMALL = 64_000_000
"""Bytes of weights up to which every worker gets a copy by default."""


@dataclass(frozen=True)
class Settings:
    """The settings that every worker process gets."""

    folders: Sequence[str]
    languages: Sequence[str] = ()
    limits: Limits = field(default_factory=Limits)
    keys: ApiKeys = field(default_factory=ApiKeys)
    run: Path | None = None
    """Folder of a training run whose log is shown."""
    origins: Sequence[str] = ()
    hosts: Sequence[str] = ()
    device: str = "auto"
    precision: str | None = None


def default_workers(folders: Sequence[str], device: str) -> int:
    """Return one worker per core that is free now if the models are small; one for large models or on a GPU.

    A worker that shares its core with another program slows its clients down.
    """
    gpu = device not in ("auto", "cpu") or any(Path(one).exists() for one in ("/dev/nvidia0", "/dev/kfd"))
    if gpu or not sys.platform.startswith("linux") or not folders or sum(map(model_bytes, folders)) > SMALL:
        return 1
    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return max(1, int(threads)) if threads.isdecimal() else free_cores()


def model_bytes(given: str) -> int:
    """Sum the file sizes of a model: FOLDER, FOLDER/best or a file, each also as NAME=FOLDER."""
    _, path = split_name(given)
    path = path / "best" if (path / "best").is_dir() else path
    return sum(file.stat().st_size for file in (path.iterdir() if path.is_dir() else [path]) if file.is_file())


def split_name(given: str) -> tuple[str, Path]:
    """Split NAME=FOLDER; the name is empty if only a path, or the name of a shipped model, is given."""
    name, equals, folder = given.partition("=")
    return (name, find(folder)) if equals and not Path(given).exists() else ("", find(given))
