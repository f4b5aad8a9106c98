"""What a person sees of a run of word2vec: how large it is, a bar with loss, words per second and time to go, a line per pass."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TextColumn

from qkv.text.wording import spoken
from qkv.train.report import Report
from qkv.vectors import kernel

if TYPE_CHECKING:
    from qkv.vectors.run import VectorsRun


class Bar:
    """To a terminal with a bar; to a file or pipe in a line per pass."""

    def __init__(self, r: VectorsRun, report: Report):
        self.run, self.report, self.words = r, report, 0
        self.bar: Progress | None = None
        self.since = time.monotonic()

    def __enter__(self) -> Bar:
        r, c = self.run, self.run.recipe.vectors
        count = kernel.workers(c.workers)
        how = (
            f"{count} worker{'s' if count > 1 else ''}" if kernel.library() else "without the C++ kernel, so it is slow"
        )
        self.report.say(
            f"{c.model}, {c.loss}: {len(r.vocabulary.words):,} words of width {c.width}, {int(r.vocabulary.counts.sum()):,} words "
            f"of text, {c.epochs} passes; {how}"
        )
        if r.progress.step:
            self.report.say(f"going on in pass {r.progress.epoch + 1}")
        if self.report.console.is_terminal:
            shown = [TextColumn("{task.fields[count]}"), BarColumn(24), TextColumn("{task.fields[now]}")]
            self.bar = Progress(*shown, console=self.report.console)
            self.bar.start()
            self.bar.add_task("training", total=1.0, count="", now="")
        return self

    def tick(self, words: int) -> None:
        """After every part."""
        self.words += words
        p, epochs = self.run.progress, self.run.recipe.vectors.epochs
        now, count = f"loss {p.loss:.4f}{self.pace()}", f"pass {min(p.epoch + 1, epochs)} of {epochs}"
        self.report.phase = f"training: {count}, {now}"
        if self.bar:
            self.bar.update(self.bar.task_ids[0], completed=self.done(), count=count, now=now)

    def epoch(self) -> None:
        """After every pass."""
        p = self.run.progress
        self.report.say(
            f"pass {p.epoch} of {self.run.recipe.vectors.epochs}: loss {p.loss:.4f} per prediction{self.pace()}"
        )

    def done(self) -> float:
        """Share of the run."""
        p = self.run.progress
        return (p.epoch + p.place / p.length) / self.run.recipe.vectors.epochs

    def pace(self) -> str:
        rate = self.words / max(time.monotonic() - self.since, 1e-9)
        left = (
            (1 - self.done()) * self.run.recipe.vectors.epochs * int(self.run.vocabulary.counts.sum()) / max(rate, 1e-9)
        )
        return f", {rate:,.0f} words/s, {spoken(left)} to go"

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.bar:
            self.bar.stop()
