"""Predictions and text of an inspected network as it is now, with heads ablated or not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from qkv.api import Model
from qkv.generate.search import greedy
from qkv.generate.translate import TranslationParams
from qkv.look.attention import to_index
from qkv.look.look import Look
from qkv.look.target import Target
from qkv.models.output import Output
from qkv.serve.scheduling.served_model import ServedModel, can_generate
from qkv.tasks.inspection import LONGEST_SUMMARY
from qkv.tasks.summary import NO_REPEAT


def effect_target(look: Look, position: int | None) -> Target:
    """Return the token after `position` if the model generates and there is one; otherwise the model's own prediction."""
    ids = look.batch.inputs
    if position is None or look.config.family == "encoder" or look.config.head != "vocabulary" or ids is None:
        return look.target(position)
    (place,) = to_index([position], ids.size(1), "token").tolist()
    return look.target(place, answer=int(ids[0, place + 1]) if place + 1 < ids.size(1) else None)


@torch.no_grad()
def token_probabilities(model: Model, look: Look, output: Output) -> list[dict[str, Any]] | None:
    """Return the probability of each output token given those before it (of a text, each but the first), and the position at
    which it is predicted; None for a model that does not generate."""
    if not can_generate(model) or look.batch.inputs is None:
        return None
    probabilities = output.head(output.hidden[:, look.first : -1], None)[0].float().softmax(-1)  # (T - first - 1, V)
    next_ids = look.batch.inputs[0, look.first + 1 :]
    own = probabilities.gather(-1, next_ids[:, None])[:, 0].tolist()
    tokens = look.tokens[look.first + 1 :]
    return [{"token": token, "probability": p, "position": look.first + n}
            for n, (token, p) in enumerate(zip(tokens, own, strict=True))]  # fmt: skip


def generate_greedily(served: ServedModel, look: Look, max_tokens: int) -> str | None:
    """Continue the input with the network as it is now; a translator or summarizer generates its output again. None for a model
    that does not generate, or if no token is requested."""
    model, c = served.model, served.config
    if not can_generate(model) or not max_tokens:
        return None
    assert look.batch.inputs is not None
    known = look.batch.inputs
    if c.family == "encoder-decoder":
        known, max_tokens = known[:, :1], 2 * len(look.source) + 20
    elif look.first:
        longest = LONGEST_SUMMARY if served.task == "summary" else 2 * look.first + 20
        known, max_tokens = known[:, : look.first + 1], longest
    room = min(max_tokens, model.room(known[0].tolist()), c.max_length)
    rules = model.looker().rules() if c.family == "encoder-decoder" else served.processor
    if look.first and served.task == "summary":  # with the same rules as the summary itself
        rules = served.translator.processor(TranslationParams(no_repeat_ngram=NO_REPEAT))
    (ids,) = greedy(look.network, replace(look.batch, inputs=known, mask=None), int(room), c.eos_ids, rules)
    return model.target_words().decode(ids)
