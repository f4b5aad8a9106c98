"""Several workers: the same loss curve with any number of them, and identical results after lost workers and a lost connection.

    python benchmarks/distributed.py                       everything
    python benchmarks/distributed.py curves                1, 2 and 4 workers: 100 updates, accumulation, odd last batches
    python benchmarks/distributed.py kills --kills 20      SIGKILL of a random worker at random moments, under both launchers
    python benchmarks/distributed.py link                  two network namespaces as two hosts, the link between them is cut (root only)
    python benchmarks/distributed.py kills --write docs/results.md

curves   losses of every update, compared with those of a single process; without dropout, since every worker draws its own masks
kills    `torchrun` and `qkv train --workers 2`: each run must complete by itself, with the same bytes as an undisturbed run
link     one torchrun on each host, c10d rendezvous; packets vanish for longer than `train.worker_timeout`, both agents restart

Exit code 1 when anything differs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fault_runs import contents, logged
from harness import heading

SMALL = {
    "model.d_model": 32, "model.n_layers": 1, "model.d_ff": 64, "model.n_heads": 2, "data.vocab_size": 200,
    "data.train": "[{ grammar = 150 }]", "data.valid": "{ grammar = 4 }", "data.test": "{ grammar = 4 }",
}  # fmt: skip
"""The demo recipe, reduced."""
FAULTS = SMALL | {
    "model.dropout": 0.1, "data.batch_tokens": 300, "train.steps": 400, "train.save_every": 5, "train.evaluate_every": 50,
    "train.warmup": 20, "train.keep": 2, "train.schedule": "constant",
}  # fmt: skip
CURVES = SMALL | {
    "model.dropout": 0.0, "data.batch_tokens": 150, "train.accumulate": 2, "train.steps": 100, "train.warmup": 10,
    "train.learning_rate": 1e-3, "train.eps": 1e-6, "train.evaluate_every": 100, "train.save_every": 100,
}  # fmt: skip
TRAIN = ["-m", "qkv", "train", "demo", "--out"]
HOSTS = {"qkv-a": "10.77.0.1", "qkv-b": "10.77.0.2"}
CUT, TIMEOUT = 15.0, 5.0
"""Seconds for which the link is down, and after which a worker gives up waiting."""


def settings(changes: dict[str, object]) -> list[str]:
    return [part for key, value in changes.items() for part in ("--set", f"{key}={value}")]


def by_qkv(folder: Path, changes: dict[str, object], workers: int = 2) -> list[str]:
    """`qkv train --workers N`."""
    restarts = ["--max-restarts", "1000"] if workers > 1 else []
    return [sys.executable, *TRAIN, str(folder), "--workers", str(workers), *restarts, *settings(changes)]


def launched_by_agent(folder: Path, changes: dict[str, object], *options: str) -> list[str]:
    """torchrun, on one machine unless the options say otherwise."""
    where = options or ("--standalone", "--nproc-per-node", "2")
    torchrun = [sys.executable, "-m", "torch.distributed.run", *where, "--max-restarts", "1000"]
    return [*torchrun, *TRAIN, str(folder), *settings(changes)]


@contextmanager
def started(command: list[str], said: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process whose output is written to a file; it is ended with the block."""
    with open(said, "wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        yield process
        if process.wait(600):
            print(said.read_text(errors="replace")[-3000:])
    finally:
        process.kill()


def whole(place: Path) -> dict[str, bytes]:
    """Train with two workers without disturbance; return the contents of the files that are compared."""
    subprocess.run(by_qkv(place / "whole", FAULTS), check=True, capture_output=True)
    return contents(place / "whole")


def difference(folder: Path, code: int, expected: dict[str, bytes]) -> str:
    """Describe what is wrong with a run that has ended; empty if nothing is."""
    if code:
        return f"exit code {code}"
    found = contents(folder)
    return ", ".join(name for name in expected if found.get(name) != expected[name])


# --- curves


def curves(place: Path, given: argparse.Namespace) -> tuple[list[str], bool]:
    """Compare the losses of 1, 2 and 4 workers."""
    rows, fine = ["| optimizer | workers | largest difference of the loss | relative |", "|---|---:|---:|---:|"], True
    for optimizer, count in itertools.product(("adamw", "muon"), (1, 2, 4)):
        folder = place / f"{optimizer}-{count}"
        changes = CURVES | {"train.optimizer": optimizer}
        subprocess.run(by_qkv(folder, changes, count), check=True, capture_output=True)
        losses = [json.loads(line)["loss"] for line in (folder / "log.jsonl").read_text().splitlines()]
        if count == 1:
            alone = losses
            continue
        largest = max(abs(a - b) for a, b in zip(alone, losses, strict=True))
        relative = max(abs(a - b) / a for a, b in zip(alone, losses, strict=True))
        rows.append(f"| {optimizer} | {count} | {largest:.1e} | {relative:.1e} |")
        print(rows[-1], f"(loss {alone[0]:.3f} to {alone[-1]:.3f})", flush=True)
        fine &= relative <= 1e-6
    return rows, fine


# --- kills


def kills(place: Path, given: argparse.Namespace) -> tuple[list[str], bool]:
    """Kill workers under both launchers."""
    expected = whole(place)
    rows, fine = (
        ["| launcher | workers killed | before the first update | runs | identical |", "|---|---:|---:|---:|---:|"],
        True,
    )
    for name, command in (("torchrun", launched_by_agent), ("qkv train --workers 2", by_qkv)):
        r, done, early, runs, same = random.Random(given.seed), 0, 0, 0, 0
        while done < given.kills:
            folder = place / f"{name.split()[0]}-{runs}"
            with started(command(folder, FAULTS), folder.with_suffix(".txt")) as process:
                for _ in range(min(given.per_run, given.kills - done)):
                    if (updates := kill_one(process, folder, r)) is None:
                        break
                    done, early = done + 1, early + (updates == 0)
                    print(f"  {name}: kill {done}, after update {updates}", flush=True)
            problem = difference(folder, process.returncode, expected)
            print(f"  {name}, run {runs + 1}: {problem or 'identical'}", flush=True)
            runs, same = runs + 1, same + (not problem)
        rows.append(f"| `{name}` | {done} | {early} | {runs} | {same} |")
        fine &= same == runs
    return rows, fine


def kill_one(process: subprocess.Popen[bytes], folder: Path, r: random.Random) -> int | None:
    """Kill a random worker at a random moment; return the update after which it was killed, None if the run ended before.

    A quarter of the moments are soon after the start of the workers, while they join, prepare the data or load a checkpoint.
    """
    if not wait_until([process], lambda: len(children_of(process.pid)) == 2):
        return None
    more = 0 if r.random() < 0.25 else logged(folder) + r.randrange(1, 100)
    if not wait_until([process], lambda: logged(folder) >= more):
        return None
    time.sleep(r.uniform(0, 0.1 if more else 5))
    if not (workers := children_of(process.pid)):
        return None
    os.kill(r.choice(workers), signal.SIGKILL)
    return logged(folder)


def children_of(pid: int) -> list[int]:
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


# --- link


def link(place: Path, given: argparse.Namespace) -> tuple[list[str], bool]:
    """Cut the connection between two hosts once, in the middle of a run."""
    expected = whole(place)
    rows = ["| cut after update | seconds down | starts of the workers | seconds until training went on | result |"]
    rows, fine = [*rows, "|---:|---:|---:|---:|---|"], True
    for number in range(given.cuts):
        folder = place / f"link-{number}"
        said = [folder.with_suffix(f".{name}.txt") for name in HOSTS]
        with two_hosts(), ExitStack() as stack:
            commands = zip(HOSTS, said, strict=True)
            hosts = [stack.enter_context(started(on_host(name, folder), path)) for name, path in commands]
            wait_until(hosts, lambda folder=folder, after=60 + 100 * number: logged(folder) >= after)
            start = time.monotonic()
            ip("netns exec qkv-a ip link set veth-a down")
            time.sleep(CUT)
            ip("netns exec qkv-a ip link set veth-a up")
            before = logged(folder)
            wait_until(hosts, lambda folder=folder, before=before: logged(folder) != before)
            seconds = time.monotonic() - start
        problem = difference(folder, max(abs(one.returncode) for one in hosts), expected)
        starts = 1 + sum(path.read_text().count("resuming after update") for path in said)
        rows.append(f"| {before} | {CUT:g} | {starts} | {seconds:.0f} | {problem or 'identical'} |")
        print(rows[-1], flush=True)
        fine &= not problem
    return rows, fine


def on_host(name: str, folder: Path) -> list[str]:
    """torchrun with one worker on one of the hosts; the first one holds the rendezvous."""
    first = next(iter(HOSTS))
    options = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{HOSTS[first]}:29400",
               "--rdzv-id", "link", "--rdzv-conf", f"is_host={int(name == first)}", "--local-addr", HOSTS[name]]  # fmt: skip
    changes = FAULTS | {"train.worker_timeout": TIMEOUT / 60}
    interface = (
        f"GLOO_SOCKET_IFNAME=veth-{name[-1]}"  # both hosts have the name of this machine, which is not an address
    )
    return ["ip", "netns", "exec", name, "env", interface, *launched_by_agent(folder, changes, *options)]


def wait_until(processes: list[subprocess.Popen[bytes]], condition: Callable[[], bool]) -> bool:
    """Wait for a condition; return False if a process ends first."""
    while all(process.poll() is None for process in processes):
        if condition():
            return True
        time.sleep(0.01)
    return False


@contextmanager
def two_hosts() -> Iterator[None]:
    """Two network namespaces with a link between them."""
    try:
        for name in HOSTS:
            ip(f"netns add {name}")
        ip("link add veth-a netns qkv-a type veth peer name veth-b netns qkv-b")
        for name, address in HOSTS.items():
            device = f"veth-{name[-1]}"
            for command in (f"address add {address}/24 dev {device}", f"link set {device} up", "link set lo up"):
                ip(f"netns exec {name} ip {command}")
        yield
    finally:
        for name in HOSTS:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True)


SECTIONS = {
    "curves": (curves, "One, two and four workers: the losses of 100 updates"),
    "kills": (kills, "Workers ended by SIGKILL at random moments"),
    "link": (link, "Two hosts, the link between them cut"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], help="default: all")
    parser.add_argument("--kills", type=int, default=20, help="under each launcher")
    parser.add_argument("--per-run", type=int, default=4, help="kills of one run, at most")
    parser.add_argument("--cuts", type=int, default=1, help="runs with a cut link")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, help="append the tables to this file")
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    well = True
    for name in given.sections or SECTIONS:
        section, title = SECTIONS[name]
        with tempfile.TemporaryDirectory() as place:
            rows, fine = section(Path(place), given)
        text = "\n".join([heading(title, f"distributed.py {name}"), "", *rows, ""])
        print(text, flush=True)
        if given.write:
            with open(given.write, "a") as file:
                file.write(f"\n{text}")
        well &= fine
    sys.exit(int(not well))


if __name__ == "__main__":
    main()
