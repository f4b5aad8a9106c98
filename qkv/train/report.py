"""Progress of a run on the terminal: an estimate, a bar with rate, remaining time, loss and score, and why the run ended."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from qkv.convert.huggingface import exportable
from qkv.distributed import world_size
from qkv.tasks.base import Task
from qkv.text.wording import format_duration, plural
from qkv.train.checkpoint import Training
from qkv.train.estimate import memory
from qkv.train.loop import remaining_updates, share_of_run
from qkv.train.throughput import ENOUGH_UPDATES, Forecast, Pace

SILENCE = 60.0
"""Seconds after which a line is printed to a file or pipe, whatever happens."""
DISTURBED = 0.75
"""Cores that a thread gets, below which other programs slow training down."""


class Report:
    """To a terminal with a bar; to a file or pipe in a line per evaluation, and at least one a minute."""

    def __init__(self, console: Console | None = None, quiet: bool = False):
        self.console = console or Console(stderr=True, quiet=quiet)
        self.bar: Progress | None = None
        self.pace = Pace()
        self.forecast: Forecast | None = None
        self.next_forecast = 0.0
        """When the forecast is reconsidered."""
        self.loss, self.short, self.phase = 0.0, "", "preparing the data"
        self.printed = time.monotonic()
        """When the last line was printed."""

    def say(self, text: str) -> None:
        """Lines are not wrapped here, only by the terminal: paths and commands in them can be copied."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)
        self.printed = time.monotonic()

    @contextmanager
    def heartbeat(self) -> Iterator[None]:
        """Within it no minute passes without a line, where output goes to a file or pipe."""
        done = threading.Event()

        def beat() -> None:
            while not done.wait(max(0.1, SILENCE - (time.monotonic() - self.printed))):
                if time.monotonic() - self.printed >= SILENCE:
                    self.say(self.status())

        if self.console.is_terminal or self.console.quiet:
            yield
            return
        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()  # an interpreter that ends beside it may abort

    def status(self) -> str:
        """How far it is, in a line."""
        if self.phase:
            return f"still {self.phase}"
        return f"update {self.training.progress.step:,}: loss {self.loss:.3f}{self.speed()}"

    def begin(self, task: Task, t: Training) -> None:
        """How large it is, before it starts."""
        recipe, c = task.recipe, task.config
        self.training, self.train, self.metric, self.unit = t, recipe.train, task.metric, task.unit
        self.extra = tuple(task.data.extra_valid)
        count = sum(p.numel() for p in t.network.parameters())
        learned = sum(p.numel() for p in t.network.parameters() if p.requires_grad)
        fixed, moving = memory(c, t, task.objective, task.data.batch_tokens)
        budget = f", at most {format_duration(60 * self.train.time_budget)}" if self.train.time_budget else ""
        epochs = f"{self.train.epochs:g} epoch{'' if self.train.epochs == 1 else 's'}" if self.train.epochs else ""
        budget += f", at most {epochs}" if epochs else ""
        some = "" if learned == count else f", {learned:,} of them learned"
        self.say(f"{c.family} of {count:,} parameters{some}, up to {self.train.steps:,} updates{budget}")
        workers = world_size()
        shared = f"; {workers} workers with a thread each share every batch" if workers > 1 else ""
        self.say(
            f"about {(workers * fixed + moving) / 1e6:,.0f} MB of memory beside the program and its text: {workers * fixed / 1e6:,.0f} "
            f"for weights, gradients and optimiser, {moving / 1e6:,.0f} for activations{shared}"
        )
        name, why = exportable(c)
        self.say(f"exports to Hugging Face as {name}" if name else f"cannot be exported to Hugging Face: {why}")
        if t.progress.step:
            self.say(f"resuming after update {t.progress.step:,}")
        if self.console.is_terminal:
            shown = [TextColumn("{task.fields[count]}"), BarColumn(24), TextColumn("{task.fields[now]}")]
            self.bar = Progress(*shown, console=self.console)
            self.bar.start()
            self.bar.add_task("training", total=1.0, count="", now="")

    # --- during

    def tick(self, line: dict[str, Any]) -> None:
        """After every update."""
        self.phase = ""
        self.loss = 0.9 * self.loss + 0.1 * line["loss"] if self.loss else line["loss"]
        self.pace.tick(line["step"], line["tokens"])
        if f"valid_{self.metric}" in line:
            held = {name.removeprefix("valid_"): value for name, value in line.items() if name.startswith("valid_")}
            self.print_scores(line["step"], held)
        if self.pace.tokens and self.pace.recent[-1][0] >= self.next_forecast:
            self.estimate()
        if self.bar:
            now = f"loss {self.loss:.3f}{self.short}{self.speed()}"
            done = share_of_run(self.training.progress, self.train)
            self.bar.update(self.bar.task_ids[0], completed=done, count=f"update {line['step']:,}", now=now)

    def print_scores(self, step: int, held: dict[str, float]) -> None:
        """Print the scores of the held-out sets; the bar shows those of the metric from now on."""
        first = sorted(held.items(), key=lambda item: item[0] != self.metric)
        scores = ", ".join(f"{self.label(name)} {digits(value)}" for name, value in first)
        chosen = [self.metric, *(f"{name}_{self.metric}" for name in self.extra)]
        self.short = "".join(f", {self.label(name)} {digits(held[name])}" for name in chosen if name in held)
        self.say(f"update {step:,}: loss {self.loss:.3f}, {scores}{self.speed()}")

    def label(self, score: str) -> str:
        """Name a score for people: valid loss, BLEU; of a further held-out set general BLEU, general loss."""
        for name in self.extra:
            if score.startswith(f"{name}_"):
                return f"{name} {in_words(score.removeprefix(f'{name}_'))}"
        return in_words(score, "valid loss")

    def left(self) -> float:
        """Return the seconds until the updates are done or the time is over, whichever comes first, at the current rate."""
        progress, c = self.training.progress, self.train
        by_steps = remaining_updates(progress, c) * self.pace.seconds_per_update
        return by_steps if c.time_budget is None else max(0.0, min(by_steps, 60 * c.time_budget - progress.seconds))

    def speed(self) -> str:
        if not self.pace.tokens:
            return ""
        return f", {self.pace.rate:,.0f} {self.unit}/s, {format_duration(self.left())} to go"

    def estimate(self) -> None:
        """Print how long it will take, once the first updates have shown their rate, and again when that has changed."""
        self.next_forecast = self.pace.recent[-1][0] + 1.0
        if not self.pace.known:
            return
        each, wanted = self.pace.seconds_per_update, remaining_updates(self.training.progress, self.train)
        fitting, now = min(wanted, int(self.left() / each)), time.monotonic()
        forecast = Forecast(now, fitting, now + self.left())
        if fitting < ENOUGH_UPDATES or not forecast.corrects(self.forecast):
            return
        again, self.forecast = "" if self.forecast is None else "corrected forecast: ", forecast
        whole = f"{again}about {format_duration(self.left())} for {fitting:,} more updates at {self.pace.rate:,.0f} {self.unit}/s"
        last = self.training.progress.step + wanted
        some = "" if fitting == wanted else f"; the time budget ends the run before all {last:,} updates are done"
        on_cpu = next(self.training.network.parameters()).device.type == "cpu"
        disturbed = on_cpu and self.pace.processors < DISTURBED * torch.get_num_threads()
        busy = "; slowed down: other processes are using the CPU" if disturbed else ""
        self.say(whole + some + busy)

    # --- afterwards

    def end(self, why: str, dropped: Counter[str]) -> None:
        self.close()
        self.phase = "scoring the model"
        for reason, count in dropped.most_common():
            self.say(f"dropped {plural(count, 'examples')}: {reason}")
        self.say(f"training ended: {why}")

    def close(self) -> None:
        """Take the bar away, also when something went wrong."""
        if self.bar:
            self.bar.stop()
            self.bar = None


def in_words(metric: str, loss: str = "loss") -> str:
    """A number of `Task.evaluate` as a person writes it."""
    short = {"bleu": "BLEU", "f1": "F1", "macro_f1": "macro F1", "loss": loss, "exact": "exact match",
             "matthews": "Matthews", "pearson": "Pearson", "spearman": "Spearman"}  # fmt: skip
    return short.get(metric) or re.sub("^rouge", "ROUGE-", metric.replace("_", " "))


def digits(value: float) -> str:
    """Four digits that matter: 98.86, 1.4697, 0.9123."""
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.4f}"
