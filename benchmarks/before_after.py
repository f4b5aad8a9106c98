"""Speed of two commits on one machine, in turns: training (tiny), translating (batch 1 and 32) and serving.

    python benchmarks/before_after.py a0a3093 main                                # before and after the redesign: 15 minutes
    python benchmarks/before_after.py a0a3093 main --write docs/results.md        # the tables between their markers
    python benchmarks/before_after.py v1 v2 --only train --threads 2 --repeats 3

Each commit is exported to a temporary folder and runs its own benchmark script there (train_seq2seq.py, translate.py), with the
same weights and the same work. Both servers load the example model of the first commit, and one of them at a time gets requests.
Run it on a quiet machine: samples that other processes disturb are taken again, a few times (harness.py).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pages
import translate
import weights
from harness import Worker, visit
from train_seq2seq import CASES as TRAINING

from qkv.text.wording import plural

ROOT = Path(__file__).resolve().parent.parent
CLIENTS = (1, 32)
"""Clients that send requests to a server at once."""
REQUESTS = 200
"""Requests of one sample."""
TEXT = "The old man reads a book in the garden."


def export(commit: str, folder: Path) -> Path:
    """Write the files of a commit to a folder, and build its kernels, if it has them built at installation."""
    folder.mkdir()
    files = subprocess.run(["git", "-C", str(ROOT), "archive", commit], check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=files, check=True)
    if (folder / "setup.py").exists():
        subprocess.run([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], check=True, cwd=folder)
    return folder


# --- training and translating, by the scripts of each commit


def measure(trees: dict[str, Path], script: str, case: dict[str, Any], threads: int, repeats: int, title: str) -> str:
    """A table of the rates of both commits in one case."""
    workers = {}
    for name, tree in trees.items():
        os.environ["PYTHONPATH"] = str(tree)  # which a worker inherits
        workers[name] = Worker(str(tree / "benchmarks" / script), "qkv", case, threads)
    samples = visit({name: running.sample for name, running in workers.items()}, repeats, retries=4)
    rates, processor = {}, {}
    for name, running in workers.items():
        rates[name] = [running.units / sample["seconds"] for sample in samples[name]]
        processor[name] = [running.units / sample["processor"] for sample in samples[name]]
        running.close()
    return format_table(f"{title}, {plural(threads, 'threads')}**, tokens/s", rates, processor)


def format_table(title: str, rates: dict[str, list[float]], processor: dict[str, list[float]]) -> str:
    """Rates of each commit, per second and per second of processor time, which a busy machine disturbs less."""
    lines = [f"**{title}", "", "| commit | median | range | per second of processor time |", "|---|---|---|---|"]
    for name, own in rates.items():
        spread, cpu = f"{min(own):.4g} to {max(own):.4g}", statistics.median(processor[name])
        lines.append(f"| {name} | {statistics.median(own):.4g} | {spread} | {cpu:.4g} |")
    return "\n".join([*lines, ""])


def train(trees: dict[str, Path], threads: int, repeats: int) -> Iterator[str]:
    yield measure(trees, "train_seq2seq.py", TRAINING["tiny"], threads, repeats, "Training the tiny Transformer")


def translation(trees: dict[str, Path], threads: int, repeats: int) -> Iterator[str]:
    folder = str(weights.ensure("marian"))
    for case in translate.CASES:
        title = f"Translating with Transformer-base, batch {case['rows']}, beam {case['beam']}"
        yield measure(trees, "translate.py", {**case, "folder": folder}, threads, repeats, title)


# --- serving


@contextmanager
def server(tree: Path, model: Path, threads: int) -> Iterator[tuple[str, int]]:
    """The address and the process of a server of this commit."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # without PYTHONSAFEPATH, the current folder would come before the tree
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "qkv", "serve", f"example={model}", "--port", str(port), "--workers", "1",
               "--languages", "example=en-de"]  # fmt: skip
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        address = f"http://127.0.0.1:{port}"
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5).close()
                break
            except OSError:
                time.sleep(0.1)
        else:
            raise SystemExit(f"the server of {tree} does not start: {shlex.join(command)}")
        yield address, process.pid
    finally:
        process.terminate()
        process.wait(60)


def send(address: str) -> None:
    body = json.dumps({"q": TEXT, "source": "en", "target": "de"}).encode()
    request = urllib.request.Request(f"{address}/translate", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        json.load(reply)


def processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rate(address: str, process: int, clients: int) -> tuple[float, float]:
    """Answers per second, and per second of the server's processor time."""
    start, before = time.perf_counter(), processor_seconds(process)
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(send, [address] * REQUESTS))
    seconds, used = time.perf_counter() - start, processor_seconds(process) - before
    return REQUESTS / seconds, REQUESTS / max(used, 0.01)


def serving(trees: dict[str, Path], threads: int, repeats: int) -> Iterator[str]:
    model = next(iter(trees.values())) / "qkv" / "pretrained" / "example"
    with ExitStack() as stack:
        servers = {name: stack.enter_context(server(tree, model, threads)) for name, tree in trees.items()}
        for clients in CLIENTS:
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in servers}
            for _ in range(repeats + 1):
                for name, (address, process) in servers.items():
                    found[name].append(rate(address, process, clients))
            # the first sample of each warms up
            rates, processor = ({name: [one[i] for one in own[1:]] for name, own in found.items()} for i in (0, 1))
            title = f"Serving the example model, {plural(clients, 'clients')}**, answers/s"
            yield format_table(title, rates, processor)


PARTS: dict[str, Callable[[dict[str, Path], int, int], Iterator[str]]] = {
    "train": train, "translate": translation, "serve": serving,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="a commit")
    parser.add_argument("after", help="a commit")
    parser.add_argument("--only", choices=list(PARTS), action="append")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--write", type=Path, help="put the tables between the markers of this file")
    given = parser.parse_args()
    parts = []
    with tempfile.TemporaryDirectory() as folder:
        trees = {name: export(name, Path(folder) / side) for side, name in
                 (("before", given.before), ("after", given.after))}  # fmt: skip
        for name in given.only or PARTS:
            for part in PARTS[name](trees, given.threads, given.repeats):
                print(part, flush=True)
                parts.append(part)
    if given.write:
        command = shlex.join(["python", "benchmarks/before_after.py", *sys.argv[1:]])
        title = f"## Speed before and after: {given.before} and {given.after}"
        about = f"{datetime.date.today()}, `{command}`, {pages.machine()}."
        pages.write(given.write, "before and after", "\n".join([title, "", about, "", *parts]))


if __name__ == "__main__":
    main()
