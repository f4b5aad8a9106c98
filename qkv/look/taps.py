"""The taps of a network: every named point where what flows can be read and changed, with its shape.

`python -m qkv.look.taps > docs/taps.md` writes the table of the documentation.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn

from qkv.batch import Batch
from qkv.config import ModelConfig
from qkv.models.build import build
from qkv.parts.tap import Tap, record

MEANING = {
    "tap_query": "queries, positions already in them (rotary)",
    "tap_key": "keys, positions already in them; in cross-attention those of the source",
    "tap_value": "values",
    "tap_weights": "attention weights, rows sum to 1; formed only while somebody reads or edits them",
    "tap_step": "attention weights of one step of a recurrent decoder, once for each step",
    "tap_mixed": "the average of the values that each head gives: cut a head here",
    "tap_inner": "inside the feed-forward layer, after the activation",
    "tap_out": "what this sublayer adds to the residual stream: cut a layer here",
    "tap_stream": "the residual stream after this sublayer",
}
"""What flows through the tap of that name."""

SIZES = {"d_model": 24, "n_heads": 6, "n_kv_heads": 3, "d_ff": 40, "vocab_size": 50, "n_layers": 2}
LETTERS = {2: "B", 5: "S", 7: "T", 24: "C", 6: "H", 3: "H_kv", 4: "D", 40: "F", 1: "1"}
"""Sizes that are all different, so that a shape can be told in letters."""
EXAMPLES: dict[str, dict[str, Any]] = {
    "A decoder (GPT, LLaMA); an encoder (BERT, ViT) has the same": {"family": "decoder"},
    "An encoder-decoder (T5, BART, the 2017 Transformer)": {"family": "encoder-decoder"},
    "Sublayers side by side (PaLM)": {"family": "decoder", "norm_order": "parallel"},
    "A recurrent encoder-decoder with attention (RNNsearch)": {
        "family": "encoder-decoder",
        "recurrent": "gru",
        "decoder_attention": "additive",
        "position": "none",
    },
}


def taps(network: nn.Module, batch: Batch) -> dict[str, tuple[int, ...]]:
    """Every tap of a network and the shape of what flows through it, in the order of the module tree."""
    names = [name for name, module in network.named_modules(remove_duplicate=False) if isinstance(module, Tap)]
    with torch.no_grad(), record(network, names) as kept:
        network(batch)
    return {name: tuple(kept[name].shape) for name in names if name in kept}


def table() -> str:
    """The page of the documentation."""
    parts = [HEADING]
    for title, fields in EXAMPLES.items():
        c = ModelConfig(**{**SIZES, **({"n_kv_heads": None, "n_heads": 1} if "recurrent" in fields else {}), **fields})
        two = c.family == "encoder-decoder"
        batch = Batch(torch.zeros(2, 7, dtype=torch.long), source=torch.zeros(2, 5, dtype=torch.long) if two else None)
        rows: dict[str, str] = {}
        for name, shape in taps(build(c).eval(), batch).items():
            letters = ", ".join(LETTERS[n] for n in shape)
            rows[re.sub(r"\.\d+\.", ".*.", name)] = f"({letters}) | {MEANING[name.rpartition('.')[2]]}"
        lines = [f"| `{name}` | {about} |" for name, about in rows.items()]
        parts.append("\n".join([f"## {title}\n", "| tap | shape | what it is |", "|---|---|---|", *lines]))
    return "\n\n".join(parts) + "\n"


HEADING = """# Taps: where to look, and where to cut

Every network has named points where what flows can be read and changed. Idle they do nothing. `*` is the number of a layer; B inputs,
T tokens (of the target, where there is one), S source tokens, C = d_model, H heads of width D, H_kv heads of keys and values, F = d_ff.

```python
import torch, qkv
from qkv.parts.tap import edit, record

model = qkv.load("folder")
batch = model.batch(model.encode("The old man sleeps."))
with record(model.network, ["stack.blocks.0.attention.layer.tap_mixed"]) as kept, torch.no_grad():
    model.network(batch)  # kept[name] is the tensor
with edit(model.network, {"stack.blocks.0.feedforward.tap_out": torch.zeros_like}), torch.no_grad():
    logits = model.network(batch).logits  # without the first feed-forward layer
```

Any other module can be named too: `embed`, `stack.blocks.0`, `stack`. A layer that serves several times (ALBERT) has a name for
each of them. `qkv.look.taps.taps(network, batch)` lists the taps of your own network. Ready-made: qkv/look/ (attention maps, lens,
ablation, patching, attribution), all of it on these points. This page is written by `python -m qkv.look.taps`."""

if __name__ == "__main__":
    print(table(), end="")
