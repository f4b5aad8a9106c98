"""Workers: several processes behind one port.

Python computes in one thread at a time, and of a small model most of the work is Python's: two processes answer nearly twice as
much as one process with two threads. Each has models, batches, a queue and a socket of its own; the kernel shares out connections
among them. The first process only watches over them: who dies is replaced, and the end is told to all.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import Any

from qkv.errors import QkvError
from qkv.generate.free_cores import free_cores
from qkv.pretrained import find
from qkv.serve.http.auth import Keys
from qkv.serve.http.sockets import at
from qkv.serve.scheduling.limits import Limits

SMALL = 64_000_000
"""Bytes of weights of which every worker may have a copy without being asked for."""
SHARED = "PROMETHEUS_MULTIPROC_DIR"
"""The folder in which workers keep their numbers, so that each can tell those of all."""


ENDS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True)
class Settings:
    """What every worker is made from."""

    folders: Sequence[str]
    languages: Sequence[str] = ()
    limits: Limits = field(default_factory=Limits)
    keys: Keys = field(default_factory=Keys)
    watch: Path | None = None
    origins: Sequence[str] = ()
    hosts: Sequence[str] = ()
    device: str = "auto"

    def shared(self, count: int) -> Settings:
        """Limits of what one of several workers has at once: together they have what was asked for. One request of the largest
        size must find room in any of them."""
        limits, share = self.limits, lambda most: -(-most // count)
        own = {"waiting": max(share(limits.waiting), min(limits.waiting, max(limits.texts, limits.sentences))),
               "connections": share(limits.connections)}  # fmt: skip
        return replace(self, limits=limits.model_copy(update=own))


def usual(folders: Sequence[str], device: str) -> int:
    """How many workers there are where nobody says: one per core that is free now while models are small; one where they are
    not, or where a graphics card does the work. A worker that shares its core with another program slows its clients down."""
    card = device not in ("auto", "cpu") or any(Path(one).exists() for one in ("/dev/nvidia0", "/dev/kfd"))
    if card or not sys.platform.startswith("linux") or not folders or sum(map(size, folders)) > SMALL:
        return 1
    told = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return max(1, int(told)) if told.isdecimal() else free_cores()


def size(given: str) -> int:
    """Bytes of the files of a model: FOLDER, FOLDER/best or a file, each also as NAME=FOLDER."""
    _, path = name_and_path(given)
    path = path / "best" if (path / "best").is_dir() else path
    return sum(one.stat().st_size for one in (path.iterdir() if path.is_dir() else [path]) if one.is_file())


def name_and_path(given: str) -> tuple[str, Path]:
    """Split NAME=FOLDER; the name is empty where only a path, or the name of a shipped model, is given."""
    name, equals, folder = given.partition("=")
    return (name, find(folder)) if equals and not Path(given).exists() else ("", find(given))


# --- one of them


def work(settings: Settings, host: str, port: int, count: int, news: Connection) -> None:
    """Answer requests until the first process says that it is over, or is no more. News are a list of lines to begin with, or
    why it cannot begin."""
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Ctrl-C is for the first process, which tells the others
    unheard(signal.SIG_UNBLOCK)
    threading.Thread(target=outlive, daemon=True).start()
    import torch

    from qkv.serve.server import described, server_of, service_of

    torch.set_num_threads(max(1, torch.get_num_threads() // count))
    try:
        service = service_of(settings.shared(count))
        lines = described(service)
        server_of(service, lambda: news.send(lines)).run(sockets=[at(host, port, sharing=True)])
    except (QkvError, OSError) as error:
        news.send(str(error))


def unheard(how: int) -> None:
    """Let the signals that end everything wait, or come."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(how, ENDS)


def outlive() -> None:
    """End when the first process has gone without a word."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)


# --- the first process


class Workers:
    """`run` begins them, and ends when they have ended."""

    def __init__(self, settings: Settings, count: int, host: str, port: int):
        self.settings, self.count, self.host, self.port = settings, count, host, port
        self.spawn = multiprocessing.get_context("spawn")  # a fork of a process that computes with threads may hang
        self.running: dict[Any, Connection | None] = {}
        """Processes, and where their news come from; None when there will be no more."""
        self.ready: set[Any] = set()
        """Those that answer."""
        self.greeted = self.closing = False

    def run(self, began: Callable[[list[str]], None]) -> None:
        """`began` is told when the first one answers; then come the others: what is wrong with a model is said once."""
        before = {number: signal.signal(number, self.end) for number in ENDS}
        try:
            with tempfile.TemporaryDirectory(prefix="qkv-") as folder:
                os.environ[SHARED] = folder
                self.watch(folder, began)
        finally:
            os.environ.pop(SHARED, None)
            for number, handler in before.items():
                signal.signal(number, handler)

    def watch(self, folder: str, began: Callable[[list[str]], None]) -> None:
        try:
            self.begin()
            while self.running:
                wait([*(one.sentinel for one in self.running), *filter(None, self.running.values())])
                for process, news in list(self.running.items()):
                    if news is not None and news.poll():
                        self.hear(process, news, began)
                    elif not process.is_alive():
                        self.bury(process, folder)
        finally:  # whatever went wrong here, nobody is left without a watch
            self.end(signal.SIGTERM)
            for process in self.running:
                process.join()

    def begin(self) -> None:
        """One more, unless the end has come; whoever has begun is known before the end can be told."""
        unheard(signal.SIG_BLOCK)
        try:
            if self.closing:
                return
            ours, theirs = self.spawn.Pipe(duplex=False)
            process = self.spawn.Process(target=work, args=(self.settings, self.host, self.port, self.count, theirs))
            process.start()  # it inherits that signals wait, until it can be told
            theirs.close()
            self.running[process] = ours
        finally:
            unheard(signal.SIG_UNBLOCK)

    def hear(self, process: Any, news: Connection, began: Callable[[list[str]], None]) -> None:
        try:
            said = news.recv()
        except EOFError:  # it is about to end
            self.running[process] = None
            return None
        if isinstance(said, str):
            return self.without(process, said)
        self.ready.add(process)
        if not self.greeted and not self.closing:
            self.greeted = True
            began(said)
            for _ in range(self.count - 1):
                self.begin()
        return None

    def bury(self, process: Any, folder: str) -> None:
        """One that has ended; where it should not have, another one takes its place."""
        from prometheus_client.multiprocess import mark_process_dead

        mark_process_dead(process.pid, folder)  # type: ignore[no-untyped-call]
        if self.closing:
            del self.running[process]
        elif process not in self.ready:
            self.without(
                process,
                f"a worker ended at its beginning (exit code {process.exitcode}): is there memory for {self.count}?",
            )
        else:
            del self.running[process]
            self.ready.discard(process)
            print(f"a worker has ended (exit code {process.exitcode}): another one takes its place", file=sys.stderr)
            self.begin()

    def without(self, process: Any, why: str) -> None:
        """One that cannot begin: the others go on; where nobody answers yet, it is the end."""
        del self.running[process]
        if not self.ready:
            raise QkvError(why)
        print(f"one worker less: {why}", file=sys.stderr)

    def end(self, number: int, frame: FrameType | None = None) -> None:
        """Whoever answers already ends in peace; whoever does not yet is not waited for."""
        self.closing = True
        for process in self.running:
            if process.is_alive():
                os.kill(process.pid, number if process in self.ready else signal.SIGTERM)
