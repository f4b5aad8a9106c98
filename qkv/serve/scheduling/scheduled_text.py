"""A text that is being generated, and the channel that carries its tokens from a scheduler thread to the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from qkv.generate.sequence import GeneratedToken, Generation, Sampler

Update = list[GeneratedToken] | Exception | None
"""New tokens; an error; or None at the end."""


@dataclass(eq=False)
class ScheduledText:
    """One text to generate."""

    inputs: list[int]
    """Its known tokens: the prompt of a decoder, the start of the target of an encoder-decoder."""
    source: list[int] | None
    generation: Generation
    """Its hypotheses, and how they are extended."""
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    updates: asyncio.Queue[Update] = field(default_factory=asyncio.Queue)
    cancelled: bool = False
    """Nobody reads it any more: the scheduler removes it before the next step."""
    texts: int = 1
    """It takes one place in the queue."""
    delivered: int = 0
    """Tokens that were sent to the event loop."""

    async def steps(self) -> AsyncIterator[list[GeneratedToken]]:
        """Yield new tokens as they are generated."""
        try:
            while (update := await self.updates.get()) is not None:
                if isinstance(update, Exception):
                    raise update
                yield update
        finally:
            self.cancelled = True

    async def wait(self) -> Generation:
        """Return the generation when it is complete."""
        async for _ in self.steps():
            pass
        return self.generation

    def undelivered(self) -> list[GeneratedToken]:
        """Return the tokens since the last call; a beam search has none before its end."""
        if not isinstance(self.generation, Sampler):
            return []
        steps = self.generation.tokens[self.delivered :]
        self.delivered += len(steps)
        return steps


def deliver(updates: Sequence[tuple[ScheduledText, Update]]) -> None:
    """Send updates to the event loops of their texts, with one wake-up per loop."""
    for loop in {text.loop for text, _ in updates}:
        own = [(text, update) for text, update in updates if text.loop is loop]
        try:
            loop.call_soon_threadsafe(put_updates, own)
        except RuntimeError:  # the event loop is closed, and with it the waiting request
            for text, _ in own:
                text.cancelled = True


def put_updates(updates: Sequence[tuple[ScheduledText, Update]]) -> None:
    for text, update in updates:
        text.updates.put_nowait(update)
