"""TensorBoard event files: `tensorboard --logdir RUN` draws them; written here, so that nothing heavy is needed.

A file is a row of records: length (8 bytes), its checksum (4), an Event in protobuf, its checksum (4). A field of protobuf
is a key (number * 8 + kind) and a value: a double, a float, a varint, or bytes behind their length.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any


class Events:
    """The curves of a run, in step with its log: written anew from `past`, its lines so far, then line by line.

    So a run that was killed and resumed shows every update once. The log has no times: those of the past are spread evenly
    over the `seconds` that it took.
    """

    def __init__(self, folder: Path, past: Iterable[Mapping[str, Any]] = (), seconds: float = 0.0):
        folder.mkdir(parents=True, exist_ok=True)
        lines, now = list(past), time.time()
        self.file = open(folder / "events.out.tfevents.qkv", "wb")  # noqa: SIM115 - closed by __exit__
        self.file.write(record(double(1, now - seconds) + data(3, b"brain.Event:2")))
        for place, line in enumerate(lines, 1):
            self.write(line, now - seconds * (1 - place / len(lines)))
        self.file.flush()

    def add(self, line: Mapping[str, Any]) -> None:
        self.write(line, time.time())
        self.file.flush()

    def write(self, line: Mapping[str, Any], when: float) -> None:
        """One Event { wall_time = 1; step = 2; summary = 5 } with a Value { tag = 1; simple_value = 2 } per number."""
        values = [data(1, data(1, tag(name).encode()) + number(2, x)) for name, x in line.items() if name != "step"]
        self.file.write(record(double(1, when) + key(2, 0) + varint(line["step"]) + data(5, b"".join(values))))

    def __enter__(self) -> Events:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.file.close()


def tag(name: str) -> str:
    """What a number of log.jsonl is called there: valid_loss -> valid/loss, loss -> train/loss."""
    return f"valid/{name.removeprefix('valid_')}" if name.startswith("valid_") else f"train/{name}"


# --- records


def record(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return length + checksum(length) + event + checksum(event)


def checksum(block: bytes) -> bytes:
    """CRC-32C, turned by 15 bits and shifted, as TFRecord has it."""
    crc = crc32c(block)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def crc32c(block: bytes) -> int:
    """Castagnoli's cyclic redundancy check, byte by byte."""
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
