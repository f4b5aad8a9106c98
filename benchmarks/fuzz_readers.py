"""Feed every reader of files and requests with damaged input: it must succeed, or raise a QkvError of one line.

    python benchmarks/fuzz_readers.py                        one minute per reader
    python benchmarks/fuzz_readers.py --minutes 10           as a release is checked
    python benchmarks/fuzz_readers.py --only GGUF recipe --seed 7
    python benchmarks/fuzz_readers.py --again FOLDER         read a saved input once more, with its traceback

Good files (fuzz_cases.py, fuzz_data.py) are changed at random: bits, bytes, cuts and repetitions, and in JSON and TOML also values. A
finding is any other exception, an input that takes more than 20 s of processor time or lets the process grow by more than 800 MB, and a
process that dies. Each reader runs in a process of its own; inputs that were findings are saved. Exit code 1 with findings.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECONDS, GROWTH, BACKSTOP = 20, 800_000_000, 4_000_000_000
"""Of one input: seconds and bytes that are a finding, and bytes at which the system refuses more."""
NUMBERS = [0, 1, -1, 2, 3, 7, 100, 255, 256, 65_535, 2**24, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, 10**30,
           0.5, -0.0, 1e-320, 1e30, 1e308, float("inf"), float("-inf"), float("nan")]  # fmt: skip
VALUES: list[Any] = [None, True, False, "", "a", "x" * 3000, "\0", "\ud800", "ü\u2028", [], {}, [[]], [None], {"": 0}]


# --- changes


def changed(path: Path, r: random.Random) -> None:
    """Change one file in place."""
    data = path.read_bytes()
    if path.suffix in (".json", ".jsonl") and r.random() < 0.7:
        data = changed_json(data, r)
    elif path.suffix in (".toml", ".txt", ".jinja", "") and r.random() < 0.6:
        data = changed_text(data, r)
    else:
        for _ in range(r.choice([1, 1, 1, 2, 4, 16])):
            data = changed_bytes(data, r)
    path.write_bytes(data)


def changed_bytes(data: bytes, r: random.Random) -> bytes:
    """A bit, a byte, a number, a cut, a repetition, an insertion. The beginning, where headers are, is hit more often."""
    if not data:
        return r.randbytes(r.randrange(20))
    at = r.randrange(len(data) if r.random() < 0.5 else min(len(data), 400))
    end = min(len(data), at + r.choice([1, 2, 4, 8, 100]))
    size = r.choice([1, 2, 4, 8])
    number = (int(n) if (n := r.choice(NUMBERS[:18])) == n else 0) % 256**size
    return r.choice([
        data[:at] + bytes([data[at] ^ 1 << r.randrange(8)]) + data[at + 1 :],
        data[:at] + r.randbytes(end - at) + data[end:],
        data[:at] + number.to_bytes(size, r.choice(["little", "big"])) + data[at + size :],
        data[:at],
        data[:at] + data[end:],
        data[:end] + data[at:],
        data[:at] + data[at:end] * r.choice([2, 100, 10_000]) + data[end:],
        data[:at] + r.choice([b"\0", b"\xff", b"\n", b"\r", b'"', b"\t", b",", b"{", b"\xed\xa0\x80"]) + data[at:],
    ])  # fmt: skip


def changed_json(data: bytes, r: random.Random) -> bytes:
    """One to three values replaced, removed, renamed or repeated."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return changed_bytes(data, r)
    for _ in range(r.choice([1, 1, 2, 3])):
        value = changed_value(value, r)
    return json.dumps(value).encode()


def changed_value(value: Any, r: random.Random) -> Any:
    """Walk to some place and change what is there."""
    if isinstance(value, dict) and value and r.random() < 0.9:
        key = r.choice(list(value))
        kind = r.random()
        if kind < 0.08:
            return {k: v for k, v in value.items() if k != key}
        if kind < 0.12:
            return {(f"{k}x" if k == key else k): v for k, v in value.items()}
        return {k: changed_value(v, r) if k == key else v for k, v in value.items()}
    if isinstance(value, list) and value and r.random() < 0.9:
        at = r.randrange(len(value))
        kind = r.random()
        if kind < 0.1:
            return value[:at] + value[at + 1 :]
        if kind < 0.2:
            return value[: at + 1] * r.choice([2, 50]) + value[at:]
        return [*value[:at], changed_value(value[at], r), *value[at + 1 :]]
    if isinstance(value, int | float) and r.random() < 0.7:
        return r.choice([*NUMBERS, value + 1, -value, float(value) if abs(value) < 1e300 else 0])
    if isinstance(value, str) and value and r.random() < 0.5:
        return changed_text(value.encode("utf-8", "replace"), r).decode("utf-8", "replace")
    return r.choice([*VALUES, *NUMBERS])


def changed_text(data: bytes, r: random.Random) -> bytes:
    """A number or a word replaced, a line moved, or bytes changed."""
    text = data.decode("utf-8", "replace")
    found = list(re.finditer(r"-?\d[\d.e_]*|\w+", text))
    if found and r.random() < 0.6:
        one, other = r.choice(found), r.choice(found)
        new = str(r.choice(NUMBERS)) if one[0][0].isdigit() and r.random() < 0.7 else other[0]
        return (text[: one.start()] + new + text[one.end() :]).encode()
    if r.random() < 0.3:
        lines = text.split("\n")
        lines.insert(r.randrange(len(lines)), r.choice(lines) * r.choice([1, 1, 50]))
        return "\n".join(lines).encode()
    return changed_bytes(data, r)


# --- one reader, in a process of its own


class Slow(BaseException):
    """An input has taken too long."""


def too_slow(*_: object) -> None:
    raise Slow


def work(reader: str, seed: int, seconds: float, folder: Path) -> None:
    """Feed a reader for so many seconds. `folder` holds the input that is being read, and findings; one line of JSON each
    is printed for every finding, and a last one with the counts."""
    from fuzz_cases import CASES

    signal.signal(signal.SIGPROF, too_slow)
    r, counts = random.Random(seed), Counter[str]()
    good = []
    for number, (make, read) in enumerate(CASES[reader]):
        place = folder / f"good-{number}"
        place.mkdir(parents=True)
        make(place)
        read(place)
        good.append((place, read))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + BACKSTOP, used + BACKSTOP))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        number = r.randrange(len(good))
        place = folder / "input"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(good[number][0], place / "files")
        (place / "case").write_text(json.dumps([reader, number]))
        files = sorted(path for path in (place / "files").rglob("*") if path.is_file())
        for _ in range(r.choice([1, 1, 1, 2])):
            changed(r.choice(files), r)
        kind, detail = attempt(good[number][1], place / "files")
        counts[kind] += 1
        if kind not in ("read", "refused"):
            kept = folder / f"finding-{seed}-{counts.total()}"
            shutil.copytree(place, kept)
            print(json.dumps({"kind": kind, "detail": detail, "saved": str(kept)}), flush=True)
    print(json.dumps({"counts": counts}), flush=True)


def attempt(read: Callable[[Path], object], files: Path) -> tuple[str, str]:
    """What became of one input."""
    from qkv.errors import QkvError

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.setitimer(signal.ITIMER_PROF, SECONDS)  # of processor time: a busy machine is no finding
    try:
        read(files)
        kind, detail = "read", ""
    except QkvError as error:
        kind, detail = ("several lines", str(error)[:300]) if "\n" in str(error) else ("refused", "")
    except Slow:
        kind, detail = "slow", f"more than {SECONDS} s"
    except BaseException as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        kind, detail = type(error).__name__, f"{Path(frame.filename).name}:{frame.lineno}: {str(error)[:200]}"
    signal.setitimer(signal.ITIMER_PROF, 0)
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    return (kind, detail) if grown < GROWTH else ("memory", f"{grown // 10**6} MB more")


# --- all readers


def feed(reader: str, seed: int, minutes: float, folder: Path) -> tuple[Counter[str], list[dict[str, str]]]:
    """Run the process of a reader until its time is over, again where it died; the counts and the findings."""
    end, counts, findings = time.monotonic() + 60 * minutes, Counter[str](), list[dict[str, str]]()
    while (left := end - time.monotonic()) > 0:
        place = folder / f"{reader.replace(' ', '-')}-{seed}"
        arguments = ["--reader", reader, "--seed", str(seed), "--seconds", str(left), "--folder", str(place)]
        try:
            done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True,
                                  timeout=left + 120 + SECONDS)  # fmt: skip
            lines, why = done.stdout.splitlines(), f"exit code {done.returncode}: {done.stderr.strip()[-300:]}"
        except subprocess.TimeoutExpired as error:
            lines, why = (error.stdout or b"").decode().splitlines(), "it hangs"
        found = [json.loads(line) for line in lines]
        findings += [one for one in found if "kind" in one]
        ended = [one["counts"] for one in found if "counts" in one]
        if ended:
            counts.update(ended[0])
        else:
            kept = place / "died"
            shutil.copytree(place / "input", kept, dirs_exist_ok=True) if (place / "input").exists() else None
            findings.append({"kind": "died", "detail": why, "saved": str(kept)})
        seed += 1000
    return counts, findings


def again(folder: Path) -> None:
    """Read a saved input, with the traceback of what it causes."""
    from fuzz_cases import CASES

    reader, number = json.loads((folder / "case").read_text())
    with tempfile.TemporaryDirectory() as place:
        shutil.copytree(folder / "files", Path(place) / "files")
        CASES[reader][number][1](Path(place) / "files")
    print("read")


def main() -> None:
    from fuzz_cases import CASES

    p = argparse.ArgumentParser(description="Feed every reader with damaged input.")
    p.add_argument("--minutes", type=float, default=1.0, help="for each reader")
    p.add_argument("--seed", type=int, default=0, help="another seed makes other inputs")
    p.add_argument("--only", nargs="*", choices=CASES, default=list(CASES), help="these readers")
    p.add_argument("--again", type=Path, help="read a saved input once more")
    for hidden, kind in (("--reader", str), ("--seconds", float), ("--folder", Path)):
        p.add_argument(hidden, type=kind, help=argparse.SUPPRESS)
    given = p.parse_args()
    if given.again:
        again(given.again)
        return
    if given.reader:
        work(given.reader, given.seed, given.seconds, given.folder)
        return
    folder, total = Path(tempfile.mkdtemp(prefix="fuzz-")), list[dict[str, str]]()
    print(f"| reader | inputs | read | refused | findings |\n|{'---|' * 5}")
    for reader in given.only:
        counts, findings = feed(reader, given.seed, given.minutes, folder)
        print(
            f"| {reader} | {counts.total():,} | {counts['read']:,} | {counts['refused']:,} | {len(findings)} |",
            flush=True,
        )
        total += findings
    for kind, detail in dict.fromkeys((one["kind"], one["detail"]) for one in total):
        first = next(one["saved"] for one in total if (one["kind"], one["detail"]) == (kind, detail))
        print(f"{kind}: {detail}\n    {first}")
    if total:
        sys.exit(1)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
