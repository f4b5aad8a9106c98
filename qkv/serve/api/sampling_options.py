"""Request fields for sampling that several APIs share: penalties, seeds, stop strings."""

from __future__ import annotations

import random
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from qkv.generate.logits_processor import LogitsProcessor
from qkv.serve.http.limits import Limits

SEEDS = 2**62


class PenaltyFields(BaseModel):
    """Request fields that make repetitions less likely. None = no penalty."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    presence_penalty: float | None = Field(default=None, ge=-2, le=2, allow_inf_nan=False)
    """Subtracted from the logits of generated tokens."""
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2, allow_inf_nan=False)
    """Subtracted from the logits of a token once for each time that it was generated."""
    repetition_penalty: float | None = Field(default=None, gt=0, le=100, allow_inf_nan=False)
    """Logits of tokens that occurred, also in the prompt, are divided by it if positive, multiplied if negative."""
    no_repeat_ngram: int | None = Field(default=None, ge=0, le=2**31)
    """Forbid repeated n-grams of this size, also those of the prompt; 0 = allow them."""

    def penalties(self) -> LogitsProcessor:
        return LogitsProcessor(**self.model_dump(include=set(PenaltyFields.model_fields), exclude_none=True))


def valid_seed(seed: int | None) -> int:
    """Map any integer to a valid seed; None gives a random one."""
    return random.randrange(SEEDS) if seed is None else seed % (SEEDS - 1000)


def check_stops(limits: Limits, stops: Sequence[str]) -> list[str]:
    """Check the number and lengths of stop strings; empty ones are left out."""
    limits.check("stops", len(stops), "stop strings")
    limits.check("stop_characters", max(map(len, stops), default=0), "characters in a stop string")
    return [stop for stop in stops if stop]
