"""Real processes, killed with SIGKILL and resumed, end as the one that was never stopped (benchmarks/faults.py)."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "faults.py"


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_killed_processes_go_on_to_the_same_bits() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--quick"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| kill | 3 | 3 |" in done.stdout and "0 promises broken" in done.stdout
