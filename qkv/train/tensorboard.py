"""TensorBoard event files, for `tensorboard --logdir RUN`.

Written here, because the tensorboard package would be 60 MB with gRPC and protobuf for what is a page of code.

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
        self.file.write(record(double(1, start) + data(3, b"brain.Event:2")))

    def write(self, lines: Iterable[tuple[float, Mapping[str, Any]]]) -> None:
        """Write (time, line of the log) pairs, each as an Event { wall_time = 1; step = 2; summary = 5 } whose summary has a
        Value { tag = 1; simple_value = 2 } per number."""
        for when, line in lines:
            values = [data(1, data(1, tag(name).encode()) + number(2, x)) for name, x in line.items() if name != "step"]
            self.file.write(record(double(1, when) + key(2, 0) + varint(line["step"]) + data(5, b"".join(values))))
        self.file.flush()

    def close(self) -> None:
        self.file.close()


def tag(name: str) -> str:
    """Return the tag of a number of log.jsonl: valid_loss -> valid/loss, loss -> train/loss."""
    return f"valid/{name.removeprefix('valid_')}" if name.startswith("valid_") else f"train/{name}"


# --- records


def record(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return length + checksum(length) + event + checksum(event)


def checksum(block: bytes) -> bytes:
    """Return the masked CRC-32C of TFRecord: rotated by 15 bits, plus a constant."""
    crc = crc32c(block)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


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


# --- protobuf


def key(field: int, kind: int) -> bytes:
    return varint(field << 3 | kind)


def varint(n: int) -> bytes:
    """Seven bits per byte, the lowest first; the eighth says that more follow."""
    found = bytearray()
    while n > 0x7F:
        found.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*found, n])


def double(field: int, x: float) -> bytes:
    return key(field, 1) + struct.pack("<d", x)


def number(field: int, x: float) -> bytes:
    return key(field, 5) + struct.pack("<f", x)


def data(field: int, block: bytes) -> bytes:
    return key(field, 2) + varint(len(block)) + block
