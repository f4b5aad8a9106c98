"""RunsProgress: progress of several runs, as bars on a terminal and as lines in a file or pipe."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from qkv.lab.parallel_runs import Outcome, PlannedRun, RunningRun, run_state, train_runs
from qkv.text.wording import format_duration, plural

SILENCE = 60.0
"""Seconds after which a line is printed to a file or pipe, whatever happens."""


class RunsProgress:
    """Show the progress of `total` runs, of which `finished` are already done, `jobs` at a time.

    The remaining time assumes the speed of this session, in proportion to the costs of the runs.
    """

    def __init__(self, total: int, finished: int, jobs: int, console: Console):
        self.console = console
        self.total, self.ended, self.jobs = total, finished, jobs
        self.done_seconds, self.done_work, self.done_steps = 0.0, 0.0, 0
        """Of the runs that ended in this session; work is the cost of a run times the share of it that was done."""
        self.shares_before: dict[str, float] = {}
        """Share of each running run that was done in an earlier session."""
        self.begun = self.printed = time.monotonic()
        self.bars = Progress(TextColumn("{task.description}"), BarColumn(20), TextColumn("{task.fields[now]}"),
                             console=self.console) if self.console.is_terminal else None  # fmt: skip
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> RunsProgress:
        if self.bars:
            self.bars.start()
            self.whole = self.bars.add_task("all runs", total=1.0, now="")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.bars:
            self.bars.stop()

    # --- what train_runs calls

    def update(self, running: Sequence[RunningRun], waiting: Sequence[PlannedRun]) -> None:
        """Update the display; called after each poll of the processes."""
        for run in running:
            self.shares_before.setdefault(run.plan.name, run.share)
        text = f"{self.ended} of {plural(self.total, 'runs')}{self.rate(running)}{self.left(running, waiting)}"
        if self.bars:
            self.draw(running, text)
        elif time.monotonic() - self.printed >= SILENCE:
            self.say("; ".join([text, *(f"{run.plan.name}: {now(run)}" for run in running)]))

    def end(self, run: RunningRun, error: str) -> None:
        """Report that a run has ended, successfully or with an error."""
        name = run.plan.name
        self.done_seconds += run.seconds
        self.done_work += run.plan.cost * (1.0 - self.shares_before.pop(name, 0.0))
        self.done_steps += run.step - run.first_step
        if self.bars and name in self.tasks:
            self.bars.remove_task(self.tasks.pop(name))
        self.ended += not error
        if error:
            self.say(f"{name}: failed: {error}")
        else:
            self.say(f"{name}: finished in {format_duration(run.seconds)} ({self.ended} of {self.total})")

    def say(self, text: str) -> None:
        """Print a line without wrapping it."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)
        self.printed = time.monotonic()

    # --- numbers

    def rate(self, running: Sequence[RunningRun]) -> str:
        steps = self.done_steps + sum(run.step - run.first_step for run in running)
        return f", {steps / max(time.monotonic() - self.begun, 1e-9):.1f} updates/s" if steps else ""

    def left(self, running: Sequence[RunningRun], waiting: Sequence[PlannedRun]) -> str:
        """Format the remaining time: the remaining work at the speed of this session, but at least that of the longest run."""
        gained = sum(run.plan.cost * (run.share - self.shares_before.get(run.plan.name, 0.0)) for run in running)
        work, seconds = self.done_work + gained, self.done_seconds + sum(run.seconds for run in running)
        costs = [*(run.plan.cost * (1.0 - run.share) for run in running), *(plan.cost for plan in waiting)]
        if work < 0.02 * sum(costs) / max(len(costs), 1):  # nothing to extrapolate from yet
            return ""
        left = seconds / work * max(max(costs, default=0.0), sum(costs) / self.jobs)
        return f", {format_duration(left)} to go"

    def draw(self, running: Sequence[RunningRun], text: str) -> None:
        assert self.bars is not None
        self.bars.update(self.whole, completed=(self.ended + sum(run.share for run in running)) / self.total, now=text)
        for run in running:
            if run.plan.name not in self.tasks:
                self.tasks[run.plan.name] = self.bars.add_task(run.plan.name, total=1.0, now="")
            self.bars.update(self.tasks[run.plan.name], completed=run.share, now=now(run))


def now(run: RunningRun) -> str:
    """Describe the progress of one run."""
    if "loss" not in run.line:
        return "preparing the data"
    return f"update {run.step:,}, loss {run.line['loss']:.3f}"


def train_with_progress(runs: Sequence[PlannedRun], jobs: int, quiet: bool = False) -> Outcome:
    """Train the runs that are not finished, `jobs` at a time, and show their progress."""
    waiting = [run for run in runs if run_state(run) != "finished"]  # an error where a folder holds another run
    finished = len(runs) - len(waiting)
    with RunsProgress(len(runs), finished, jobs, Console(stderr=True, highlight=False, quiet=quiet)) as display:
        if finished:
            display.say(f"{finished} of {plural(len(runs), 'runs')} finished before")
        return train_runs(waiting, jobs, display)
