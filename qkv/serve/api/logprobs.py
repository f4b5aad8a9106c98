"""Told: tokens as a client sees them, with their log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from qkv.generate.detokenize import Detokenizer
from qkv.generate.sequence import GeneratedToken
from qkv.text.tokenizer import Tokenizer

LEAST = -9999.0
"""A log-probability of minus infinity, which JSON cannot say; OpenAI's own number for it."""


def number(log_prob: float) -> float:
    return log_prob if math.isfinite(log_prob) else LEAST


class Reader:
    """The tokens of one text, one after another: how each reads behind those before it, and where in the text it begins."""

    def __init__(self, words: Tokenizer, before: Sequence[int] = ()):
        self.words, self.pieces = words, Detokenizer(words, before)
        self.offset = 0
        """Characters of the text so far. A special token is none of it, and part of a character none yet."""

    def pass_by(self, token: int) -> None:
        """The text goes on with this token."""
        self.offset += len(self.pieces.add(token))

    def name(self, token: int) -> str:
        return self.words.backend.id_to_token(token) or ""

    def bytes_of(self, token: int) -> bytes | None:
        """The bytes of a token, which may be part of a character; None of a special one, which stands for no text."""
        added = self.words.display.added.get(token)
        if added is not None:
            return None if added.special else self.name(token).encode("utf-8", "replace")
        spelled = self.words.display.spelled(token)
        if spelled is not None:
            return spelled
        return self.pieces.after([*self.pieces.fresh, token]).encode("utf-8", "replace")

    def text(self, token: int) -> str:
        """How it would read here: a special one by its name, part of a character by its bytes, as OpenAI writes them."""
        own = self.bytes_of(token)
        if own is None:
            return self.name(token)
        try:
            return own.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in own)


def completion_logprobs(reader: Reader, steps: Sequence[GeneratedToken], top: int) -> dict[str, Any]:
    """The object of /v1/completions: columns."""
    tokens, own, tops, offsets = list[str](), list[float | None](), list[dict[str, float] | None](), list[int]()
    for step in steps:
        tokens.append(reader.text(step.token))
        offsets.append(reader.offset)
        # the first token of a prompt has no probability: nothing stands before it
        own.append(None if math.isnan(step.log_prob) else number(step.log_prob))
        likely = {reader.text(token): number(log_prob) for token, log_prob in step.top}
        tops.append(likely | {tokens[-1]: number(step.log_prob)} if likely else None)  # the chosen one is always told
        reader.pass_by(step.token)
    return {"tokens": tokens, "token_logprobs": own, "top_logprobs": tops if top else None, "text_offset": offsets}


def chat_logprobs(reader: Reader, steps: Sequence[GeneratedToken]) -> dict[str, Any]:
    """The object of /v1/chat/completions: a record for each token."""

    def record(token: int, log_prob: float) -> dict[str, Any]:
        own = reader.bytes_of(token)
        return {"token": reader.text(token), "logprob": number(log_prob), "bytes": None if own is None else list(own)}

    content = []
    for step in steps:
        content.append(record(step.token, step.log_prob) | {"top_logprobs": [record(*each) for each in step.top]})
        reader.pass_by(step.token)
    return {"content": content, "refusal": None}


def token_records(reader: Reader, steps: Sequence[GeneratedToken]) -> list[dict[str, Any]]:
    """Our own: id, text, how it is displayed, probability, and what could have stood there instead."""

    def record(token: int, log_prob: float) -> dict[str, Any]:
        own = {"id": token, "text": reader.text(token), "display": reader.words.display(token)}
        return own | {"probability": math.exp(min(number(log_prob), 0.0))}

    records = []
    for step in steps:
        records.append(record(step.token, step.log_prob) | {"alternatives": [record(*each) for each in step.top]})
        reader.pass_by(step.token)
    return records
