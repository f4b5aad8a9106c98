"""Said: what a network that is looked into says as it is now, heads switched off or not."""

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
from qkv.serve.scheduling.served_model import Served
from qkv.tasks.inspection import LONGEST_SUMMARY
from qkv.tasks.summary import NO_REPEAT


def writes(model: Model) -> bool:
    c = model.config
    return c.family != "encoder" and c.head == "vocabulary" and model.tokenizer is not None


def measured(one: Look, position: int | None) -> Target:
    """The token that stands behind `position`, where the model writes and there is one; else the model's own answer."""
    ids = one.batch.inputs
    if position is None or one.config.family == "encoder" or one.config.head != "vocabulary" or ids is None:
        return one.target(position)
    (place,) = to_index([position], ids.size(1), "token").tolist()
    return one.target(place, answer=int(ids[0, place + 1]) if place + 1 < ids.size(1) else None)


@torch.no_grad()
def expected(model: Model, one: Look, output: Output) -> list[dict[str, Any]] | None:
    """How likely the network, by its output, finds each token that it writes (of a text, each but the first) after those before it;
    None of one that does not write. It is predicted at `position`."""
    if not writes(model) or one.batch.inputs is None:
        return None
    own = output.head(output.hidden[:, one.first : -1], None)[0].float().softmax(-1)  # (T - first - 1, V)
    next_ = one.batch.inputs[0, one.first + 1 :]
    chances = own.gather(-1, next_[:, None])[:, 0].tolist()
    tokens = one.tokens[one.first + 1 :]
    return [{"token": token, "probability": p, "position": one.first + n}
            for n, (token, p) in enumerate(zip(tokens, chances, strict=True))]  # fmt: skip


def written(served: Served, one: Look, most: int) -> str | None:
    """What the network as it is now writes on, or of a translator or a writer of summaries instead; None of one that does not
    write, and where no token is wanted."""
    model, c = served.model, served.config
    if not writes(model) or not most:
        return None
    assert one.batch.inputs is not None
    known = one.batch.inputs
    if c.family == "encoder-decoder":
        known, most = known[:, :1], 2 * len(one.source) + 20
    elif one.first:
        known, most = known[:, : one.first + 1], LONGEST_SUMMARY
    room = min(most, model.room(known[0].tolist()), c.max_length)
    rules = model.looker().rules() if c.family == "encoder-decoder" else served.rules
    if one.first and served.task == "summary":  # as the summary itself was written
        rules = served.translator.processor(TranslationParams(no_repeat_ngram=NO_REPEAT))
    (ids,) = greedy(one.network, replace(one.batch, inputs=known, mask=None), int(room), c.eos_ids, rules)
    return model.target_words().decode(ids)
