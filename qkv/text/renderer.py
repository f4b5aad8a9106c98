"""A process that renders chat templates, which are untrusted programs: it has limits on memory, time and output.

The parent sends one job per line, JSON, and reads one answer per line. The process is started at the first template and
ends with its parent, or when a template goes beyond a limit; the next one then starts another.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from qkv.errors import QkvError

MEMORY, SECONDS, OUTPUT = 500_000_000, 5.0, 10_000_000
"""Bytes of the process, seconds for a template, and characters of a prompt, at the most."""
TOGETHER = 64
"""Prompts that are sent at once, for which the limit in seconds holds together."""
STARTED, START = b"started\n", 60.0
"""The first line of the process, and seconds until it comes."""
STOPPED = f"takes more than {SECONDS:g} s or {MEMORY // 1_000_000} MB on these messages, and was stopped"


class Renderer:
    """The process, seen from its parent. Threads take turns."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None

    def render(self, template: str, values: Sequence[dict[str, Any]]) -> list[str | QkvError]:
        """Render a template with each of some values: the text, or the error where it fails or goes beyond a limit."""
        found: list[dict[str, str]] = []
        for at in range(0, len(values), TOGETHER):
            some = list(values[at : at + TOGETHER])
            try:
                line = json.dumps({"template": template, "values": some}).encode() + b"\n"
            except (TypeError, ValueError, RecursionError) as error:
                raise QkvError(f"these messages are not plain data: {' '.join(str(error).split())[:200]}") from None
            with self.lock:
                answer = exchange(self.started(), line, SECONDS)
                if not answer:
                    self.close()
            found += json.loads(answer) if answer else [{"error": STOPPED}] * len(some)
        return [one["text"] if "text" in one else QkvError(f"the chat template {one['error']}") for one in found]

    def started(self) -> subprocess.Popen[bytes]:
        """The process that runs, or a new one."""
        if self.process is None or self.process.poll() is not None:
            # -P: modules come from where this process has them, not from the current folder as well
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "qkv.text.renderer"], env=environment,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            atexit.register(self.close)
            if exchange(self.process, b"", START) != STARTED:
                self.close()
                raise QkvError(f"cannot start the process for chat templates: {sys.executable} -m qkv.text.renderer")
        return self.process

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
        self.process = None
        atexit.unregister(self.close)


def exchange(process: subprocess.Popen[bytes], line: bytes, seconds: float) -> bytes:
    """Send a line and wait for one, empty where none comes; a process that takes too long is killed, which ends the waiting."""
    assert process.stdin is not None and process.stdout is not None
    limit = threading.Timer(seconds, process.kill)
    limit.start()
    try:
        process.stdin.write(line)
        process.stdin.flush()
        answer = process.stdout.readline()
    except BrokenPipeError:
        answer = b""
    finally:
        limit.cancel()
    return answer if answer.endswith(b"\n") else b""  # it may have been killed while it was writing


RENDERER = Renderer()
if hasattr(os, "register_at_fork"):  # another thread may hold the lock at that moment: a fork begins anew
    os.register_at_fork(after_in_child=RENDERER.__init__)  # type: ignore[misc]


# --- in the process


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # they are for the parent, whose end is the end of stdin
        signal.signal(number, signal.SIG_IGN)
    environment()
    limit_memory()
    send(STARTED)
    for line in sys.stdin.buffer:
        limit_time(math.ceil(SECONDS) + 1)  # the parent's limit, where there is still a parent, is first
        job = json.loads(line)
        answer = [attempt(job["template"], values) for values in job["values"]]
        limit_time(0)
        send(json.dumps(answer).encode() + b"\n")


def send(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def limit_time(seconds: int) -> None:
    """End this process after so many seconds, where the system can; 0 = do not."""
    if hasattr(signal, "alarm"):
        signal.alarm(seconds)


def limit_memory() -> None:
    """Make an allocation beyond MEMORY fail, where the system can; elsewhere time and output alone are limited."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    except (ImportError, ValueError, OSError):
        pass  # Windows; macOS, where every process has more; a tighter limit of the user's


def attempt(template: str, values: dict[str, Any]) -> dict[str, str]:
    """{"text": ...}, or {"error": ...} in words that follow "the chat template"."""
    try:
        text = parse(template).render(values)
    except QkvError as error:
        return {"error": str(error)}
    except MemoryError:
        return {"error": f"takes more than {MEMORY // 1_000_000} MB on these messages"}
    except Exception as error:  # whatever a program from outside can cause
        return {"error": f"fails on these messages: {' '.join(str(error).split())[:200]}"}
    return {"text": text} if len(text) <= OUTPUT else {"error": f"writes more than {OUTPUT:,} characters"}


@lru_cache(maxsize=4)
def parse(template: str) -> Any:
    return environment().from_string(template)


def environment() -> Any:
    """Jinja's sandbox, which reaches neither files nor Python objects, with the functions that templates expect."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    made.filters["tojson"] = lambda value, **how: json.dumps(value, ensure_ascii=False, **how)
    made.globals["raise_exception"] = refuse
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return made


def refuse(message: str) -> NoReturn:
    raise QkvError(f"refuses these messages: {message}")


if __name__ == "__main__":
    main()
