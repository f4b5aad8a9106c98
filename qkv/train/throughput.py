"""Throughput: the current speed of training and its estimated end, from the last half minute, since the load of a machine changes."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

WINDOW = 30.0
"""Seconds of updates over which the current rate is computed."""
ENOUGH_UPDATES, ENOUGH_SECONDS = 10, 5.0
"""Minimum amount of training before a rate is meaningful."""
CHANGED, PAUSE = 1.25, 30.0
"""A forecast is corrected if it is wrong by this factor, and at most once per this number of seconds."""


@dataclass
class Pace:
    """Completed updates: (time, update, tokens so far, CPU time); the first one only starts the clock."""

    recent: deque[tuple[float, int, int, float]] = field(default_factory=deque)
    first: tuple[float, int] = (0.0, 0)
    tokens: int = 0
    """Targets since the first update of this process."""

    def tick(self, step: int, tokens: int, now: float | None = None) -> None:
        """Record an update that predicted `tokens` tokens."""
        now = time.monotonic() if now is None else now
        if not self.recent:  # the time before it was spent on reading the data
            self.first = now, step
        else:
            self.tokens += tokens
        self.recent.append((now, step, self.tokens, time.process_time()))
        while len(self.recent) > ENOUGH_UPDATES and now - self.recent[1][0] > WINDOW:
            self.recent.popleft()

    @property
    def elapsed(self) -> float:
        """Seconds since the first update."""
        return self.recent[-1][0] - self.first[0] if self.recent else 0.0

    @property
    def mean_rate(self) -> float:
        """Tokens per second since the first update, evaluations included; 0 = not known yet."""
        return self.tokens / max(self.elapsed, 1e-9)

    @property
    def rate(self) -> float:
        """Current tokens per second."""
        return (self.recent[-1][2] - self.recent[0][2]) / self.span() if self.tokens else 0.0

    @property
    def seconds_per_update(self) -> float:
        """Current seconds per update; 0 = not known yet."""
        return self.span() / max(self.recent[-1][1] - self.recent[0][1], 1) if self.tokens else 0.0

    @property
    def processors(self) -> float:
        """Cores that this process currently gets, on average."""
        return (self.recent[-1][3] - self.recent[0][3]) / self.span() if self.tokens else 0.0

    def span(self) -> float:
        return max(self.recent[-1][0] - self.recent[0][0], 1e-9)

    @property
    def known(self) -> bool:
        """Whether there are enough updates for a forecast."""
        done = self.recent[-1][1] - self.first[1] if self.recent else 0
        return done >= ENOUGH_UPDATES and self.elapsed >= ENOUGH_SECONDS


@dataclass(frozen=True)
class Forecast:
    """A forecast at some time: the number of remaining updates, and when the last one will be done."""

    made: float
    updates: int
    end: float

    def corrects(self, last: Forecast | None) -> bool:
        """Whether it differs enough from the last one that was printed to be printed too."""
        if last is None:
            return True
        left, expected = max(self.end - self.made, 1.0), max(last.end - self.made, 1.0)
        off = max(left / expected, expected / left)
        return self.made - last.made >= PAUSE and off >= CHANGED and abs(left - expected) >= PAUSE
