"""torch's elastic agent for the workers of one machine: it starts them, watches them, and restarts all when one is lost.

torchrun uses the same agent (torch.distributed.elastic). Three of its parts are replaced: the rendezvous, which needs
no network here; where their messages go, which for rank 0 is this terminal; and what happens when one fails: all are
restarted if it was lost, while an error that would recur ends the run.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.events import Event, EventSource
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous.api import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from qkv import errors
from qkv.distributed import WorkerLost
from qkv.errors import QkvError
from qkv.train.worker_start import block_interrupts

START = "qkv.train.worker_start"
HOST = "127.0.0.1"
LOOPBACK = {"linux": "lo", "darwin": "lo0"}
"""The network interface that is available without a network."""
SHUTDOWN_TIMEOUT = 24 * 3600
"""Seconds for the workers to finish their update and write a checkpoint when the run is stopped; a second signal ends them immediately."""


def run_workers(
    arguments: list[str], workers: int, restarts: int, place: Path, say: Callable[[str], None]
) -> signal.Signals | None:
    """Run Python with these arguments in several processes until all have ended; return the signal that stopped them, if any.

    A module (`-m`) ends without a traceback at Ctrl-C, from its first import on (worker_start.py).

    place: a folder for their messages. Raises the QkvError of a worker, WorkerLost where one is lost too often, and
    RuntimeError with the traceback of any other error.
    """
    if arguments[0] == "-m":
        arguments = ["-m", START, *arguments[1:]]
    spec = WorkerSpec(
        "worker", workers, OneMachine(), entrypoint=sys.executable, args=tuple(arguments), max_restarts=restarts
    )
    agent = Agent(spec, Messages(place), say)
    with own_signals(agent):
        try:
            result = agent.run()
        except SignalException as stopped:
            return stopped.sigval
    codes = {failure.exitcode for failure in result.failures.values()}
    for number in (signal.SIGINT, signal.SIGTERM):
        if 128 + number in codes:  # sent to a worker itself
            return number
    if result.failures:
        raise cause(result.failures)
    return None


class Agent(LocalElasticAgent):
    """An agent that restarts the workers after a loss, but not after an error of the run."""

    def __init__(self, spec: WorkerSpec, messages: LogsSpecs, say: Callable[[str], None]):
        super().__init__(spec, messages, start_method="spawn", shutdown_timeout=SHUTDOWN_TIMEOUT)
        self.say = say
        self.starting = False
        self.received: signal.Signals | None = None

    def receive(self, number: int, frame: object) -> None:
        """Handle a signal: stop the run, or remember it while workers are started, since their processes are not known until then."""
        self.received = signal.Signals(number)
        if not self.starting:
            raise SignalException(self.received.name, self.received)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self.starting, self.received = True, None
        try:
            with block_interrupts():
                started = super()._start_workers(worker_group)
        finally:
            self.starting = False
        if self.received is not None:
            raise SignalException(self.received.name, self.received)
        return started

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result = super()._monitor_workers(worker_group)
        if result.state != WorkerState.FAILED:
            return result
        if not all(may_recover(failure) for failure in result.failures.values()):
            self._remaining_restarts = 0
        elif self._remaining_restarts:
            number = worker_group.spec.max_restarts - self._remaining_restarts + 1
            self.say(
                f"{describe_loss(result.failures)}: restarting all workers ({number} of {worker_group.spec.max_restarts})"
            )
        return result

    def _construct_event(self, state: str, source: EventSource, *details: object, **more: object) -> Event:
        """Make an event, which is not recorded. Torch's contains the full name of this machine, which may take long to look up."""
        return Event(state, source)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        """Stop the workers; a second signal meanwhile ends them immediately."""
        try:
            super()._shutdown(death_sig, timeout)
        except SignalException:
            super()._shutdown(signal.SIGKILL, timeout)
            raise


class OneMachine(RendezvousHandler):
    """The rendezvous of the workers of a single agent: a new store at every start."""

    store: dist.TCPStore

    use_agent_store = True

    def next_rendezvous(self) -> RendezvousInfo:
        listener = socket.create_server((HOST, 0))  # a store that opens its port itself would listen on all interfaces
        port = listener.getsockname()[1]
        self.store = dist.TCPStore(
            HOST, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )
        return RendezvousInfo(self.store, 0, 1, RendezvousStoreInfo(HOST, port))

    def get_backend(self) -> str:
        return "one-machine"

    def get_run_id(self) -> str:
        return "qkv"

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def shutdown(self) -> bool:
        return True


class Messages(LogsSpecs):
    """Output of the workers: rank 0 writes to this process's terminal, the others to files, errors to files. Also their environment."""

    def __init__(self, place: Path):
        super().__init__(str(place))
        self.place = place

    @property
    def root_log_dir(self) -> str:
        return str(self.place)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Return the files of one start of the workers."""
        place = self.place / envs[0]["TORCHELASTIC_RESTART_COUNT"]
        place.mkdir()
        files = LogsDest()
        for rank, environment in envs.items():
            files.error_files[rank] = environment["TORCHELASTIC_ERROR_FILE"] = str(place / f"{rank}.json")
            files.stdouts[rank] = files.stderrs[rank] = str(place / f"{rank}.txt") if rank else ""
            if not rank and not inherits_stderr():
                files.stderrs[rank] = files.tee_stderrs[rank] = str(place / "0.txt")
            environment["OMP_NUM_THREADS"] = "1"
            # the modules of this process, not those in the current folder, which `python -m` would search first
            environment["PYTHONPATH"], environment["PYTHONSAFEPATH"] = (
                os.pathsep.join(map(os.path.abspath, sys.path)),
                "1",
            )
            if sys.platform in LOOPBACK:
                environment["GLOO_SOCKET_IFNAME"] = LOOPBACK[sys.platform]
        return files


def inherits_stderr() -> bool:
    """Whether child processes share the standard error of this process: in a notebook they do not, and their messages are forwarded."""
    try:
        return sys.stderr.fileno() == 2
    except (OSError, AttributeError, ValueError):
        return False


@contextmanager
def own_signals(agent: Agent) -> Iterator[None]:
    """Let the agent handle SIGINT and SIGTERM within the block, and restore their handlers afterwards. Torch's own handlers and
    its warnings of lost workers stay off in this process."""
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "none"  # of torch's handlers
    for name in ("multiprocessing.api", "agent.server.api", "agent.server.local_elastic_agent"):
        logging.getLogger(f"torch.distributed.elastic.{name}").setLevel(logging.CRITICAL)
    main = threading.current_thread() is threading.main_thread()
    before = (
        {number: signal.signal(number, agent.receive) for number in (signal.SIGINT, signal.SIGTERM)} if main else {}
    )
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- failures


def may_recover(failure: ProcessFailure) -> bool:
    """Whether a worker lost its connections, was ended by a signal, or ran out of memory: another attempt may succeed."""
    return failure.exitcode < 0 or failure.exitcode == WorkerLost.exit_code


def describe_loss(failures: dict[int, ProcessFailure]) -> str:
    """Describe the worker that was lost first: the others have lost the connection to it, or were ended by the agent."""

    def is_consequence(failure: ProcessFailure) -> bool:
        return failure.exitcode == -signal.SIGTERM or data_of(failure).get("kind") == WorkerLost.__name__

    return describe_end(*min(failures.items(), key=lambda item: (is_consequence(item[1]), item[0])))


def describe_end(rank: int, failure: ProcessFailure) -> str:
    """Describe what ended a worker: its own message, if it has left one."""
    if failure.exitcode < 0:
        return f"worker {rank} was ended by {failure.signal_name()}"
    data = data_of(failure)
    return f"worker {rank}: {data['message']}" if data else f"worker {rank} ended with exit code {failure.exitcode}"


def cause(failures: dict[int, ProcessFailure]) -> Exception:
    """Return the error to raise in this process for those of the workers."""
    for rank, failure in failures.items():
        if failure.exitcode == QkvError.exit_code:
            data = data_of(failure)
            kind = getattr(errors, data.get("kind", ""), QkvError)
            return kind(data.get("message", describe_end(rank, failure)))
    for rank, failure in failures.items():
        if not may_recover(failure):
            return RuntimeError(
                f"worker {rank} failed with exit code {failure.exitcode}\n{data_of(failure).get('message', '')}"
            )
    return WorkerLost(describe_loss(failures))


def data_of(failure: ProcessFailure) -> dict[str, Any]:
    """Return the data that a worker has written about its error."""
    return failure.error_file_data if isinstance(failure.error_file_data.get("kind"), str) else {}
