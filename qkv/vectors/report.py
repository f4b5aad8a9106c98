"""Progress of a run of word2vec on the terminal: sizes, a bar with loss, words per second and remaining time, a line per epoch."""

from __future__ import annotations

import time
from types import TracebackType

from rich.progress import BarColumn, Progress, TextColumn

from qkv.text.wording import format_duration, plural
from qkv.train.report import Report
from qkv.vectors import kernel
from qkv.vectors.state import VectorsRun


class Bar:
    """A progress bar on a terminal; in a file or pipe one line per epoch."""

    def __init__(self, r: VectorsRun, report: Report):
        self.run, self.report, self.words = r, report, 0
        self.bar: Progress | None = None
        self.since = time.monotonic()

    def __enter__(self) -> Bar:
        r, c = self.run, self.run.recipe.vectors
        how = plural(kernel.workers(c.workers), "workers") if kernel.library() else "no C++ kernel (slow)"
        self.report.say(
            f"{c.model}, {c.loss}: {len(r.vocabulary.words):,} words of width {c.width}, {int(r.vocabulary.counts.sum()):,} words "
            f"of text, {plural(c.epochs, 'epochs')}; {how}"
        )
        if r.progress.step:
            self.report.say(f"resuming in epoch {r.progress.epoch + 1}")
        if self.report.console.is_terminal:
            columns = [TextColumn("{task.fields[count]}"), BarColumn(24), TextColumn("{task.fields[now]}")]
            self.bar = Progress(*columns, console=self.report.console)
            self.bar.start()
            self.bar.add_task("training", total=c.epochs, count="", now="")
        return self

    def tick(self, words: int) -> None:
        """Update after every part."""
        self.words += words
        p, epochs = self.run.progress, self.run.recipe.vectors.epochs
        now, count = f"loss {p.loss:.4f}{self.pace()}", f"epoch {min(p.epoch + 1, epochs)} of {epochs}"
        self.report.phase = f"training: {count}, {now}"
        if self.bar:
            self.bar.update(self.bar.task_ids[0], completed=self.done(), count=count, now=now)

    def epoch(self) -> None:
        """Report after every epoch."""
        p, epochs = self.run.progress, self.run.recipe.vectors.epochs
        self.report.say(f"epoch {p.epoch} of {epochs}: loss {p.loss:.4f} per prediction{self.pace()}")

    def done(self) -> float:
        """Return the number of completed epochs, with the share of the current one."""
        p = self.run.progress
        return p.epoch + p.place / p.length

    def pace(self) -> str:
        rate = self.words / max(time.monotonic() - self.since, 1e-9)
        words = (self.run.recipe.vectors.epochs - self.done()) * int(self.run.vocabulary.counts.sum())
        return f", {rate:,.0f} words/s, {format_duration(words / max(rate, 1e-9))} left"

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.bar:
            self.bar.stop()
