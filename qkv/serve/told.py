"""Told: tokens as a client sees them, with their log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from qkv.generate.continuous import Step
from qkv.text.tokenizer import Tokenizer

LEAST = -9999.0
"""A log-probability of minus infinity, which JSON cannot say; OpenAI's own number for it."""


def number(log_prob: float) -> float:
    return log_prob if math.isfinite(log_prob) else LEAST


def token_text(words: Tokenizer, before: Sequence[int], token: int) -> str:
    """How a token reads behind others; a special one by its name."""
    context = list(before[-2:])
    text = words.decode([*context, token])[len(words.decode(context)) :]
    return text or words.backend.id_to_token(token) or ""


def texts(words: Tokenizer, steps: Sequence[Step]) -> list[str]:
    ids = [step.token for step in steps]
    return [token_text(words, ids[max(0, at - 2) : at], token) for at, token in enumerate(ids)]


def completion_logprobs(words: Tokenizer, steps: Sequence[Step], top: int) -> dict[str, Any]:
    """The object of /v1/completions: columns."""
    ids, tokens = [step.token for step in steps], texts(words, steps)
    offsets = [0, *accumulate(map(len, tokens))][: len(tokens)]
    tops = [
        {token_text(words, ids[:at], token): number(log_prob) for token, log_prob in step.top} if step.top else None
        for at, step in enumerate(steps)
    ]
    # the first token of a prompt has no probability: nothing stands before it
    own = [None if math.isnan(step.log_prob) else number(step.log_prob) for step in steps]
    return {"tokens": tokens, "token_logprobs": own, "top_logprobs": tops if top else None, "text_offset": offsets}


def chat_logprobs(words: Tokenizer, steps: Sequence[Step]) -> dict[str, Any]:
    """The object of /v1/chat/completions: a record for each token."""
    ids = [step.token for step in steps]

    def record(token: int, log_prob: float, before: Sequence[int]) -> dict[str, Any]:
        text = token_text(words, before, token)
        return {"token": text, "logprob": number(log_prob), "bytes": list(text.encode("utf-8", "replace"))}

    return {
        "content": [
            record(step.token, step.log_prob, ids[:at])
            | {"top_logprobs": [record(token, log_prob, ids[:at]) for token, log_prob in step.top]}
            for at, step in enumerate(steps)
        ],
        "refusal": None,
    }


def token_records(words: Tokenizer, before: Sequence[int], steps: Sequence[Step]) -> list[dict[str, Any]]:
    """Our own: id, text, probability, and what could have stood there instead."""
    known, records = list(before), list[dict[str, Any]]()
    for step in steps:
        record = lambda token, log_prob: {  # noqa: E731
            "id": token, "text": token_text(words, known, token), "probability": math.exp(min(number(log_prob), 0.0)),
        }  # fmt: skip
        records.append(record(step.token, step.log_prob) | {"alternatives": [record(*each) for each in step.top]})
        known.append(step.token)
    return records
