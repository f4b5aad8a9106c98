"""What a person sees of a run: an estimate, a bar with rate, time to go, loss and score, and why it ended."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from qkv.config import ModelConfig, TrainConfig
from qkv.train.checkpoint import Training


class Report:
    """To a terminal with a bar; to a file or pipe in a line per look at the held-out set."""

    def __init__(self, console: Console | None = None, quiet: bool = False):
        self.console = console or Console(stderr=True, quiet=quiet)
        self.bar: Progress | None = None
        self.tokens, self.since, self.loss, self.scores = 0, time.monotonic(), 0.0, ""

    def say(self, text: str) -> None:
        self.console.print(text)

    def begin(self, c: ModelConfig, train: TrainConfig, t: Training) -> None:
        """How large it is, before it starts."""
        count = sum(p.numel() for p in t.network.parameters())
        memory = count * 4 * (5 if t.average else 4) / 1e6  # weights, gradients, Adam's two, the average
        budget = f", at most {train.time_budget:g} minutes" if train.time_budget else ""
        self.say(
            f"{c.family} of {count:,} parameters (about {memory:,.0f} MB without activations), up to {train.steps:,} updates{budget}"
        )
        if t.progress.step:
            self.say(f"going on after update {t.progress.step:,}")
        if self.console.is_terminal:
            columns = [
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            ]
            clock = [TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[now]}")]
            self.bar = Progress(*columns, *clock, console=self.console)
            self.bar.start()
            self.bar.add_task("training", total=train.steps, completed=t.progress.step, now="")

    def tick(self, line: dict[str, Any]) -> None:
        self.tokens += line["tokens"]
        self.loss = 0.98 * self.loss + 0.02 * line["loss"] if self.loss else line["loss"]
        rate = self.tokens / max(time.monotonic() - self.since, 1e-9)
        if "valid_bleu" in line:
            self.scores = f"BLEU {line['valid_bleu']:.2f} valid loss {line['valid_loss']:.3f}"
        if self.bar:
            self.bar.update(
                self.bar.task_ids[0],
                completed=line["step"],
                now=f"loss {self.loss:.3f} {self.scores} {rate:,.0f} tokens/s",
            )
        elif "valid_bleu" in line:
            self.say(f"update {line['step']:,}: loss {self.loss:.3f}, {self.scores}, {rate:,.0f} target tokens/s")

    def end(self, why: str, dropped: Counter[str]) -> None:
        if self.bar:
            self.bar.stop()
        for reason, count in dropped.most_common():
            self.say(f"dropped {count:,} pairs: {reason}")
        self.say(f"training ended: {why}")
