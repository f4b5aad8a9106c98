"""Load: how a server holds up. It is started in a process of its own; the clients are this process, on the loopback.

    python benchmarks/serve_load.py runs/demo                    # 1 and 32 clients, overload, dropped clients: 4 minutes
    python benchmarks/serve_load.py runs/demo --soak 30          # and 30 minutes of mixed load
    python benchmarks/serve_load.py --base                       # a 6+6 base Transformer with random weights
    python benchmarks/serve_load.py LM --generate                # a language model instead of a translator
    python benchmarks/serve_load.py runs/demo --write docs/results.md   # the table between its markers

What is asked for (issue: look inside, and serve it): throughput at 32 clients at least 4 x that of one; 60 s of 10 x overload
give 200 and 503 only, memory stays flat, and it recovers within 2 s; dropped clients leave nothing behind.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import random
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pages

SECONDS, OVERLOAD = 20.0, 60.0


@dataclass
class Tally:
    """What came back."""

    seconds: float = 0.0
    times: list[float] = field(default_factory=list)
    """Of answers with 200."""
    codes: Counter[Any] = field(default_factory=Counter)
    work: float = 0.0
    """Seconds of processor time that the server took."""

    def quantile(self, share: float) -> float:
        own = sorted(self.times) or [float("nan")]
        return own[min(len(own) - 1, int(share * len(own)))]

    @property
    def rate(self) -> float:
        return len(self.times) / self.seconds

    def row(self, name: str) -> str:
        codes = ", ".join(f"{count:,} x {code}" for code, count in sorted(self.codes.items(), key=str))
        each = 1000 * self.work / max(1, len(self.times))
        times = f"{1000 * self.quantile(0.5):.0f} | {1000 * self.quantile(0.99):.0f}"
        return f"| {name} | {self.rate:.1f} | {times} | {each:.1f} | {codes} |"


class Target:
    """The server, and what is asked of it."""

    def __init__(self, command: list[str], path: str, bodies: list[dict[str, Any]], streamed: dict[str, Any]):
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        line = next((line for line in self.process.stderr if "http://" in line), None)
        if line is None:
            sys.exit(f"the server did not start: {' '.join(command)}")
        self.port = int(line.partition("http://")[2].partition(":")[2].partition("/")[0])
        self.path, self.bodies = path, bodies
        self.streamed = streamed
        """What makes an answer a stream."""

    def processes(self) -> list[int]:
        """The server and its workers."""
        own = self.process.pid
        children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
        return [own, *map(int, children)]

    def memory(self) -> float:
        """Resident megabytes of all; what they share is counted in each."""
        lines = [line for pid in self.processes() for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
        return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024

    def work(self) -> float:
        """Seconds of processor time so far."""
        every = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in self.processes()]
        return sum(int(fields[11]) + int(fields[12]) for fields in every) / os.sysconf("SC_CLK_TCK")

    def files(self) -> int:
        return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in self.processes())

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(120)

    def request(self, body: dict[str, Any], close: bool = False) -> bytes:
        data = json.dumps(body).encode()
        head = (
            f"POST {self.path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
        )
        return head.encode() + (b"Connection: close\r\n" if close else b"") + b"\r\n" + data


async def ask(target: Target, streams: tuple[Any, Any], body: dict[str, Any]) -> int:
    """One request on an open connection; the status."""
    reader, writer = streams
    writer.write(target.request(body))
    await writer.drain()
    status = int((await reader.readline()).split()[1])
    length = 0
    while (line := await reader.readline()) not in (b"\r\n", b""):
        name, _, value = line.partition(b":")
        length = int(value) if name.lower() == b"content-length" else length
    await reader.readexactly(length)
    return status


async def client(target: Target, until: float, tally: Tally, seed: int, rest: float = 0.0) -> None:
    """Ask, wait for the answer, ask again; after a refusal it rests."""
    draw, streams = random.Random(seed), None
    while time.monotonic() < until:
        try:
            streams = streams or await asyncio.open_connection("127.0.0.1", target.port)
            start = time.monotonic()
            status = await ask(target, streams, draw.choice(target.bodies))
        except (OSError, asyncio.IncompleteReadError, IndexError, ValueError) as error:
            tally.codes[type(error).__name__] += 1
            streams = None
            await asyncio.sleep(0.05)
            continue
        tally.codes[status] += 1
        if status == 200:
            tally.times.append(time.monotonic() - start)
        else:
            streams[1].close()
            streams = None
            await asyncio.sleep(rest)
    if streams:
        streams[1].close()


async def crowd(target: Target, count: int, seconds: float, rest: float = 0.0) -> Tally:
    tally, start, before = Tally(), time.monotonic(), target.work()
    await asyncio.gather(*(client(target, start + seconds, tally, seed, rest) for seed in range(count)))
    tally.seconds, tally.work = time.monotonic() - start, target.work() - before
    return tally


def together(parts: Sequence[Tally]) -> Tally:
    whole = Tally()
    for part in parts:
        whole.seconds, whole.work = whole.seconds + part.seconds, whole.work + part.work
        whole.times += part.times
        whole.codes += part.codes
    return whole


async def droppers(target: Target, count: int) -> None:
    """Clients that ask, read a little or nothing, and go."""
    for number in range(count):
        _, writer = await asyncio.open_connection("127.0.0.1", target.port)
        writer.write(target.request(target.bodies[number % len(target.bodies)] | target.streamed))
        await writer.drain()
        if number % 2:
            await asyncio.sleep(random.random() * 0.05)
        writer.transport.abort()


async def metric(target: Target, name: str) -> float:
    """The sum of one of the server's own numbers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


async def emptied(target: Target) -> float:
    """Seconds until nobody's text is being written or waits any more."""
    start = time.monotonic()
    while await metric(target, "qkv_running_texts") + await metric(target, "qkv_queue_length"):
        await asyncio.sleep(0.1)
    return time.monotonic() - start


async def recovery(target: Target, calm: float) -> float:
    """Seconds until one client is answered, and in no more than `calm` seconds."""
    start = time.monotonic()
    while True:
        tally = Tally()
        await client(target, time.monotonic() + 0.01, tally, 0)
        if tally.times and tally.times[0] <= calm:
            return time.monotonic() - start
        await asyncio.sleep(0.05)


async def measure(target: Target, seconds: float, overload: float, soak: float) -> list[str]:
    await asyncio.sleep(5)  # until all workers are there
    await crowd(target, 16, 3)  # warm
    lines = [
        "| clients | answers/s | p50 ms | p99 ms | server CPU ms per answer | statuses |",
        "|---|---:|---:|---:|---:|---|",
    ]
    single, many = await crowd(target, 1, seconds), await crowd(target, 32, seconds)
    lines += [single.row("1"), many.row("32")]
    before = target.memory()
    parts = [await crowd(target, 320, overload / 4, rest=0.02)]
    sizes = [target.memory()]
    for _ in range(3):
        parts.append(await crowd(target, 320, overload / 4, rest=0.02))
        sizes.append(target.memory())
    flood = together(parts)
    back = await recovery(target, single.quantile(0.99))
    lines += [flood.row(f"320, {overload:g} s")]
    await droppers(target, 300)
    empty = await emptied(target)
    notes = [
        f"- 32 clients / 1 client: **{many.rate / single.rate:.1f} x** (asked: 4)",
        f"- overload: statuses {sorted(map(str, flood.codes))}; memory {before:.0f} MB before, "
        f"{', '.join(f'{mb:.0f}' for mb in sizes)} MB after each quarter; "
        f"{back:.2f} s after it one client is answered as fast as 99 % of its requests before",
        f"- 300 clients that dropped: all places free after {empty:.1f} s, {target.files()} open files, {target.memory():.0f} MB",
    ]
    if soak:
        notes += await soaked(target, soak)
    return [*lines, "", *notes]


async def soaked(target: Target, minutes: float) -> list[str]:
    """Mixed load; memory is looked at ten times."""
    samples, total = [], Counter[Any]()
    for _ in range(10):
        tally = await crowd(target, 24, 6 * minutes - 2, rest=0.05)
        await droppers(target, 20)
        total += tally.codes
        samples.append(target.memory())
    return [f"- soak, {minutes:g} min: {dict(total)}; memory {', '.join(f'{mb:.0f}' for mb in samples)} MB"]


# --- what is served


def base_model(folder: Path) -> Path:
    """The 2017 base Transformer with random weights and a vocabulary of 8,000."""
    import torch

    from qkv.api import Model
    from qkv.data.grammar import pairs
    from qkv.models.build import build
    from qkv.presets import preset
    from qkv.text.train import train_tokenizer

    torch.manual_seed(0)
    texts = [text for pair in islice(pairs("train"), 2000) for text in (pair.source, pair.target)]
    words = train_tokenizer(texts, "bpe", 8000)
    c = preset("transformer-base").changed(
        vocab_size=words.size, target_vocab_size=None, pad_id=0, bos_id=1, eos_id=2, start_id=None
    )
    Model(c, build(c), words, "cpu").save(folder / "base")
    return folder / "base"


SENTENCES = ["I ate an apple.", "The old woman sees a small dog.", "The children have read the book.", "He gives the man a house.",
             "The girl who sleeps has a red car.", "We see the cat and the big horse in the garden."]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", help="the model")
    parser.add_argument("--base", action="store_true", help="a 6+6 base Transformer with random weights")
    parser.add_argument("--generate", action="store_true", help="ask a language model to write")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--overload", type=float, default=OVERLOAD)
    parser.add_argument("--soak", type=float, default=0.0, help="minutes")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--write", type=Path, help="put the tables between the markers of this file")
    given = parser.parse_args()
    if not given.folder and not given.base:
        parser.error("give a model's folder, or --base")
    with tempfile.TemporaryDirectory() as temporary:
        folder = base_model(Path(temporary)) if given.base else Path(given.folder)
        name = "model"
        if given.generate:
            path, bodies = "/api/generate", [{"prompt": text, "max_tokens": 32} for text in SENTENCES]
        else:
            path, bodies = "/api/translate", [{"texts": [text], "max_length": 24} for text in SENTENCES]
        command = [
            sys.executable,
            "-m",
            "qkv",
            "serve",
            f"{name}={folder}",
            "--port",
            "0",
            "--workers",
            str(given.workers),
        ]
        command += [] if given.generate else ["--languages", f"{name}=en-de"]
        target = Target(command, path, bodies, {"stream": True, "max_tokens": 500} if given.generate else {})
        try:
            lines = asyncio.run(measure(target, given.seconds, given.overload, given.soak))
        finally:
            code = target.end()
    title = "6+6 base, random weights" if given.base else Path(given.folder).name
    asked = shlex.join(["python", "benchmarks/serve_load.py", *(sys.argv[1:])])
    text = "\n".join([f"## Serving under load: {title}", "", f"{datetime.date.today()}, `{asked}`: `{path}`, server and clients "
                      f"on the same machine, {pages.machine()}.", "", *lines, f"- ended by SIGTERM with exit code {code}"])  # fmt: skip
    print(text)
    if given.write:
        pages.write(given.write, f"serve {'base' if given.base else Path(given.folder).name}", text)


if __name__ == "__main__":
    main()
