"""Devices to plan for: peak operations per second, memory and connections, from data sheets and publications.

The CPU of this machine has measured constants instead (calibrate.py). Both kinds have the same methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from qkv.errors import ConfigError
from qkv.plan.traffic import RING

GB, TERA = 1e9, 1e12
USABLE = 0.92
"""Share of a device's memory for tensors; the rest is used by the driver or lost to fragmentation."""
ACHIEVED = 0.8
"""Share of a connection's nominal rate that large messages reach (NCCL's own benchmarks: 0.75 to 0.9)."""


@dataclass(frozen=True)
class Accelerator:
    """A GPU, in machines of `per_machine` of them."""

    name: str
    memory: float
    """Bytes."""
    float32: float
    """Peak operations per second of float32 matrix products."""
    bfloat16: float | None
    """The same in bfloat16 with sums in float32; None = it has none, and qkv trains in float32."""
    share: float
    """Share of the peak that the matrix products of training reach, communication not included."""
    bandwidth: float
    """Bytes per second of its memory."""
    link: float
    """Bytes per second that it sends to the others of its machine."""
    network: float
    """Bytes per second that it sends to other machines."""
    per_machine: int
    latency: float = 8e-6
    """Latency of one step of a collective in seconds."""
    overlap: bool = True
    """Whether communication goes on while the device computes."""

    @property
    def default_workers(self) -> int:
        return self.per_machine

    @property
    def ring(self) -> Mapping[str, int]:
        return RING

    def precision(self, wanted: str, width: int) -> str:
        """Resolve "auto": bfloat16 where the device has it."""
        if wanted == "bfloat16" and self.bfloat16 is None:
            raise ConfigError(f"{self.name} has no bfloat16: use --precision float32")
        return wanted if wanted != "auto" else "bfloat16" if self.bfloat16 else "float32"

    def peak(self, precision: str) -> float:
        """Return the operations per second of its data sheet."""
        return self.bfloat16 if precision == "bfloat16" and self.bfloat16 else self.float32

    def rate(self, precision: str, width: int, workers: int) -> float:
        """Return the operations per second that training reaches; the same for any width and number of workers."""
        return self.share * self.peak(precision)

    def memory_rate(self, workers: int) -> float:
        """Return the bytes per second that one worker reads or writes."""
        return ACHIEVED * self.bandwidth

    def usable_memory(self, workers: int) -> float:
        """Return the bytes that each of `workers` workers may fill with tensors."""
        return USABLE * self.memory

    def send_rate(self, group: int, stride: int = 1) -> float:
        """Return the bytes per second of every worker in a collective of `group` workers, each `stride` ranks from the next.

        Within a machine: the bandwidth of its links. Between machines every device has its own connection: the workers of a machine
        that take part in the same collective form several rings, so their bandwidths add up (NCCL).
        """
        if group * stride <= self.per_machine:
            return ACHIEVED * self.link
        together = max(1, min(group, self.per_machine // stride))
        return ACHIEVED * min(self.link, together * self.network)

    def collective(self, kind: str, size: float, sent: float, group: int, stride: int = 1) -> float:
        """Return the seconds of a collective over a tensor of `size` bytes, of which every worker sends `sent` bytes.

        A ring: N - 1 steps, twice as many for an all-reduce.
        """
        steps = (group - 1) * (2 if kind == "all_reduce" else 1)
        return sent / self.send_rate(group, stride) + steps * self.latency

    def overhead(self, kind: str, workers: int) -> float:
        """Return the seconds of Python overhead of sharding: none, since a GPU computes meanwhile."""
        return 0.0

    def machines(self, workers: int) -> int:
        return ceil(workers / self.per_machine)


DEVICES = {
    device.name: device
    for device in (
        # NVIDIA A100 data sheet (2021). DGX A100: NVLink 600 GB/s both ways, one 200 Gb/s InfiniBand port per GPU. Share: Narayanan
        # et al. 2021, table 1, 44 to 52 % of the peak for ten sizes, communication included
        Accelerator("a100-40g", 40 * GB, 19.5 * TERA, 312 * TERA, 0.5, 1555 * GB, 300 * GB, 25 * GB, 8),
        Accelerator("a100-80g", 80 * GB, 19.5 * TERA, 312 * TERA, 0.5, 2039 * GB, 300 * GB, 25 * GB, 8),
        # NVIDIA H100 SXM data sheet (2023): dense. DGX H100: NVLink 900 GB/s both ways, one 400 Gb/s port per GPU. Share: Grattafiori et
        # al. 2024 (Llama 3), table 4, 38 to 43 % with communication
        Accelerator("h100-80g", 80 * GB, 67 * TERA, 989 * TERA, 0.45, 3350 * GB, 450 * GB, 50 * GB, 8),
        # NVIDIA V100 SXM2 data sheet. No bfloat16. DGX-1: NVLink 300 GB/s both ways, four 100 Gb/s ports for 8 GPUs. Share assumed
        Accelerator("v100-32g", 32 * GB, 15.7 * TERA, None, 0.4, 900 * GB, 150 * GB, 6.25 * GB, 8),
        # NVIDIA P100 SXM2 data sheet, the GPU of Vaswani et al. 2017. DGX-1: NVLink 160 GB/s both ways, as above. Share assumed
        Accelerator("p100-16g", 16 * GB, 10.6 * TERA, None, 0.4, 732 * GB, 80 * GB, 6.25 * GB, 8),
        # NVIDIA Ada whitepaper: 165 TFLOP/s with sums in float32. PCIe 4.0 x16 without peer-to-peer; one 25 Gb/s port for 4. Share assumed
        Accelerator("rtx-4090", 24 * GB, 82.6 * TERA, 165.2 * TERA, 0.4, 1008 * GB, 20 * GB, 0.78 * GB, 4),
        # NVIDIA T4 data sheet. No bfloat16. PCIe 3.0 x16; a 50 Gb/s port for 4, as clouds offer it. Share assumed (70 W limit its clock)
        Accelerator("t4", 16 * GB, 8.1 * TERA, None, 0.4, 320 * GB, 12 * GB, 1.56 * GB, 4),
    )
}
"""Name -> device."""


def find_device(name: str) -> Accelerator:
    """Return a device by name; ConfigError, with all names, for an unknown one."""
    if name not in DEVICES:
        raise ConfigError(f"unknown device {name!r}: choose one of {', '.join(DEVICES)} or cpu")
    return DEVICES[name]
