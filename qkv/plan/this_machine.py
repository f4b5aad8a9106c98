"""This machine as a device: constants that `qkv plan --calibrate` has measured, in a file of the user's cache."""

from __future__ import annotations

import platform
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import log
from pathlib import Path
from typing import Any

import torch

from qkv.convert.files import read_json, write_json
from qkv.data.fetch import cache
from qkv.device import cores
from qkv.errors import QkvError
from qkv.plan.devices import USABLE
from qkv.plan.traffic import RING
from qkv.train.loop import use_bfloat16

FILE = "machine.json"
GLOO = RING | {"reduce_scatter": 2}
"""As RING; gloo has no reduce-scatter of its own and computes it by an all-reduce."""
MISSING = "the constants of this machine have not been measured yet: run `qkv plan --calibrate` (about a minute on an idle machine)"


@dataclass(frozen=True)
class ThisMachine:
    """The CPU of this machine, one thread per worker. Numbers of workers and widths are strings, as keys in JSON are."""

    host: dict[str, Any]
    """Where it was measured: constants of another machine or version of PyTorch are not used."""
    cores: int
    memory: float
    """Bytes of memory that may be used."""
    peaks: dict[str, float]
    """Precision -> operations per second of a large matrix product on one core."""
    rates: dict[str, dict[str, dict[str, float]]]
    """Precision -> workers (1 and one per core, all computing) -> width -> operations per second of training on each."""
    memory_rates: dict[str, float]
    """Workers -> bytes per second that each reads and writes."""
    collectives: dict[str, dict[str, dict[str, float]]]
    """Kind -> workers -> bytes of the full tensor -> seconds."""
    overheads: dict[str, float]
    """CPU seconds that Python takes in each pass of one worker, for a parameter under FSDP2 ("sharded") and for a matrix that tensor
    parallelism divides ("tensor")."""
    name: str = "cpu"
    overlap: bool = False
    """All cores compute, so communication takes time from them."""

    @property
    def per_machine(self) -> int:
        return 2**30  # all workers are on this machine

    @property
    def ring(self) -> Mapping[str, int]:
        return GLOO

    @property
    def default_workers(self) -> int:
        return self.cores

    def machines(self, workers: int) -> int:
        return 1

    def precision(self, wanted: str, width: int) -> str:
        """Resolve "auto" as training does: bfloat16 for wide networks where the processor has units for it."""
        half = use_bfloat16(torch.device("cpu"), wanted, width)
        if half and "bfloat16" not in self.rates:
            raise QkvError("this processor has no units for bfloat16: use --precision float32")
        return "bfloat16" if half else "float32"

    def peak(self, precision: str) -> float:
        return self.peaks[precision]

    def rate(self, precision: str, width: int, workers: int) -> float:
        """Return the operations per second of each of `workers` workers: N workers on c < N cores compute at c / N of the rate."""
        busy = min(workers, self.cores)
        measured = self.rates[precision]
        rates = measured["1" if busy == 1 else str(self.cores)]
        return interpolate(rates, width, logarithmic=True) * busy / workers

    def memory_rate(self, workers: int) -> float:
        busy = min(workers, self.cores)
        return self.memory_rates["1" if busy == 1 else str(self.cores)] * busy / workers

    def overhead(self, kind: str, workers: int) -> float:
        """Return the seconds of Python overhead of sharding; workers that share a core take turns."""
        return self.overheads[kind] * workers / min(workers, self.cores)

    def usable_memory(self, workers: int) -> float:
        return USABLE * self.memory / workers

    def collective(self, kind: str, size: float, sent: float, group: int, stride: int = 1) -> float:
        """Return the seconds of a collective: linear interpolation between the measured sizes, and the throughput of the largest above it.

        A group whose size was not measured has the total loopback throughput of the nearest one.
        """
        if group == 1:
            return 0.0
        if kind == "send":  # half of an exchange
            return self.collective("all_gather", 2 * size, sent, 2)
        measured = self.collectives[kind]
        near = min(measured, key=lambda n: abs(log(int(n) / group)))
        scale = (group - 1) / (int(near) - 1)
        return interpolate(measured[near], size) * scale * max(1, stride)


def interpolate(points: Mapping[str, float], at: float, logarithmic: bool = False) -> float:
    """Interpolate linearly between measured points; below the first return its value, above the last extrapolate in proportion to
    `at`. With `logarithmic` interpolate over the logarithm, and above the last return its value."""
    xs = sorted(float(x) for x in points)
    ys = [points[str(int(x))] for x in xs]
    if at <= xs[0]:
        return ys[0]
    if at >= xs[-1]:
        return ys[-1] * (1 if logarithmic else at / xs[-1])
    i = bisect_right(xs, at)
    scale = log if logarithmic else float
    share = (scale(at) - scale(xs[i - 1])) / (scale(xs[i]) - scale(xs[i - 1]))
    return ys[i - 1] + share * (ys[i] - ys[i - 1])


def describe_host() -> dict[str, Any]:
    """Return what identifies the machine and the software that was measured."""
    return {"node": platform.node(), "cores": cores(), "torch": torch.__version__.split("+")[0]}


def calibration_file() -> Path:
    return cache() / FILE


def save(machine: ThisMachine) -> Path:
    """Write the constants to the cache, atomically."""
    path = calibration_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, asdict(machine))
    return path


def this_machine() -> ThisMachine:
    """Read the constants; QkvError if there are none or they belong to another machine."""
    path = calibration_file()
    if not path.is_file():
        raise QkvError(MISSING)
    values = read_json(path)
    try:
        machine = ThisMachine(**values)
    except TypeError:
        raise QkvError(f"{path} was written by another version of qkv: run `qkv plan --calibrate` again") from None
    if machine.host != describe_host():
        raise QkvError(
            f"{path} was measured on another machine or with another version of PyTorch: run `qkv plan --calibrate` again"
        )
    return machine
