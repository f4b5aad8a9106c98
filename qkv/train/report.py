"""What a person sees of a run: an estimate, a bar with rate, time to go, loss and score, and why it ended."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from qkv.tasks.base import Task
from qkv.text.wording import plural, spoken
from qkv.train.checkpoint import Training
from qkv.train.estimate import memory
from qkv.train.loop import share_done, updates_left

ENOUGH_UPDATES, ENOUGH_SECONDS = 10, 5.0
"""So much must have been done before its rate tells something."""


class Report:
    """To a terminal with a bar; to a file or pipe in a line per look at the held-out set."""

    def __init__(self, console: Console | None = None, quiet: bool = False):
        self.console = console or Console(stderr=True, quiet=quiet)
        self.bar: Progress | None = None
        self.loss, self.scores, self.short, self.estimated = 0.0, "", "", False
        self.tokens, self.first, self.since, self.last = 0, 0, 0.0, 0.0
        """Target tokens since the first update of this process, which update that was, when it was done, and the last."""

    def say(self, text: str) -> None:
        """Lines break where the terminal ends, and nowhere in a file."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=not self.console.is_terminal)

    def begin(self, task: Task, t: Training) -> None:
        """How large it is, before it starts."""
        recipe, c = task.recipe, task.config
        self.training, self.train, self.metric, self.unit = t, recipe.train, task.metric, task.unit
        self.extra = tuple(task.data.extra_valid)
        count = sum(p.numel() for p in t.network.parameters())
        learned = sum(p.numel() for p in t.network.parameters() if p.requires_grad)
        fixed, moving = memory(c, t, task.objective, task.data.batch_tokens)
        budget = f", at most {spoken(60 * self.train.time_budget)}" if self.train.time_budget else ""
        budget += f", at most {self.train.epochs:g} epochs" if self.train.epochs else ""
        some = "" if learned == count else f", {learned:,} of them learned"
        self.say(f"{c.family} of {count:,} parameters{some}, up to {self.train.steps:,} updates{budget}")
        self.say(
            f"about {(fixed + moving) / 1e6:,.0f} MB of memory beside the program and its text: {fixed / 1e6:,.0f} for "
            f"weights, gradients and optimiser, {moving / 1e6:,.0f} for activations"
        )
        if t.progress.step:
            self.say(f"going on after update {t.progress.step:,}")
        if self.console.is_terminal:
            shown = [TextColumn("{task.fields[count]}"), BarColumn(24), TextColumn("{task.fields[now]}")]
            self.bar = Progress(*shown, console=self.console)
            self.bar.start()
            self.bar.add_task("training", total=1.0, count="", now="")

    # --- during

    def tick(self, line: dict[str, Any]) -> None:
        """After every update."""
        self.loss = 0.9 * self.loss + 0.1 * line["loss"] if self.loss else line["loss"]
        self.last = time.monotonic()
        if not self.first:  # it began with reading the corpus, so the clock starts behind it
            self.first, self.since = line["step"], self.last
        else:
            self.tokens += line["tokens"]
        if f"valid_{self.metric}" in line:
            held = {name.removeprefix("valid_"): value for name, value in line.items() if name.startswith("valid_")}
            first = sorted(held.items(), key=lambda item: item[0] != self.metric)
            self.scores = ", ".join(f"{self.named(name)} {digits(value)}" for name, value in first)
            chosen = [self.metric, *(f"{name}_{self.metric}" for name in self.extra)]
            self.short = "".join(f", {self.named(name)} {digits(held[name])}" for name in chosen if name in held)
            self.say(f"update {line['step']:,}: loss {self.loss:.3f}, {self.scores}{self.pace()}")
        self.estimate(line["step"])
        if self.bar:
            now = f"loss {self.loss:.3f}{self.short}{self.pace()}"
            done = share_done(self.training.progress, self.train)
            self.bar.update(self.bar.task_ids[0], completed=done, count=f"update {line['step']:,}", now=now)

    def named(self, score: str) -> str:
        """valid loss, BLEU; of a further held-out set with its name: general BLEU, general loss."""
        for name in self.extra:
            if score.startswith(f"{name}_"):
                return f"{name} {in_words(score.removeprefix(f'{name}_'))}"
        return in_words(score, "valid loss")

    @property
    def elapsed(self) -> float:
        return self.last - self.since

    @property
    def rate(self) -> float:
        """Target tokens per second in this process, looks included; 0 = not known yet."""
        return self.tokens / max(self.elapsed, 1e-9)

    def left(self) -> float:
        """Seconds until the steps are done or the time is over, whichever comes first."""
        progress, c = self.training.progress, self.train
        by_steps = updates_left(progress, c) * self.elapsed / max(progress.step - self.first, 1)
        return by_steps if c.time_budget is None else max(0.0, min(by_steps, 60 * c.time_budget - progress.seconds))

    def pace(self) -> str:
        return f", {self.rate:,.0f} {self.unit}/s, {spoken(self.left())} to go" if self.tokens else ""

    def estimate(self, step: int) -> None:
        """Once, when the first updates have shown how fast it goes."""
        if self.estimated or step - self.first < ENOUGH_UPDATES or self.elapsed < ENOUGH_SECONDS:
            return
        self.estimated = True
        each, c, progress = self.elapsed / (step - self.first), self.train, self.training.progress
        fitting = wanted = updates_left(progress, c)
        if c.time_budget is not None:
            fitting = min(fitting, int((60 * c.time_budget - progress.seconds) / each))
        if fitting < ENOUGH_UPDATES:
            return
        whole = f"about {spoken(fitting * each)} for {fitting:,} more updates at {self.rate:,.0f} {self.unit}/s"
        self.say(whole + ("" if fitting == wanted else f"; that is what fits, of {step + wanted:,}"))

    # --- afterwards

    def end(self, why: str, dropped: Counter[str]) -> None:
        self.close()
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
    return short.get(
        metric, metric.replace("rouge", "ROUGE-") if metric.startswith("rouge") else metric.replace("_", " ")
    )


def digits(value: float) -> str:
    """Four digits that matter: 98.86, 1.4697, 0.9123."""
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.4f}"
