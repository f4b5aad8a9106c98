"""Faults of folders, for faults.py: damaged models, checkpoints and inputs, and a save that is killed or cannot write."""

from __future__ import annotations

import hashlib
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import qkv
from qkv.api import Model
from qkv.errors import FileError, QkvError
from qkv.models.build import build
from qkv.presets import tiny
from qkv.train import checkpoint

RECIPE = """[model]
family = "encoder-decoder"
d_model = 16
n_layers = 1
n_heads = 2
d_ff = 32
[data]
train = [{ files = ["train.en", "train.de"] }]
valid = { grammar = 3 }
vocab_size = 150
batch_tokens = 300
[train]
steps = 6
warmup = 2
evaluate_every = 2
save_every = 2
keep = 3
"""
TRAIN = [sys.executable, "-m", "qkv", "train", "recipe.toml", "--out", "run", "--threads", "1"]
SAVER = """import sys, itertools
sys.path.insert(0, {here!r})
import fault_folders, resource
if {size}: resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))
models = [fault_folders.model(1), fault_folders.model(2)]
print("ready", flush=True)
for n in itertools.count(): models[n % 2].save({folder!r})
"""
"""A process that saves two models in turn over one another, until it is killed or cannot write."""


def model(seed: int) -> Model:
    torch.manual_seed(seed)
    c = tiny("gpt2").changed(d_model=96, n_heads=2)
    return Model(c, build(c), None, "cpu")


def fingerprint(m: Model) -> str:
    return hashlib.sha256(m.logits([[1, 2, 3]]).numpy().tobytes()).hexdigest()


def damage(path: Path, r: random.Random) -> str:
    """Flip a bit, or cut the end off."""
    data = bytearray(path.read_bytes())
    if r.random() < 0.3:
        del data[r.randrange(len(data)) :]
        what = f"cut to {len(data):,} bytes"
    else:
        at, bit = r.randrange(len(data)), r.randrange(8)
        data[at] ^= 1 << bit
        what = f"bit {bit} of byte {at:,} flipped"
    path.write_bytes(data)
    return f"{path.name}: {what}"


def refusal(work: Callable[[], object]) -> str:
    """The one-line error of a call; empty if it succeeds."""
    try:
        work()
    except QkvError as error:
        return "" if "\n" in str(error) else str(error)
    return ""


def trains(folder: Path) -> tuple[int, list[str]]:
    """`qkv train` in a folder: its exit code and the lines that begin with "error"."""
    done = subprocess.run(TRAIN, cwd=folder, capture_output=True, text=True)
    return done.returncode, [line for line in done.stderr.splitlines() if line.startswith(("error", "Traceback"))]


class FolderFaults:
    """The faults of folders, each repeated many times; `broken` lists the violated guarantees."""

    def __init__(self, folder: Path, r: random.Random):
        self.folder, self.r, self.broken = folder, r, list[str]()

    def prepare(self) -> None:
        """Train an undamaged run."""
        from qkv.data.grammar import pairs

        self.good = self.folder / "good"
        self.good.mkdir()
        (self.good / "recipe.toml").write_text(RECIPE)
        some = [pair for pair, _ in zip(pairs("train", 0), range(60), strict=False)]
        (self.good / "train.en").write_text("".join(pair.source + "\n" for pair in some))
        (self.good / "train.de").write_text("".join(pair.target + "\n" for pair in some))
        code, errors = trains(self.good)
        assert code == 0, errors

    def copy(self) -> Path:
        """A fresh copy of it."""
        shutil.rmtree(self.folder / "copy", ignore_errors=True)
        return Path(shutil.copytree(self.good, self.folder / "copy"))

    def expect(self, kept: bool, what: str) -> None:
        if not kept:
            self.broken.append(what)

    def model(self) -> None:
        best = self.copy() / "run" / "best"
        files = sorted(path for path in best.iterdir() if path.name != "README.md")
        what = damage(self.r.choice(files), self.r)
        if not refusal(lambda: qkv.load(best)) and what.startswith("COMPLETE"):  # a shorter list, or another comment
            self.expect(fingerprints(best) == fingerprints(self.good / "run" / "best"), f"best/{what}: other weights")
        elif not refusal(lambda: qkv.load(best)):
            self.broken.append(f"best/{what}: opened")

    def checkpoint(self) -> None:
        here = self.copy()
        newest = checkpoint.newest(here / "run")
        assert newest is not None
        what = damage(self.r.choice([newest / checkpoint.TENSORS, newest / checkpoint.NUMBERS]), self.r)
        said: list[str] = []
        checkpoint.set_aside_damaged_checkpoints(here / "run", said.append)
        fallen = checkpoint.newest(here / "run")
        self.expect(fallen is not None and fallen.name == "checkpoint-0000004" and len(said) == 1, f"{what}: {said}")

    def inputs(self) -> None:
        here = self.copy()
        shutil.rmtree(here / "run" / "checkpoint-0000006")
        what = self.r.choice(["data", "data", "missing", "vocabulary"])
        if what == "data":
            damage(here / self.r.choice(["train.en", "train.de"]), self.r)
        elif what == "missing":
            (here / "run" / "tokenizer.json").unlink()
        else:
            damage(here / "run" / "tokenizer.json", self.r)
        code, errors = trains(here)
        self.expect(code == 2 and len(errors) == 1, f"inputs, {what}: exit code {code}, {errors}")

    def save(self) -> None:
        self.saver(0, lambda process: (time.sleep(self.r.random() * 0.3), process.send_signal(signal.SIGKILL)))

    def size(self) -> None:
        error = self.saver(self.r.randrange(100, 600_000), lambda process: None, 120)
        last = error.strip().rpartition("\n")[2]
        self.expect(last.startswith("qkv.errors.FileError: cannot write"), f"size: {error[-300:]}")

    def saver(self, size: int, stop: Callable[[subprocess.Popen[str]], object], wait: float = 60) -> str:
        """Save over a model in another process, and open what is left; what the process said."""
        place = self.folder / "saved"
        shutil.rmtree(place, ignore_errors=True)
        shutil.rmtree(place.with_name(".saved.old"), ignore_errors=True)
        model(1).save(place)
        known = {fingerprint(model(seed)) for seed in (1, 2)}
        script = SAVER.format(here=str(Path(__file__).parent), size=size, folder=str(place))
        process = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        process.stdout.readline()
        stop(process)
        _, error = process.communicate(timeout=wait)
        try:
            self.expect(fingerprint(qkv.load(place)) in known, "saver: neither the old model nor the new one")
        except FileError as refused:
            between = "was interrupted: the model before it is" in str(refused)  # killed between two renames
            self.expect(between and fingerprint(qkv.load(place.with_name(".saved.old"))) in known, f"saver: {refused}")
        return error


def fingerprints(folder: Path) -> list[bytes]:
    """The bytes of the files that determine a model's outputs."""
    return [(folder / name).read_bytes() for name in ("config.json", "model.safetensors", "tokenizer.json")]
