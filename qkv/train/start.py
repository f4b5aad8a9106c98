"""Starting from a trained model: its weights where the new network has a place for them, fresh ones in a new head."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from qkv.config import ModelConfig
from qkv.convert.detect import open_model
from qkv.convert.files import some
from qkv.errors import QkvError
from qkv.models.weights import weights

MOVED = {
    ("pooled", "classes"): ("head.", "head.pooler."),
    ("masked-next", "classes"): ("head.next.pooler.", "head.pooler."),
    ("masked-next", "masked"): ("head.words.", "head."),
    ("masked", "masked-next"): ("head.", "head.words."),
    ("vocabulary", "classes-words"): ("head.", "head.words."),
    ("classes-words", "vocabulary"): ("head.words.", "head."),
    ("classes-words", "classes"): ("head.", "head."),
    ("classes", "classes-words"): ("head.", "head."),
}
"""Heads of two kinds that have a layer in common, and what it is called in each. In all others equal names mean nothing:
"dense" is BERT's pooler here, and there what it does before it chooses a word."""


def start_from(folder: str, config: ModelConfig, network: nn.Module, say: Callable[[str], None]) -> None:
    """Copy the weights of the model in `folder` into `network`, which is that of `config`. All but a head must fit; a head
    of another kind is new, and so is what told other labels apart."""
    start, started, _ = open_model(folder)
    if start.family != config.family:
        raise QkvError(
            f"{folder} is of family {start.family!r}, this model of family {config.family!r}: start from another"
        )
    known = renamed(started.state_dict(), start, config)  # each name of a shared matrix
    fresh, misfits, wanted = [], [], weights(network)
    with torch.no_grad():
        for name, weight in wanted.items():
            found = known.get(name)
            if found is not None and found.shape == weight.shape:
                weight.copy_(found)
            elif name.startswith("head."):
                fresh.append(name)
            else:
                misfits.append(
                    f"{name} {tuple(weight.shape)}" + ("" if found is None else f" (there {tuple(found.shape)})")
                )
    if misfits:
        raise QkvError(f"{folder} does not have the weights of this model: {some(misfits, 5)}; leave the sizes out of [model], "
                       "they come from the folder")  # fmt: skip
    unused = [name for name in weights(started) if name not in wanted and not name.startswith("head.")]
    say(f"starting from {folder}" + (f"; new weights: {', '.join(fresh)}" if fresh else "")
        + (f"; not used of it: {some(unused, 5)}" if unused else ""))  # fmt: skip


def renamed(known: Mapping[str, Tensor], start: ModelConfig, new: ModelConfig) -> dict[str, Tensor]:
    """The weights under the names that the new network has for them."""
    alike = ("head.", "head.") if start.head == new.head else None
    old, now = alike or MOVED.get((start.head, new.head), ("nothing", ""))
    found = {name: x for name, x in known.items() if not name.startswith("head.")}
    found |= {now + name.removeprefix(old): x for name, x in known.items() if name.startswith(old)}
    if start.labels and start.labels != new.labels:
        found = {name: x for name, x in found.items() if not name.startswith("head.output.")}
    return found
