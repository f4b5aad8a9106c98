"""The process that renders chat templates: how it starts and ends, and what it may not do."""

import json
import os
import signal
import sys
from subprocess import PIPE, Popen

from qkv.text import renderer
from qkv.text.chat import render
from qkv.text.renderer import RENDERER, STARTED, exchange, limit_memory

HELLO = [{"role": "user", "content": "hello"}]


def test_the_time_to_start_is_not_that_of_a_template(monkeypatch):
    """A machine may be busy when the process starts."""
    waits = []
    monkeypatch.setattr(renderer, "exchange", lambda *given: waits.append(given[2]) or exchange(*given))
    RENDERER.close()
    render("", HELLO, {})
    render("", HELLO, {})
    assert waits == [renderer.START, renderer.SECONDS, renderer.SECONDS]


def test_the_process_imports_nothing_from_the_current_folder(tmp_path, monkeypatch):
    RENDERER.close()
    (tmp_path / "jinja2.py").write_text("open('executed', 'w')")
    monkeypatch.setattr("sys.path", [path for path in sys.path if path])
    monkeypatch.chdir(tmp_path)
    assert render("{{ messages[0].content }}", HELLO, {}) == "hello"
    assert not (tmp_path / "executed").exists()


def test_a_process_that_cannot_limit_its_memory_still_renders(monkeypatch):
    """As on macOS, where setrlimit refuses less than what a process has."""

    def refuse(*limit):
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr("resource.setrlimit", refuse)
    limit_memory()


def test_half_an_answer_is_none():
    command = [sys.executable, "-c", "print('{\"text\": ', end='', flush=True)"]
    with Popen(command, stdin=PIPE, stdout=PIPE) as process:
        assert exchange(process, b"", 60.0) == b""


def test_a_process_without_a_parent_ends_by_itself():
    """One whose parent was killed while it rendered a template without an end."""
    job = {"template": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "values": [{}]}
    change = "from qkv.text import renderer; renderer.SECONDS = 0; renderer.main()"
    with Popen([sys.executable, "-c", change], stdin=PIPE, stdout=PIPE) as process:
        assert exchange(process, json.dumps(job).encode() + b"\n", 60.0) == STARTED
        assert process.stdout.readline() == b""
    assert process.returncode == -signal.SIGALRM


def test_a_fork_has_a_process_of_its_own():
    """Also one that was made while another thread had the lock."""
    render("", HELLO, {})
    with RENDERER.lock:
        child = os.fork()
        if child == 0:
            os._exit(RENDERER.lock.locked() or RENDERER.process is not None)
    assert os.waitpid(child, 0)[1] == 0
    assert render("{{ messages[0].content }}", HELLO, {}) == "hello"
