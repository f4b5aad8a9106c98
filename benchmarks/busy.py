"""Speed beside other busy processes: training the demo recipe, translating a file, single sentences, serving.

    python benchmarks/busy.py                       # all of it, about 25 minutes
    python benchmarks/busy.py --only train --loads 0 2 --repeats 1

The loads are processes that it starts and stops itself, each an endless loop that keeps one core busy. Systems are visited in
turn within every round, so that what disturbs one disturbs all; figures are medians over the rounds. "One thread" is
the same command with OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

CORES = len(os.sched_getaffinity(0))
SENTENCES = 300
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


@contextmanager
def load(count: int) -> Iterator[None]:
    """Keep `count` cores busy."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    time.sleep(0.5 if count else 0)
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def qkv(*arguments: str, env: dict[str, str] | None = None) -> str:
    """Run a command; its output, or the end of what it complained about."""
    done = subprocess.run(
        [sys.executable, "-m", "qkv", *arguments], env={**os.environ, **(env or {})}, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"qkv {' '.join(arguments)}: {done.stderr[-2000:]}")
    return done.stdout


# --- training


def train(way: str, folder: Path, updates: int) -> float:
    """Target tokens per second of the demo recipe."""
    options = {"default": [], "threads": ["--threads", str(CORES)], "one thread": ["--threads", "1"]}[way]
    out = folder / f"train-{time.monotonic_ns()}"
    settings = [f"train.steps={updates}", "train.evaluate_every=100%", "train.save_every=100%", "data.test={grammar=10}",
                "data.valid={grammar=1}"]  # fmt: skip
    qkv("train", "demo", "--out", str(out), *options, *(word for s in settings for word in ("--set", s)))
    return float(json.loads((out / "results.json").read_text())["training"]["target_tokens_per_second"])


# --- use

TIMED = """
import json, sys, time
import qkv
from benchmarks_busy_model import model_of
model = model_of(sys.argv[1])
texts = json.loads(sys.argv[2])
how = json.loads(sys.argv[3])
single = sys.argv[4] == "single"
work = (lambda: [model.translate([t], **how) for t in texts]) if single else (lambda: model.translate(texts, **how))
model.translate(texts[:4], **how)
start = time.perf_counter(); work(); print(len(texts) / (time.perf_counter() - start))
"""

MODEL = """
import qkv, torch
from qkv.api import Model
from qkv.models.build import build
from qkv.presets import preset

def model_of(name):
    model = qkv.load("example")
    if name == "example":
        return model
    torch.manual_seed(0)
    ids = {k: getattr(model.config, k) for k in ("vocab_size", "pad_id", "bos_id", "eos_id", "start_id")}
    config = preset("transformer-base").changed(**ids)
    return Model(config, build(config), model.tokenizer)
"""


def use(model: str, single: bool, way: str, folder: Path, texts: list[str]) -> float:
    """Sentences per second in one process that has the model open."""
    (folder / "benchmarks_busy_model.py").write_text(MODEL)
    how = {"beam": 4} if model == "example" else {"beam": 4, "min_length": 20, "max_length": 20}
    count = 40 if model == "example" and single else 8 if single else 64 if model == "base" else len(texts)
    command = [sys.executable, "-c", TIMED, model, json.dumps(texts[:count]), json.dumps(how),
               "single" if single else "batch"]  # fmt: skip
    path = os.pathsep.join([str(folder), str(Path(__file__).resolve().parents[1])])
    env = {**os.environ, "PYTHONPATH": path, **(ONE_THREAD if way == "one thread" else {})}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return float(done.stdout)


def serve(way: str, clients: int, texts: list[str]) -> float:
    """Requests per second of some clients that send one sentence after the other."""
    env = {**os.environ, **(ONE_THREAD if way == "one thread" else {})}
    server = subprocess.Popen(
        [sys.executable, "-m", "qkv", "serve", "example", "--port", "0"], env=env, stderr=subprocess.PIPE, text=True
    )
    try:
        assert server.stderr is not None
        address = next(m[0] for line in server.stderr if (m := re.search(r"http://[\d.]+:\d+", line)))
        asked = [
            json.dumps({"q": text, "source": "en", "target": "de"}).encode()
            for text in texts[: 60 if clients == 1 else 240]
        ]
        headers = {"Content-Type": "application/json"}
        send = lambda body: urllib.request.urlopen(urllib.request.Request(f"{address}/translate", body, headers)).read()  # noqa: E731
        with ThreadPoolExecutor(clients) as pool:
            list(pool.map(send, asked[:10]))
            start = time.perf_counter()
            list(pool.map(send, asked))
        return len(asked) / (time.perf_counter() - start)
    finally:
        server.terminate()
        server.wait()


# --- the table


def cases(folder: Path, updates: int) -> dict[str, tuple[str, list[str], object]]:
    """What is measured: unit, ways, and the function of a way."""
    from qkv.data.grammar import sentences

    texts = [english for english, _ in sentences().read("test", 0, SENTENCES)]
    two = ["default", "one thread"]
    return {
        "train": ("target tokens/s", ["default", "threads", "one thread"], lambda way: train(way, folder, updates)),
        "file, example model": ("sentences/s", two, lambda way: use("example", False, way, folder, texts)),
        "single sentences, example model": ("sentences/s", two, lambda way: use("example", True, way, folder, texts)),
        "file, Transformer-base": ("sentences/s", two, lambda way: use("base", False, way, folder, texts)),
        "single sentences, Transformer-base": ("sentences/s", two, lambda way: use("base", True, way, folder, texts)),
        "serve, example model, 1 client": ("requests/s", two, lambda way: serve(way, 1, texts)),
        "serve, example model, 8 clients": ("requests/s", two, lambda way: serve(way, 8, texts)),
    }


def measure(only: list[str], skip: list[str], loads: list[int], repeats: int, updates: int) -> list[str]:
    lines = [
        "| work | unit | way | " + " | ".join(f"{n} busy" for n in loads) + " |",
        "|---|---|---|" + "---:|" * len(loads),
    ]
    with tempfile.TemporaryDirectory() as place:
        for name, (unit, ways, work) in cases(Path(place), updates).items():
            if only and not any(name.startswith(one) for one in only):
                continue
            ways = [way for way in ways if way not in skip]
            found: dict[tuple[str, int], list[float]] = {}
            for _ in range(repeats):
                for count in loads:
                    for way in ways:
                        with load(count):
                            found.setdefault((way, count), []).append(work(way))  # type: ignore[operator]
            for way in ways:
                cells = [statistics.median(found[way, count]) for count in loads]
                lines.append(
                    f"| {name} | {unit} | {way} | "
                    + " | ".join(f"{c:,.0f}" if c >= 100 else f"{c:.1f}" for c in cells)
                    + " |"
                )
                print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="cases whose names begin so: train, file, single, serve")
    parser.add_argument("--skip", nargs="*", default=[], help="ways to leave out: threads, 'one thread'")
    parser.add_argument("--loads", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--updates", type=int, default=150, help="updates of each training")
    arguments = parser.parse_args()
    print("\n".join(measure(arguments.only, arguments.skip, arguments.loads, arguments.repeats, arguments.updates)))


if __name__ == "__main__":
    main()
