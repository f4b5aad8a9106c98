"""`qkv presets`: list the model presets."""

from __future__ import annotations

import json

from qkv.commands.common import Json


def run(as_json: Json = False) -> None:
    """List the model presets: family, layers x width, and the paper.

    [dim]qkv presets[/]
    """
    from qkv.presets import ABOUT, PRESETS

    if as_json:
        print(json.dumps({name: {"about": ABOUT[name], **c.model_dump()} for name, c in PRESETS.items()}, indent=2))
        return
    for name, c in PRESETS.items():
        size = f"{c.n_layers} x {c.d_model}"
        print(f"{name:<24} {c.family:<15} {size:>10}  {ABOUT[name]}")
