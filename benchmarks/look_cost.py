"""CPU seconds of what the page's logit lens and ablation views ask of a model: `python benchmarks/look_cost.py [--tokens 36]`.

The network has the shape of SmolLM2-135M and random weights, on one thread; wall time would depend on who else computes."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

from qkv.api import Model
from qkv.look.target import Target
from qkv.models.build import build
from qkv.presets import preset
from qkv.serve.api.ablation import generate_greedily, token_probabilities
from qkv.serve.scheduling.served_model import ServedModel
from qkv.text.train import train_tokenizer

SHAPE = {"vocab_size": 49_152, "d_model": 576, "n_layers": 30, "n_heads": 9, "n_kv_heads": 3, "d_ff": 1536, "tie": "output",
         "max_length": 2048}  # fmt: skip
COLUMNS = 8
"""Columns of the lens that one request of the page computes."""


def measured(name: str, work: Callable[[], Any]) -> None:
    begun = time.process_time()
    work()
    print(f"{name:45} {time.process_time() - begun:6.2f} s")


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--tokens", type=int, default=36)
    given = asked.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    c = preset("llama-7b").changed(**SHAPE)
    model = Model(c, build(c).eval(), train_tokenizer(["a b c d"] * 20, "bpe", 40), "cpu")
    look = model.look(torch.randint(10, 30, (given.tokens,)).tolist())
    served = ServedModel("large", model)

    def numbers() -> None:
        with torch.no_grad():
            output = look.network(look.batch)
        look.answers(None, 6, output)
        token_probabilities(model, look, output)

    last = Target(0, given.tokens - 1)
    measured(f"Logit lens: {COLUMNS} columns in sight", lambda: look.lens(6, range(COLUMNS)))
    measured(f"Logit lens: all {given.tokens} columns", lambda: look.lens(6))
    measured("Ablation: numbers of one side", numbers)
    measured("Ablation: text of one side, 20 tokens", lambda: generate_greedily(served, look, 20))
    measured("Ablation: heads of one layer of 30", lambda: look.effect_of_heads(last, layer=15))


if __name__ == "__main__":
    main()
