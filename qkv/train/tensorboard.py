"""TensorBoard event files, for `tensorboard --logdir RUN`.

Implemented here, because the tensorboard package with gRPC and protobuf takes 60 MB and this is a page of code.

A file is a row of records: length (8 bytes), its checksum (4), an Event in protobuf, its checksum (4). A field of protobuf
is a key (number * 8 + kind) and a value: a double, a float, a varint, or bytes behind their length.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


class Events:
    """An event file in `folder` that replaces an older one; `start` is when the run began."""

    def __init__(self, folder: Path, start: float):
        folder.mkdir(parents=True, exist_ok=True)
        self.file = open(folder / "events.out.tfevents.qkv", "wb")  # noqa: SIM115 - closed by close()
        self.file.write(record(WALL_TIME + struct.pack("<d", start) + message(3, b"brain.Event:2")))

    def write(self, lines: Iterable[tuple[float, Mapping[str, Any]]]) -> None:
        """Write (time, line of the log) pairs: valid_loss is valid/loss there, loss is train/loss."""
        for when, line in lines:
            tags = {name: f"valid/{name[6:]}" if name.startswith("valid_") else f"train/{name}" for name in line}
            values = [message(1, message(1, tags[name].encode()) + SIMPLE_VALUE + struct.pack("<f", x))
                      for name, x in line.items() if name != "step"]  # fmt: skip
            times = WALL_TIME + struct.pack("<d", when) + STEP + varint(line["step"])
            self.file.write(record(times + message(5, b"".join(values))))
        self.file.flush()

    def close(self) -> None:
        self.file.close()


def record(event: bytes) -> bytes:
    """Return a TFRecord, whose checksums are CRC-32C rotated by 15 bits, plus a constant."""
    length = struct.pack("<Q", len(event))
    sums = [((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF for crc in map(crc32c, (length, event))]
    return length + struct.pack("<I", sums[0]) + event + struct.pack("<I", sums[1])


def crc32c(block: bytes) -> int:
    """Return CRC-32C (Castagnoli), byte by byte."""
    crc = 0xFFFFFFFF
    for byte in block:
        crc = CASTAGNOLI[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _castagnoli(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


CASTAGNOLI = [_castagnoli(byte) for byte in range(256)]


# --- protobuf: Event { wall_time = 1; step = 2; summary = 5 }, Summary { value = 1 }, Value { tag = 1; simple_value = 2 }

WALL_TIME, STEP, SIMPLE_VALUE = b"\x09", b"\x10", b"\x15"
"""Keys, number * 8 + kind: a double, a varint, a float."""


def message(field: int, block: bytes) -> bytes:
    """Return a field of bytes: its key, the length, and the bytes."""
    return bytes([field << 3 | 2]) + varint(len(block)) + block


def varint(n: int) -> bytes:
    """Return seven bits per byte, the lowest first; the eighth is set where more follow."""
    return bytes([n]) if n < 0x80 else bytes([n & 0x7F | 0x80]) + varint(n >> 7)
