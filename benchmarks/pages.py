"""What the benchmarks write into docs/results.md: a section between two markers, and on which machine it was measured."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def machine(packages: Iterable[str] = ("torch",)) -> str:
    """Processor, count, memory and versions, in a line."""
    names = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    processor = f"{os.cpu_count()} x {names[0] if names else platform.machine()}"
    return ", ".join([processor, f"{memory:.0f} GiB, Python {platform.python_version()}", *versions(packages)])


def versions(packages: Iterable[str]) -> Iterable[str]:
    for name in packages:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            yield f"no {name}"


def write(path: Path, name: str, text: str) -> None:
    """Put `text` between the markers of the section `name`, at the end of the page where there are none yet."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    old = path.read_text() if path.exists() else ""
    before, _, rest = old.partition(begin)
    after = rest.partition(end)[2].lstrip()
    page = f"{before.rstrip()}\n\n{begin}\n{text.strip()}\n{end}\n".lstrip()
    path.write_text(page + (f"\n{after}" if after else ""))
