"""The agent of several workers: what they are given, and what it reports of those that have failed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from qkv.distributed import WorkerLost
from qkv.errors import FileError, QkvError
from qkv.train import agent
from qkv.train.worker import write_error
from tests.test_workers import children_of, command


def test_a_worker_that_leaves_no_message_is_reported(tmp_path: Path) -> None:
    with pytest.raises(QkvError, match=r"worker \d ended with exit code 2"):
        agent.run_workers(["-c", "raise SystemExit(2)"], 2, 0, tmp_path, print)


def test_an_interrupt_while_workers_import_torch_is_quiet(tmp_path: Path) -> None:
    with subprocess.Popen(command(tmp_path / "run", "--workers", "2"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, start_new_session=True) as process:  # fmt: skip
        while process.poll() is None and not any(map(imports_torch, children_of(process.pid))):
            time.sleep(0.001)
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate()[0]
    assert process.returncode == 130 and "Traceback" not in said, said


def imports_torch(pid: int) -> bool:
    """Whether a process has loaded a library of torch."""
    try:
        return "libtorch" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


def test_a_worker_has_its_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those after the name of its module."""
    (tmp_path / "job.py").write_text("import sys\nsys.exit(sys.argv[1:] != ['a', '-m'] or __name__ != '__main__')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert agent.run_workers(["-m", "job", "a", "-m"], 2, 0, tmp_path, print) is None


def test_an_error_is_kept_where_its_file_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "none" / "0.json"))
    assert write_error(FileError("no room")) == 2


def test_the_loss_that_is_reported_is_the_first_one(tmp_path: Path) -> None:
    """Not that of a worker that has lost the connection to it, though that one too ends with the code for another attempt."""

    def failure(rank: int, code: int, error: Exception | None) -> ProcessFailure:
        path = tmp_path / f"{rank}.json"
        if error is not None:
            path.write_text(json.dumps({"kind": type(error).__name__, "message": str(error), "timestamp": 0}))
        return ProcessFailure(rank, 1, code, str(path))

    lost = failure(0, WorkerLost.exit_code, WorkerLost("connection lost"))
    full = failure(1, WorkerLost.exit_code, MemoryError("no memory"))
    assert agent.describe_loss({0: lost, 1: full}) == "worker 1: no memory"
    assert agent.describe_loss({0: lost, 2: failure(2, -9, None)}) == "worker 2 was ended by SIGKILL"
    assert agent.describe_loss({0: lost, 3: failure(3, -15, None)}) == "worker 0: connection lost"


def test_workers_use_the_modules_of_their_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in the current folder does not replace the standard library's."""
    (tmp_path / "colorsys.py").write_text("raise SystemExit(2)")
    monkeypatch.chdir(tmp_path)
    assert agent.run_workers(["-c", "import colorsys"], 2, 0, tmp_path, print) is None


def test_the_meeting_point_of_one_machine_is_not_open_to_the_network() -> None:
    meeting = agent.OneMachine()
    port = meeting.next_rendezvous().bootstrap_store_info.master_port
    socket.create_connection((agent.HOST, port), timeout=5).close()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.2", port), timeout=5)  # all addresses of 127.0.0.0/8 are this machine's
