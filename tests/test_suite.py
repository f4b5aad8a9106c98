"""The test suite itself: what is skipped is announced, a hang ends, random tests repeat."""

from pathlib import Path
from types import SimpleNamespace

import conftest
import hypothesis
import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


class Reporter:
    """Stands in for pytest's terminal: keeps titles and lines."""

    def __init__(self, *reasons: str) -> None:
        self.stats = {"skipped": [SimpleNamespace(longrepr=("file", 1, f"Skipped: {reason}")) for reason in reasons]}
        self.written: list[str] = []

    def section(self, title: str, **_: object) -> None:
        self.written.append(title)

    def line(self, text: str) -> None:
        self.written.append(text)


def test_what_was_not_tested_is_announced_and_counted() -> None:
    reporter = Reporter(
        *["no C++ compiler: the kernels are not tested"] * 3, "the real model is not here (QKV_DATA)", "x"
    )
    conftest.pytest_terminal_summary(reporter)
    assert "NOT TESTED: the C++ kernels (3 skipped)" in reporter.written
    assert "NOT TESTED: real data (1 skipped)" in reporter.written
    assert not any("the page" in line for line in reporter.written)
    assert reporter.written[-3:] == ["    3 no C++ compiler: the kernels are not tested",
                                     "    1 the real model is not here (QKV_DATA)", "    1 x"]  # fmt: skip


def test_without_skips_there_is_nothing_to_announce() -> None:
    reporter = Reporter()
    conftest.pytest_terminal_summary(reporter)
    assert reporter.written == []


def test_the_marks_of_the_tests_are_announced() -> None:
    """Each reason in use is one that the summary knows."""
    from paging import needs_browser
    from test_recurrent_networks import needs_g2p

    for mark in (conftest.needs_compiler, needs_browser, needs_g2p):
        assert any(part in mark.kwargs["reason"] for part in conftest.UNTESTED), mark


def test_a_hang_ends(request: pytest.FixtureRequest) -> None:
    assert float(request.config.getini("timeout")) == 300 and request.config.getini("timeout_method") == "thread"
    assert request.config.pluginmanager.has_plugin("timeout")


def test_random_tests_repeat_unless_new_cases_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hypothesis.settings.get_profile("fixed").derandomize
    assert not hypothesis.settings.get_profile("random").derandomize


def test_mutations_fit_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever rewrites a line that benchmarks/mutations.py breaks rewrites its mutation."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import mutations

    assert len(mutations.MUTATIONS) == 40 and len({m.new for m in mutations.MUTATIONS}) == 40
    for mutation in mutations.MUTATIONS:
        mutations.check_text(mutation)  # exits unless the text is there once
    with pytest.raises(SystemExit, match="0 times"):
        mutations.check_text(mutations.Mutation("qkv/batch.py", "no such text", "", ""))
