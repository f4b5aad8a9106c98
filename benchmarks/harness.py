"""Interleaved timing: one worker process per system, visited round-robin, so that disturbances affect all alike.

A benchmark is its own worker: `worker(build)` in a script started with --worker SYSTEM CASE builds the system, warms up and
then does one unit of work per line it reads; a line with another case builds that one. `compare` and `compare_cases` are the
driver. Rates are medians; samples taken while other processes used the processors are taken again, a few times, and dropped if
enough are clean.

Systems whose names begin with "qkv" run in the Python that runs the script; the others, its peers, run in the environment
given with --peers, where there is one. A system that is not installed is listed as not measured.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import os
import shlex
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pages

ROOT = Path(__file__).resolve().parent.parent
DIRTY = 0.12  # processors used by others during a sample, above which it is taken again
LIMIT = 600.0
"""Seconds after which a worker that does not answer is ended."""
KEEP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "1000000000000", "MALLOC_TOP_PAD_": "67108864"}
"""The environment that makes glibc keep freed memory: what `keep_freed_memory` does, given to a peer."""
RATE = "rate"
"""The metric of a unit that returns no rates of its own."""


class Unavailable(Exception):
    """The system cannot be measured here, for this reason."""


@dataclass
class Work:
    """What a worker does: `unit` is timed, and counts as `units` of the metric; or it returns its own rates by metric."""

    unit: Callable[[], object]
    units: float = 1.0
    warmup: int = 2


@dataclass
class Row:
    """One system's result."""

    system: str
    rates: list[float]
    memory: int = 0
    foreign: float = 0.0
    processors: float = 0.0
    """Processors used, on average."""
    ratio: float = field(default=0.0)
    problem: str = ""
    """Why there are no rates."""

    @property
    def rate(self) -> float:
        return statistics.median(self.rates) if self.rates else 0.0


# --- the worker's side


def worker(build: Callable[[str, dict[str, Any]], Work]) -> None:
    """Answer the driver: '@@{units}' for each case, then one '@@{seconds, ...}' per line 'go'."""
    system, processors = sys.argv[2], os.sched_getaffinity(0)
    work = prepare(build, system, sys.argv[3], processors)
    for line in sys.stdin:
        if line == "go\n":
            if system.startswith("qkv"):
                forget_load()
            say(measured(work))
        else:
            work = Work(lambda: None)  # frees the model of the last case
            gc.collect()
            work = prepare(build, system, line, processors)


def prepare(build: Callable[[str, dict[str, Any]], Work], system: str, case: str, processors: set[int]) -> Work:
    """Build and warm up one case."""
    for thread in thread_times():
        os.sched_setaffinity(thread, processors)  # as before the last case
    try:
        work = build(system, json.loads(case))
    except (Unavailable, ImportError) as problem:
        say({"problem": str(problem)})
        return Work(lambda: None)
    before: dict[int, int] = {}
    for _ in range(work.warmup):
        before = thread_times()
        work.unit()
    pin_helpers(before, thread_count())
    Path("/proc/self/clear_refs").write_text("5")  # peak memory begins here, after loading
    say({"units": work.units})
    return work


def forget_load() -> None:
    """Have qkv measure the load of other processes again: otherwise it would count the systems that were measured before as load."""
    from qkv.generate.free_cores import INTERVAL, LOAD

    LOAD.read()
    time.sleep(1.1 * INTERVAL)
    LOAD.read()


def thread_count() -> int:
    """Threads that a system may use."""
    return int(os.environ["OMP_NUM_THREADS"])


def measured(work: Work) -> dict[str, Any]:
    """One sample: rates, seconds, those of this process's processors, processors used by others meanwhile, peak MB."""
    busy, own, start = busy_seconds(), own_seconds(), time.perf_counter()
    rates = work.unit()
    seconds = time.perf_counter() - start
    processor = own_seconds() - own
    foreign = max(0.0, busy_seconds() - busy - processor) / seconds
    rates = rates if isinstance(rates, dict) else {RATE: work.units / seconds}
    return {"rates": rates, "seconds": seconds, "processor": processor, "foreign": foreign, "memory": peak_memory()}


def load_qkv(path: Path, system: str) -> Any:
    """The model of a system "qkv PRECISION" on the CPU; as it is stored if the name says neither float32 nor int8."""
    import qkv

    precision = next((name for name in ("float32", "int8") if name in system), None)
    return qkv.load(path, device="cpu", precision=precision)


def say(answer: dict[str, Any]) -> None:
    print("@@" + json.dumps(answer), flush=True)


def busy_seconds() -> float:
    """User, nice and system time of all processors."""
    with open("/proc/stat") as file:
        return sum(int(n) for n in file.readline().split()[1:4]) / os.sysconf("SC_CLK_TCK")


def own_seconds() -> float:
    used = os.times()
    return used.user + used.system


def peak_memory() -> int:
    """Most megabytes that were resident at once in this case."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM:"))) // 1024


def thread_times() -> dict[int, int]:
    """Processor time of each thread of this process."""
    times = {}
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/stat") as file:
                fields = file.read().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
        times[int(thread)] = int(fields[11]) + int(fields[12])
    return times


def pin_helpers(before: dict[int, int], threads: int) -> None:
    """Give each of the busiest threads a processor of its own: a virtual machine may leave all on one for long stretches.

    The main thread stays free, and gets the processor that is left: a thread that is created later inherits the mask of the one
    that creates it, and all threads of a pool that is made for each call would share a processor.
    """
    if threads > 1:
        after, main = thread_times(), os.getpid()
        busiest = sorted(after, key=lambda t: after[t] - before.get(t, 0), reverse=True)[:threads]
        busiest.sort(key=lambda t: t != main)
        for processor, thread in zip(sorted(os.sched_getaffinity(0)), busiest, strict=False):
            if thread != main:
                os.sched_setaffinity(thread, {processor})


# --- the driver's side


@dataclass(frozen=True)
class Options:
    """How a comparison is made."""

    threads: Sequence[int] = (2, 1)
    repeats: int = 5
    retries: int = 2
    """Further samples, if others used the processors during some."""
    peers: Path | None = None
    """The virtual environment of the other systems; None = the one that runs the script."""
    systems: Sequence[str] = ()
    """Measure only systems whose names contain one of these texts; empty = all."""
    cases: Sequence[str] = ()
    """Measure only cases whose names contain one of these texts; empty = all."""

    @property
    def python(self) -> str:
        """The Python of the peers."""
        return sys.executable if self.peers is None else str(self.peers / "bin" / "python")

    @property
    def arguments(self) -> str:
        """As they are given to a script."""
        shown = [f"--repeats {self.repeats}"]
        shown += ["--peers FOLDER"] if self.peers else []
        shown += [f"--threads {count}" for count in self.threads if tuple(self.threads) != (2, 1)]
        shown += [f"--{name} {shlex.quote(text)}" for name in ("systems", "cases") for text in getattr(self, name)]
        return " ".join(shown)

    def chosen_systems(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if not self.systems or any(part in name for part in self.systems)]

    def chosen_cases(self, cases: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        return {
            name: case for name, case in cases.items() if not self.cases or any(part in name for part in self.cases)
        }


class Worker:
    """A running worker process of one system."""

    def __init__(self, script: str, system: str, case: dict[str, Any], threads: int, python: str = sys.executable):
        environment = {"PYTHONPATH": str(ROOT), **os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads),
                       "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}  # fmt: skip
        environment.update(KEEP if "+keep" in system else {})
        if "AVX-512" in vector_units():
            environment["CT2_FORCE_CPU_ISA"] = "AVX512"  # CTranslate2 takes it by itself on Intel's processors only
        command = [sys.executable if system.startswith("qkv") else python, script, "--worker", system, json.dumps(case)]
        self.process = subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.problem = ""
        """Why there are no samples."""
        self.units = 0.0
        self.begin()

    def begin(self) -> None:
        """Read the answer to a case."""
        answer = self.answer()
        self.units, self.problem = answer.get("units", 0.0), answer.get("problem", "")

    def change(self, case: dict[str, Any]) -> None:
        """Build another case."""
        self.send(json.dumps(case))
        self.begin()

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()
        except BrokenPipeError:  # it died; there will be no answer
            return

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        timer = threading.Timer(LIMIT, self.process.kill)
        timer.start()
        try:
            for line in self.process.stdout:
                if line.startswith("@@"):
                    answer: dict[str, Any] = json.loads(line[2:])
                    return answer
        finally:
            timer.cancel()
        return {"problem": f"failed with exit code {self.process.wait()}"}

    def sample(self) -> dict[str, Any]:
        time.sleep(0.3)  # until the spinning threads of the last worker are asleep
        self.send("go")
        answer = self.answer()
        self.problem = answer.get("problem", "")
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()


def visit(
    systems: dict[str, Callable[[], dict[str, Any]]], repeats: int, retries: int
) -> dict[str, list[dict[str, Any]]]:
    """Samples of each system, taken round-robin: the `repeats` cleanest, cleanest first."""
    samples: dict[str, list[dict[str, Any]]] = {system: [] for system in systems}
    for _ in range(repeats + retries):
        for system, sample in systems.items():
            if sum(s.get("foreign", 0.0) < DIRTY for s in samples[system]) < repeats:
                samples[system].append(sample())
    return {system: sorted(taken, key=lambda s: s.get("foreign", 0.0))[:repeats] for system, taken in samples.items()}


def compare_cases(script: str, systems: Sequence[str], cases: Sequence[dict[str, Any]], threads: int, options: Options
                  ) -> Iterator[dict[str, list[Row]]]:  # fmt: skip
    """Yield for each case the rates of all systems by metric, fastest first. Each system is one process for all cases."""
    workers: dict[str, Worker] = {}
    try:
        for case in cases:
            for system in systems:
                if system in workers and workers[system].process.poll() is None:
                    workers[system].change(case)
                else:
                    workers[system] = Worker(script, system, case, threads, options.python)
            able = {system: running.sample for system, running in workers.items() if not running.problem}
            samples = visit(able, options.repeats, options.retries)
            problems = {system: running.problem for system, running in workers.items() if running.problem}
            for system, problem in problems.items():
                print(f"not measured: {system}: {problem}", file=sys.stderr, flush=True)
            yield rank({system: own for system, own in samples.items() if system not in problems}, problems)
    finally:
        for running in workers.values():
            running.close()


def compare_all(script: str, systems: dict[int, list[str]], cases: dict[str, dict[str, Any]], options: Options
                ) -> Iterator[tuple[str, str, dict[str, list[Row]]]]:  # fmt: skip
    """Yield (name of a case, title with the threads, rows by metric) of the chosen cases; `systems` are by threads."""
    chosen = options.chosen_cases(cases)
    for threads in options.threads:
        found = compare_cases(script, options.chosen_systems(systems[threads]), list(chosen.values()), threads, options)
        for name, rows in zip(chosen, found, strict=True):
            yield name, f"{name}, {threads} {'thread' if threads == 1 else 'threads'}", rows


def rank(samples: dict[str, list[dict[str, Any]]], problems: dict[str, str]) -> dict[str, list[Row]]:
    """Rows of each metric, fastest first, then those without rates."""
    found = {}
    for metric in next(iter(samples.values()))[0]["rates"] if samples else [RATE]:
        rows = [Row(system, [s["rates"][metric] for s in own], max(s["memory"] for s in own), max(s["foreign"] for s in own),
                    statistics.median(s["processor"] / s["seconds"] for s in own)) for system, own in samples.items()]  # fmt: skip
        rows.sort(key=lambda row: -row.rate)
        for row in rows:
            row.ratio = row.rate / rows[0].rate
        found[metric] = rows + [Row(system, [], problem=problem) for system, problem in problems.items()]
    return found


def compare(script: str, systems: list[str], case: dict[str, Any], threads: int, repeats: int = 5, retries: int = 4
            ) -> list[Row]:  # fmt: skip
    """Rates of all systems on one case, fastest first."""
    (found,) = compare_cases(script, systems, [case], threads, Options(repeats=repeats, retries=retries))
    return found[RATE]


@dataclass(frozen=True)
class Verdict:
    """The best of ours against the best of some peers, beside what is required."""

    case: str
    ours: Row
    peer: Row
    required: float | None = None
    goal: float | None = None

    @property
    def ratio(self) -> float | None:
        """None if one of them was not measured."""
        return self.ours.rate / self.peer.rate if self.ours.rates and self.peer.rates else None

    @property
    def met(self) -> bool:
        return self.ratio is not None and (self.required is None or self.ratio >= self.required)

    def __str__(self) -> str:
        if self.ratio is None:
            return f"\n{self.ours.system} against {self.peer.system}: not measured.\n"
        wanted = [] if self.required is None else [f"required: {self.required:g} x, {'met' if self.met else 'NOT met'}"]
        wanted += [] if self.goal is None else [f"goal: {self.goal:g} x"]
        note = f" ({'; '.join(wanted)})" if wanted else ""
        return f"\n{self.ours.system} is {self.ratio:.2f} x {self.peer.system}{note}.\n"


def judge(case: str, rows: list[Row], peers: Sequence[str], required: float | None = None, goal: float | None = None
          ) -> list[Verdict]:  # fmt: skip
    """Compare the fastest of our systems with the fastest of these peers; an empty list if there is no row of one of them."""
    own = [row for row in rows if row.system.startswith("qkv")]
    others = [row for row in rows if row.system in peers]
    return [Verdict(case, own[0], others[0], required, goal)] if own and others else []


def verdict(rows: list[Row], peers: Sequence[str], required: float | None) -> str:
    """The best of ours against the best of these peers, in a line."""
    return "".join(map(str, judge("", rows, peers, required)))


def table(title: str, metric: str, rows: list[Row]) -> str:
    """Markdown. METHOD explains the columns; above 0.1 in the last one, distrust a row."""
    lines = [
        f"**{title}**, {metric}",
        "",
        "| system | median | to the fastest | range | per CPU second | peak MB | CPUs | others |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row.problem:
            lines.append(f"| {row.system} | not measured: {row.problem} | | | | | | |")
            continue
        spread = f"{min(row.rates):.4g} to {max(row.rates):.4g}"
        lines.append(f"| {row.system} | {row.rate:.4g} | {row.ratio:.2f} | {spread} | {row.rate / row.processors:.4g} "
                     f"| {row.memory} | {row.processors:.1f} | {row.foreign:.2f} |")  # fmt: skip
    return "\n".join(lines) + "\n"


# --- scripts


Report = Callable[[Options], Iterator[str | Verdict]]
"""Tables and verdicts, each as soon as it is known."""
METHOD = """Systems take turns, figures are medians. Compare within a table only: the machine's own speed drifts. Peak MB: of the
process after it has loaded the model; CPUs: processors that the system used; others: the most that other processes used meanwhile.
"""
PACKAGES = ("torch", "transformers", "ctranslate2", "onnxruntime", "llama-cpp-python")


def main(
    document: str | None, name: str, title: str, build: Callable[[str, dict[str, Any]], Work], report: Report
) -> None:
    """Be the worker, or parse the options of a script, print its report and write it between the markers `name` of a page."""
    if "--worker" in sys.argv:
        worker(build)
        return
    parser = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    given = parser.parse_args()
    options = options_of(given)
    parts = [heading(title, f"{Path(sys.argv[0]).name} {options.arguments}", options.python), METHOD]
    print(*parts, sep="\n", flush=True)
    for part in report(options):
        print(part, flush=True)
        parts.append(str(part))
        if given.write:
            pages.write(given.write, name, "\n".join(parts))


def add_options(parser: argparse.ArgumentParser, repeats: int = 5) -> None:
    add = parser.add_argument
    add(
        "--peers",
        type=Path,
        metavar="FOLDER",
        help="virtual environment of the other systems; default: that of this Python",
    )
    add("--threads", type=int, choices=[1, 2], action="append", help="default: 2, then 1")
    add("--repeats", type=int, default=repeats, help="samples of each system (default %(default)s)")
    add("--retries", type=int, default=2, help="further samples where other processes disturbed (default %(default)s)")
    add(
        "--systems",
        action="append",
        default=[],
        metavar="TEXT",
        help="measure only systems with this text in their names",
    )
    add("--cases", action="append", default=[], metavar="TEXT", help="measure only cases with this text in their names")
    add("--write", type=Path, metavar="FILE", help="put the tables between the markers of this Markdown file")


def options_of(given: argparse.Namespace) -> Options:
    return Options(given.threads or (2, 1), given.repeats, given.retries, given.peers, given.systems, given.cases)


def heading(title: str, command: str, python: str = sys.executable) -> str:
    """Title, date, command, machine, and versions in the environment of this Python."""
    where = f"{pages.machine([])}{vector_units()}, {', '.join(versions(python))}"
    return f"## {title}\n\n{datetime.date.today()}, `python benchmarks/{command}`, on {where}.\n"


def vector_units() -> str:
    """Instructions of the processor that matter for speed."""
    known = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_vnni": "VNNI", "avx512_bf16": "bfloat16", "amx_int8": "AMX"}
    flags = next(
        (line.split() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")), []
    )
    found = [name for flag, name in known.items() if flag in flags]
    return f", {' '.join(found)}" if found else ""


def versions(python: str) -> list[str]:
    """Versions of the peers that are installed in the environment of this Python."""
    code = """
import sys
from importlib.metadata import distributions
found = {one.name.replace("_", "-"): one.version for one in distributions()}
print(*(f"{name} {found[name]}" for name in sys.argv[1:] if name in found), sep="\\n")
"""
    done = subprocess.run([python, "-c", code, *PACKAGES], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()
