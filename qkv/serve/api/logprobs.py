"""Log-probabilities of tokens in the formats of the APIs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from qkv.generate.detokenize import Detokenizer
from qkv.generate.sequence import GeneratedToken
from qkv.text.tokenizer import Tokenizer

Record = Callable[[int, float], dict[str, Any]]
"""Token, log-probability -> fields."""
LEAST = -9999.0
"""Stands for minus infinity, which JSON does not have; the number that OpenAI uses."""


def finite(log_prob: float) -> float:
    return log_prob if math.isfinite(log_prob) else LEAST


class TokenFormatter:
    """Formats the tokens of one text in their order: how each reads after those before it, and at which character it starts."""

    def __init__(self, words: Tokenizer, before: Sequence[int] = ()):
        self.words, self.pieces = words, Detokenizer(words, before)
        self.offset = 0
        """Characters of the text so far; a special token has none, and part of a character none yet."""

    def advance(self, token: int) -> None:
        """Append a token to the text."""
        self.offset += len(self.pieces.add(token))

    def name(self, token: int) -> str:
        return self.words.backend.id_to_token(token) or ""

    def bytes_of(self, token: int) -> bytes | None:
        """Return the bytes of a token, which may be part of a character; None for a special token."""
        added = self.words.display.added.get(token)
        if added is not None:
            return None if added.special else self.name(token).encode("utf-8", "replace")
        spelled = self.words.display.spelled(token)
        if spelled is not None:
            return spelled
        return self.pieces.after([*self.pieces.fresh, token]).encode("utf-8", "replace")

    def text(self, token: int) -> str:
        """Return how a token would read here: a special one by its name, part of a character as "bytes:\\xf0", as OpenAI does."""
        data = self.bytes_of(token)
        if data is None:
            return self.name(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def completion_logprobs(formatter: TokenFormatter, steps: Sequence[GeneratedToken], top: int) -> dict[str, Any]:
    """Return the `logprobs` object of /v1/completions: columns."""
    tokens, own, tops, offsets = list[str](), list[float | None](), list[dict[str, float] | None](), list[int]()
    for step in steps:
        tokens.append(formatter.text(step.token))
        offsets.append(formatter.offset)
        # the first token of a prompt has no probability
        own.append(None if math.isnan(step.log_prob) else finite(step.log_prob))
        likely = {formatter.text(token): finite(log_prob) for token, log_prob in step.top}
        # the chosen one is always included
        tops.append(likely | {tokens[-1]: finite(step.log_prob)} if likely else None)
        formatter.advance(step.token)
    return {"tokens": tokens, "token_logprobs": own, "top_logprobs": tops if top else None, "text_offset": offsets}


def chat_logprobs(formatter: TokenFormatter, steps: Sequence[GeneratedToken]) -> dict[str, Any]:
    """Return the `logprobs` object of /v1/chat/completions: one record per token."""

    def record(token: int, log_prob: float) -> dict[str, Any]:
        data = formatter.bytes_of(token)
        encoded = None if data is None else list(data)
        return {"token": formatter.text(token), "logprob": finite(log_prob), "bytes": encoded}

    return {"content": records(formatter, steps, record, "top_logprobs"), "refusal": None}


def token_records(formatter: TokenFormatter, steps: Sequence[GeneratedToken]) -> list[dict[str, Any]]:
    """Return the native format: id, text, display form, probability and alternatives of each token."""

    def record(token: int, log_prob: float) -> dict[str, Any]:
        fields = {"id": token, "text": formatter.text(token), "display": formatter.words.display(token)}
        return fields | {"probability": math.exp(min(finite(log_prob), 0.0))}

    return records(formatter, steps, record, "alternatives")


def records(
    formatter: TokenFormatter, steps: Sequence[GeneratedToken], record: Record, top: str
) -> list[dict[str, Any]]:
    """Return the record of each token, and in its field `top` those of the most likely ones."""
    found = []
    for step in steps:
        found.append(record(step.token, step.log_prob) | {top: [record(*each) for each in step.top]})
        formatter.advance(step.token)
    return found
