"""Damage models and checkpoints, interrupt training runs, and verify the guarantees of qkv.

    python benchmarks/faults.py                        everything: about 40 minutes of one core
    python benchmarks/faults.py --only runs --kinds workers sharded --kills 24 --full 9    runs of two workers
    python benchmarks/faults.py --only runs --kills 50     fewer kills
    python benchmarks/faults.py --only folders --times 500 more of each damage to a folder
    python benchmarks/faults.py --quick                3 kills, nothing else

Folders
model       a flipped bit or a truncated end in any file of a model except its card: `qkv.load` refuses it in one line
checkpoint  the same in the newest checkpoint: it is noticed, and the older one is the newest
inputs      changed training data, a missing or changed vocabulary: `qkv train` ends with code 2 in one line
save        SIGKILL while a model is saved over another one: the folder holds the old or the new one, whole
size        files may not grow beyond a size while a model is saved over another one: an error in one line, the old one stays

Runs of a Transformer (by one process, by two workers, by two workers with shards), a recurrent network with carried state and
word2vec (fault_runs.py): after every fault the same command resumes, and in the end log, best model, vocabulary, last
checkpoint and scores are those of an undisturbed run.
kill        SIGKILL at random moments: before the first update, between updates, in evaluations, while a checkpoint or the
            best model is written; of two workers either one too, and their agent when they have been started again
flip        after a kill one byte of the newest checkpoint is changed (two are kept)
full        the disk (a tmpfs, so for root only) is full from some byte on, at random moments: exit code 2 and one line
stop        SIGTERM and Ctrl-C store the update; a second process in the same folder is refused; killed right after an epoch

Exit code 1 if a guarantee is violated.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fault_folders import FolderFaults
from fault_runs import KINDS, Process, checkpoints, contents, logged, mark, stored, train

MOMENTS = ["start", "saving", "early", "random", "saving", "evaluating", "best", "random", "saving", "saving"]
"""In turn. "early" is before the first new checkpoint, so that the next attempt resumes from the same."""
FLIPS = 0.3
"""Share of kills after which a byte of the newest checkpoint is changed."""
PER_RUN = 12
"""Faults of one run, before it may end."""
ROOM = 64 * 2**20
"""Bytes of the disk that becomes full."""


class RunFaults:
    """The faults of runs of one kind; `done` counts them, `broken` lists the violated guarantees."""

    def __init__(self, name: str, place: Path, r: random.Random):
        self.name, self.kind, self.place, self.r = name, KINDS[name], place, r
        self.done, self.broken = Counter[str](), list[str]()

    def prepare(self) -> None:
        """Train the undisturbed run."""
        with Process(self.kind, self.place / "whole") as p:
            p.trains()
            self.startup = p.processor_time()
            if problem := p.finish():
                raise SystemExit(f"{self.name}: {problem}")
        self.whole = contents(self.place / "whole")
        self.largest = max(size_of(path) for path in (self.place / "whole").glob("checkpoint-*"))

    def same(self, folder: Path, what: str, problem: str) -> bool:
        """Whether a run that has ended equals the undisturbed one."""
        if not problem:
            found = contents(folder)
            wrong = [name for name in self.whole.keys() | found.keys() if found.get(name) != self.whole.get(name)]
            problem = f"differs in {', '.join(wrong)}" if wrong else ""
        self.done["runs"] += 1
        if problem:
            self.broken.append(f"{self.name}, {what}: {problem}")
        print(f"  {self.name}, {what}: {problem or 'identical'}", flush=True)
        return not problem

    def expect(self, kept: bool, what: str) -> None:
        if not kept:
            self.broken.append(f"{self.name}, {what}")

    def runs(self, what: str, count: int, place: Path, fault: Callable[[Path, str], str]) -> None:
        """Start runs and let `fault(folder, moment)` interrupt each again and again, until there are `count` faults.

        It returns what was interrupted; empty if the run ended before.
        """
        moments = itertools.cycle(MOMENTS)
        for number in range(1, count + 1):
            folder, came = place / f"{what}-{number}", 0
            while came < PER_RUN and self.done[what] < count and (was := fault(folder, next(moments))):
                came += 1
                self.done[what] += 1
                self.done[f"{what} {was}"] += 1
            if self.same(folder, f"{what}, {came} times", train(self.kind, folder)):
                shutil.rmtree(folder)
            else:
                shutil.move(folder, self.place / f"failed-{what}-{number}")
            if self.done[what] == count:
                return
        self.broken.append(f"{self.name}: only {self.done[what]} of {count} faults ({what}) came about")

    # --- kill and flip

    def kill(self, folder: Path, moment: str, flips: float = 0.0) -> str:
        with Process(self.kind, folder) as p:
            if not self.wait_for(moment, p):
                self.expect(not (problem := p.finish()), f"resumed: {problem}")
                return ""
            was = self.kill_some(p)
        if self.r.random() < flips and len(checkpoints(folder)) > 1:
            self.done[f"flip {flip(self.r, checkpoints(folder)[-1])}"] += 1
            self.done["flip"] += 1
        return was

    def kill_some(self, p: Process) -> str:
        """Kill the process, or one of its workers: then all are restarted, and killed when they train."""
        victim = self.r.randrange(-1, self.kind.workers) if self.kind.workers > 1 else -1
        if not 0 <= victim < len(workers := p.workers()):
            p.end(signal.SIGKILL)
            return self.interrupted(p)
        os.kill(workers[victim], signal.SIGKILL)
        was = f"of worker {victim} {self.interrupted(p)}"
        p.before = mark(p.folder)
        self.expect(p.trains(), f"worker {victim} killed: {p.said()[-400:]}")
        p.end(signal.SIGKILL)
        return was

    def wait_for(self, moment: str, p: Process) -> bool:
        """Wait for a moment; False when the process ended before."""
        folder, kind, r = p.folder, self.kind, self.r
        if moment == "start":
            goal = r.random() * self.startup
            return p.until(lambda: p.processor_time() >= goal)
        if not p.trains():
            return False
        if moment == "evaluating" and kind.evaluate:
            came = p.until(lambda: logged(folder) % kind.evaluate == kind.evaluate - 1)
            return came and p.until(lambda: False, r.uniform(0.0, 0.1))
        if moment == "saving":
            goal = p.begin + kind.save * r.randrange(3)
            return p.until(lambda: stored(folder) >= goal) and p.until(lambda: p.writes("checkpoint"))
        if moment == "best":
            return p.until(lambda: p.writes("best"))
        goal = p.begin + 1 + r.randrange(max(1, kind.save - 1) if moment == "early" else 3 * kind.save)
        return p.until(lambda: logged(folder) >= goal) and p.until(lambda: False, r.uniform(0.0, 0.05))

    def interrupted(self, p: Process) -> str:
        """What was interrupted, as far as the folder shows."""
        for name in ("checkpoint", "best"):
            if p.writes(name):
                return f"while {name} was written"
        if not p.has_begun():
            return "before the first update"
        evaluates = self.kind.evaluate and logged(p.folder) % self.kind.evaluate == self.kind.evaluate - 1
        return "in an evaluation" if evaluates else "between updates"

    # --- a full disk

    def full(self, folder: Path, moment: str) -> str:
        """The disk has room for less than one more checkpoint, from a random moment on."""
        filler, left = folder.parent / "filler", self.r.randrange(self.largest)
        filler.unlink(missing_ok=True)
        with Process(self.kind, folder) as p:
            if moment == "start" or self.wait_for("random" if moment in ("saving", "best") else moment, p):
                fill(filler, left)
            code = p.process.wait()
            said = [line for line in p.said().splitlines() if line.startswith(("error", "Traceback"))]
        filler.unlink(missing_ok=True)
        if code == 0:
            return ""
        fine = code == 2 and len(said) == 1 and said[0].startswith("error: ")
        self.expect(fine, f"disk full: exit code {code}, {said}")
        return reason(said[0]) if fine else "with another error"

    # --- stopped in an orderly way

    def stop(self) -> None:
        """SIGTERM and Ctrl-C: the update is finished and stored, the exit code is the shell's."""
        folder = self.place / "stopped"
        for number in (signal.SIGTERM, signal.SIGINT):
            with Process(self.kind, folder) as p:
                p.trains()
                goal = stored(folder) + self.r.randrange(2, 5 * self.kind.save)
                p.until(lambda goal=goal: logged(folder) >= goal)
                code = p.end(number)
            self.expect(code == 128 + number and stored(folder) == logged(folder) > 0, f"{number.name}: {code}")
            self.done["stop"] += 1
        self.same(folder, "asked to stop", train(self.kind, folder))

    def two_at_once(self) -> None:
        """A second process in the same folder is refused, and the first does not notice."""
        folder = self.place / "two"
        with Process(self.kind, folder) as first:
            first.until(lambda: (folder / "recipe.toml").exists())
            with Process(self.kind, folder) as second:
                code, said = second.process.wait(), second.said().strip()
            problem = first.finish()
        refused = code == 2 and said.startswith("error: another process is writing") and "\n" not in said
        self.expect(refused, f"a second process: exit code {code}, {said}")
        self.same(folder, "beside a second process", problem)

    def epoch_edge(self) -> None:
        """Stored at every update, killed when the last batch of an epoch is done."""
        folder = self.place / "edge"
        epochs = [json.loads(line)["epoch"] for line in self.whole["log.jsonl"].splitlines()]
        edges = [step for step, (a, b) in enumerate(itertools.pairwise(epochs), 1) if a < b]
        for edge in edges[:2]:
            with Process(self.kind, folder, {"train.save_every": 1}) as p:
                p.until(lambda edge=edge: (folder / f"checkpoint-{edge:07d}").exists())
            self.done["right behind an epoch"] += stored(folder) == edge
        self.same(folder, "killed behind an epoch", train(self.kind, folder, {"train.save_every": 1}))


def flip(r: random.Random, folder: Path) -> str:
    """Change one byte of a checkpoint; the name of its file."""
    path = r.choice([path for path in sorted(folder.rglob("*")) if path.is_file()])
    with open(path, "r+b") as file:
        at = r.randrange(path.stat().st_size)
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ r.randrange(1, 256)]))
    return f"in {path.name}"


def reason(error: str) -> str:
    """What could not be written, without numbers and folders."""
    for name in ("checkpoint", "best", "tensorboard", "corpus.ids"):
        if name in error:
            return f"at {name}"
    return "at the log or another file"


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def fill(filler: Path, left: int) -> None:
    """Take all room of a disk but so many bytes (whole pages, on a tmpfs)."""
    with open(filler, "wb") as file:
        while True:
            disk = os.statvfs(filler.parent)
            size = file.seek(0, os.SEEK_END)
            more = disk.f_bavail * disk.f_frsize - left
            if more <= 0:
                return
            try:
                os.posix_fallocate(file.fileno(), size, more)
            except OSError:  # the run has taken some of it meanwhile
                time.sleep(0.001)


@contextmanager
def small_disk(place: Path) -> Iterator[Path | None]:
    """A disk of its own; None where it cannot be mounted."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "qkv-faults", str(place)]
    if os.name != "posix" or os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        print("disk full: not tested, only root can mount a disk", flush=True)
        yield None
        return
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def run_faults(place: Path, r: random.Random, kinds: list[str], kills: int, full: int) -> list[RunFaults]:
    """All faults of the runs of these kinds."""
    found = []
    for number, name in enumerate(kinds):
        (place / name).mkdir()
        faults = RunFaults(name, place / name, r)
        found.append(faults)
        faults.prepare()
        faults.runs("kill", (kills + number) // len(kinds), place / name, lambda *at, f=faults: f.kill(*at, FLIPS))
        with small_disk(place / name / "disk") as disk:
            if disk is not None:
                faults.runs("full", (full + number) // len(kinds), disk, faults.full)
        faults.stop()
        faults.two_at_once()
        if name == "transformer":
            faults.epoch_edge()
    return found


def quick(place: Path, r: random.Random) -> list[RunFaults]:
    """Three kills in one run."""
    faults = RunFaults("transformer", place, r)
    faults.kind.settings["train.steps"] = 48
    faults.prepare()
    faults.runs("kill", 3, place, faults.kill)
    return [faults]


def folder_faults(place: Path, r: random.Random, times: int) -> list[str]:
    """All faults of folders, in a table; the promises that were not kept."""
    (place / "folders").mkdir()
    faults = FolderFaults(place / "folders", r)
    faults.prepare()
    print("| fault | times | promises broken |\n|---|---|---|")
    for name in ("model", "checkpoint", "inputs", "save", "size"):
        count, before = times if name in ("model", "checkpoint") else max(1, times // 10), len(faults.broken)
        for _ in range(count):
            getattr(faults, name)()
        print(f"| {name} | {count} | {len(faults.broken) - before} |", flush=True)
    return faults.broken


def table(found: list[RunFaults]) -> str:
    """Counts of faults, a column for each kind of run."""
    rows = [f"| fault | {' | '.join(one.name for one in found)} | sum |", "|---" * (len(found) + 2) + "|"]
    for what in sorted({what for one in found for what in one.done}):
        counts = [one.done[what] for one in found]
        rows.append(f"| {what} | {' | '.join(map(str, counts))} | {sum(counts)} |")
    return "\n".join(rows)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", choices=("folders", "runs"), help="half of it")
    p.add_argument("--times", type=int, default=100, help="damages of models and of checkpoints; the rest a tenth")
    p.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS], help="kinds of runs; default: all")
    p.add_argument("--kills", type=int, default=200, help="kills of runs, divided over their kinds")
    p.add_argument("--full", type=int, default=60, help="full disks, divided likewise")
    p.add_argument("--quick", action="store_true", help="3 kills in one run, and nothing else")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--place", type=Path, help="new folder for the runs, where those that failed stay")
    given = p.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    r, start, broken = random.Random(given.seed), time.monotonic(), list[str]()
    with tempfile.TemporaryDirectory() as temporary:
        place = given.place or Path(temporary) / "faults"
        place.mkdir(parents=True)
        if given.only != "runs" and not given.quick:
            broken += folder_faults(place, r, given.times)
        if given.only != "folders" or given.quick:
            found = quick(place, r) if given.quick else run_faults(place, r, given.kinds, given.kills, given.full)
            print(table(found))
            broken += [line for one in found for line in one.broken]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    for line in broken:
        print(f"BROKEN: {line}")
    print(f"{len(broken)} promises broken ({(used.ru_utime + used.ru_stime) / 60:.1f} minutes of processor time, "
          f"{(time.monotonic() - start) / 60:.1f} minutes)")  # fmt: skip
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
