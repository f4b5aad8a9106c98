"""Load: how a server holds up. It is started in a process of its own; the clients are this process, on the loopback.

    python benchmarks/serve_load.py example                      # the translator that ships with qkv: 3 minutes
    python benchmarks/serve_load.py --base                       # a 6+6 base Transformer with random weights
    python benchmarks/serve_load.py --characters                 # a character model with random weights, answers streamed
    python benchmarks/serve_load.py LM --generate                # a language model of your own, answers streamed
    python benchmarks/serve_load.py example --soak 30            # and 30 minutes of mixed load
    python benchmarks/serve_load.py example --write docs/results.md   # the table between its markers

Wanted: throughput at 32 clients at least 4 x that of one. Overload fills the queue: 200 and 503 with Retry-After only, flat
memory, and calm within 2 s after it. Clients that drop their connections leave nothing behind.
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
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pages

SECONDS, OVERLOAD = 20.0, 60.0
CROWD = 640
"""Clients of the overload: more than all rows of two workers (2 x 128) and their queues."""
QUEUE = 64
"""Texts that may wait for each worker (`--limit waiting`)."""
REST = 0.2
"""Seconds that a refused client of the overload waits: less than it is told to."""
ENOUGH = 60
"""Texts that wait while a client is refused: fewer would mean that the queue was not full."""
PATIENCE = 30.0
"""Seconds to wait for a calm server after an overload. Where other programs take the machine meanwhile, it may never be."""


@dataclass
class Tally:
    """What came back."""

    seconds: float = 0.0
    times: list[float] = field(default_factory=list)
    """Of answers with 200."""
    codes: Counter[str] = field(default_factory=Counter)
    work: float = 0.0
    """Seconds of processor time that the server took."""

    def quantile(self, share: float) -> float:
        own = sorted(self.times) or [float("nan")]
        return own[min(len(own) - 1, int(share * len(own)))]

    @property
    def rate(self) -> float:
        return len(self.times) / self.seconds

    def statuses(self) -> str:
        return ", ".join(f"{count:,} x {code}" for code, count in sorted(self.codes.items()))

    def row(self, name: str) -> str:
        each = 1000 * self.work / max(1, len(self.times))
        times = f"{1000 * self.quantile(0.5):.0f} | {1000 * self.quantile(0.99):.0f}"
        return f"| {name} | {self.rate:.1f} | {times} | {each:.1f} | {self.statuses()} |"


class Target:
    """The server, and what is requested of it."""

    def __init__(self, command: list[str], path: str, bodies: list[dict[str, Any]], tree: Path | None = None):
        # without PYTHONSAFEPATH, the current folder would come before the tree
        environment = {} if tree is None else {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment})
        assert self.process.stderr is not None
        line = next((line for line in self.process.stderr if "http://" in line), None)
        if line is None:
            sys.exit(f"the server did not start: {' '.join(command)}")
        self.port = int(line.partition("http://")[2].partition(":")[2].partition("/")[0])
        self.path, self.bodies = path, bodies

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

    def request(self, body: dict[str, Any]) -> bytes:
        data = json.dumps(body).encode()
        head = f"POST {self.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
        return f"{head}\r\n\r\n".encode() + data


# --- clients


async def answer(reader: asyncio.StreamReader) -> str:
    """Read one answer to its end: its status, and what is wrong with it."""
    status = (await reader.readline()).split()[1].decode()
    headers: dict[bytes, bytes] = {}
    while (line := await reader.readline()) not in (b"\r\n", b""):
        name, _, value = line.partition(b":")
        headers[name.lower()] = value.strip()
    if b"content-length" in headers:
        await reader.readexactly(int(headers[b"content-length"]))
        missing = status == "503" and int(headers.get(b"retry-after", 0)) < 1
        return "503 without Retry-After" if missing else status
    last = b""
    while size := int(await reader.readline(), 16):  # a stream, in chunks
        last = await reader.readexactly(size + 2)
    await reader.readline()
    return f"{status} with an error in the stream" if b'"error"' in last else status


async def client(target: Target, until: float, tally: Tally, seed: int, rest: float = 0.0) -> None:
    """Send a request, wait for the answer, send the next; after a refusal wait."""
    draw, streams = random.Random(seed), None
    while time.monotonic() < until:
        try:
            streams = streams or await asyncio.open_connection("127.0.0.1", target.port)
            start = time.monotonic()
            streams[1].write(target.request(draw.choice(target.bodies)))
            status = await answer(streams[0])
        except (OSError, asyncio.IncompleteReadError, IndexError, ValueError) as error:
            tally.codes[type(error).__name__] += 1
            streams = None
            await asyncio.sleep(0.05)
            continue
        tally.codes[status] += 1
        if status == "200":
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
    """Clients that send a request, read a little or nothing, and go."""
    for number in range(count):
        _, writer = await asyncio.open_connection("127.0.0.1", target.port)
        writer.write(target.request(target.bodies[number % len(target.bodies)]))
        await writer.drain()
        if number % 2:
            await asyncio.sleep(random.random() * 0.05)
        writer.transport.abort()


# --- what is measured


async def metric(target: Target, name: str) -> float:
    """The sum of one of the server's own numbers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


async def watch(target: Target, waiting: list[float], memory: list[float]) -> None:
    """Note how many texts wait, and the memory, twice a second, until cancelled."""
    while True:
        memory.append(target.memory())
        waiting.append(await metric(target, "qkv_queue_length"))
        await asyncio.sleep(0.5)


async def emptied(target: Target) -> float:
    """Seconds until no text is being written or waits any more."""
    start = time.monotonic()
    while await metric(target, "qkv_running_texts") + await metric(target, "qkv_queue_length"):
        await asyncio.sleep(0.1)
    return time.monotonic() - start


async def recovery(target: Target, calm: float) -> float:
    """Seconds until one client is answered, and in no more than `calm` seconds; infinity if that takes longer than PATIENCE."""
    start = time.monotonic()
    while time.monotonic() < start + PATIENCE:
        tally = Tally()
        await client(target, time.monotonic() + 0.01, tally, 0)
        if tally.times and tally.times[0] <= calm:
            return time.monotonic() - start
        await asyncio.sleep(0.05)
    return float("inf")


async def overload_error(target: Target, seconds: float, calm: float) -> tuple[Tally, list[str]]:
    """More clients than the queue has room for, in four quarters, with the most memory in each."""
    before, parts, sizes, waiting = target.memory(), list[Tally](), list[float](), list[float]()
    for _ in range(4):
        memory = list[float]()
        watching = asyncio.ensure_future(watch(target, waiting, memory))
        parts.append(await crowd(target, CROWD, seconds / 4, rest=REST))
        watching.cancel()
        sizes.append(max(memory))
    flood, back = together(parts), await recovery(target, calm)
    full = "the queue was full" if flood.codes["503"] and max(waiting) >= ENOUGH else "THE QUEUE WAS NOT FULL"
    growth = [f"{100 * (after / size - 1):+.1f} %" for size, after in pairwise(sizes)]
    return flood, [
        f"- overload: {flood.statuses()}; {full}, up to {max(waiting):.0f} texts waited; {back:.2f} s after it one client is "
        "answered as fast as 99 % of its requests before",
        f"- memory: {before:.0f} MB before, at most {', '.join(f'{mb:.0f}' for mb in sizes)} MB in each quarter of the overload "
        f"({', '.join(growth)}), {target.memory():.0f} MB after it",
    ]


async def measure(target: Target, seconds: float, overload: float, soak: float) -> list[str]:
    await asyncio.sleep(5)  # until all workers are there
    await crowd(target, 16, 3)  # warm
    lines = [
        "| clients | answers/s | p50 ms | p99 ms | server CPU ms per answer | statuses |",
        "|---|---:|---:|---:|---:|---|",
    ]
    single, many = await crowd(target, 1, seconds), await crowd(target, 32, seconds)
    flood, notes = await overload_error(target, overload, single.quantile(0.99))
    lines += [single.row("1"), many.row("32"), flood.row(f"{CROWD}, {overload:g} s")]
    await droppers(target, 300)
    empty = await emptied(target)
    notes = [
        f"- 32 clients / 1 client: **{many.rate / single.rate:.1f} x** (wanted: 4)",
        *notes,
        f"- 300 clients that dropped: all places free after {empty:.1f} s, {target.files()} open files, {target.memory():.0f} MB",
    ]
    if soak:
        notes += await soaked(target, soak)
    return [*lines, "", *notes]


async def soaked(target: Target, minutes: float) -> list[str]:
    """Mixed load; memory is read ten times."""
    samples, total = [], Tally()
    for _ in range(10):
        total = together([total, await crowd(target, 24, 6 * minutes - 2, rest=0.05)])
        await droppers(target, 20)
        samples.append(target.memory())
    return [f"- soak, {minutes:g} min: {total.statuses()}; memory {', '.join(f'{mb:.0f}' for mb in samples)} MB"]


# --- what is served


def base_model(folder: Path) -> Path:
    """The 2017 base Transformer with random weights and a vocabulary of 8,000."""
    from qkv.presets import preset

    return random_model(folder / "base", preset("transformer-base"), "bpe", 8000)


def character_model(folder: Path) -> Path:
    """The network of the recipe shakespeare-char with random weights."""
    import qkv
    from qkv.config import ModelConfig, validate
    from qkv.config.strict import read_toml

    fields = read_toml(Path(qkv.__file__).parent / "recipes" / "shakespeare-char.toml")["model"]
    return random_model(folder / "characters", validate(ModelConfig, {**fields, "vocab_size": 100}), "characters", 100)


def random_model(folder: Path, config: Any, tokenizer: str, size: int) -> Path:
    import torch

    from qkv.api import Model
    from qkv.data.grammar import pairs
    from qkv.models.build import build
    from qkv.text.train import train_tokenizer

    torch.manual_seed(0)
    texts = [text for pair in islice(pairs("train"), 2000) for text in (pair.source, pair.target)]
    words = train_tokenizer(texts, tokenizer, size)
    c = config.changed(vocab_size=words.size, target_vocab_size=None, pad_id=0, bos_id=1, eos_id=2, start_id=None)
    Model(c, build(c), words, "cpu").save(folder)
    return folder


SENTENCES = ["I ate an apple.", "The old woman sees a small dog.", "The children have read the book.", "He gives the man a house.",
             "The girl who sleeps has a red car.", "We see the cat and the big horse in the garden."]  # fmt: skip


def target_of(
    model: str, generate: bool, workers: int, precision: str | None = None, tree: Path | None = None
) -> Target:
    """A server with a short queue, and the requests: translations, or texts that are streamed. `tree`: qkv's files, if not these."""
    if generate:
        path, bodies = "/api/generate", [{"prompt": text, "max_tokens": 32, "stream": True} for text in SENTENCES]
    else:
        path, bodies = "/api/translate", [{"texts": [text], "max_length": 24} for text in SENTENCES]
    command = [sys.executable, "-m", "qkv", "serve", f"model={model}", "--port", "0", "--workers", str(workers),
               "--limit", f"waiting={QUEUE}", *([] if generate else ["--languages", "model=en-de"]),
               *([] if precision is None else ["--precision", precision])]  # fmt: skip
    return Target(command, path, bodies, tree)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="a folder, or the name of a shipped model")
    parser.add_argument("--base", action="store_true", help="a 6+6 base Transformer with random weights")
    parser.add_argument("--characters", action="store_true", help="a character model with random weights")
    parser.add_argument("--generate", action="store_true", help="the model is a language model: stream texts")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--overload", type=float, default=OVERLOAD)
    parser.add_argument("--soak", type=float, default=0.0, help="minutes")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--precision", choices=["float32", "int8"], help="default: as the model is stored")
    parser.add_argument("--write", type=Path, help="put the tables between the markers of this file")
    given = parser.parse_args()
    if not given.model and not given.base and not given.characters:
        parser.error("give a model, --base or --characters")
    with tempfile.TemporaryDirectory() as temporary:
        made = base_model if given.base else character_model if given.characters else None
        model = given.model if made is None else str(made(Path(temporary)))
        target = target_of(model, given.generate or given.characters, given.workers, given.precision)
        try:
            lines = asyncio.run(measure(target, given.seconds, given.overload, given.soak))
        finally:
            code = target.end()
    name = "base" if given.base else "characters" if given.characters else Path(given.model).name
    title = {"base": "6+6 base, random weights", "characters": "a character model, random weights"}.get(name, name)
    command = shlex.join(["python", "benchmarks/serve_load.py", *(sys.argv[1:])])
    text = "\n".join([f"## Serving under load: {title}", "", f"{datetime.date.today()}, `{command}`: `{target.path}`, a queue of "
                      f"{QUEUE} texts per worker, server and clients on the same machine, {pages.machine()}.", "", *lines,
                      f"- ended by SIGTERM with exit code {code}"])  # fmt: skip
    print(text)
    if given.write:
        pages.write(given.write, f"serve {name}", text)


if __name__ == "__main__":
    main()
