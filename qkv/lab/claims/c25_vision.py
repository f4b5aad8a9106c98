"""C25: a Vision Transformer is the same network on patches of an image."""

from __future__ import annotations

from typing import Any

import torch

from qkv.config import ModelConfig
from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table, judge
from qkv.lab.statistics import estimate, exceeds
from qkv.lab.training import make_recipe, train_network
from qkv.look.charts import bars
from qkv.models.build import build
from qkv.parts.masks import Mask

SIZES: dict[str, Any] = {
    "family": "encoder", "d_model": 64, "n_layers": 2, "n_heads": 4, "d_ff": 128, "feedforward": "gelu", "norm_order": "pre",
}  # fmt: skip
IMAGES: dict[str, Any] = {"head": "classes", "image_size": 8, "n_channels": 1, "pooler": False, "pooling": "mean"}
PATCHES = (2, 4, 8)
GOOD = 90
"""Accuracy on digits, in per cent, that counts as classifying them."""


def stack_difference(seed: int) -> dict[str, float]:
    """Give the stack of a ViT the weights of a text encoder's: how many there are, and how far their outputs differ."""
    torch.manual_seed(seed)
    text: Any = build(
        ModelConfig(vocab_size=100, position="learned", max_length=17, dropout=0.0, head="none", **SIZES)
    ).eval()
    image: Any = build(
        ModelConfig(position="learned", max_length=17, dropout=0.0, n_classes=10, patch_size=2, **IMAGES, **SIZES)
    ).eval()
    image.stack.load_state_dict(text.stack.state_dict())  # raises where a name or a shape differs
    x = torch.randn(3, 17, SIZES["d_model"])
    with torch.no_grad():
        a, b = (network.stack(x, Mask(17))[0] for network in (text, image))  # (B, T, C) each
    return {"weights": len(text.stack.state_dict()), "difference": float((a - b).abs().max())}


def accuracy(patch: int, position: str, steps: int, seed: int) -> float:
    """Held-out accuracy on scikit-learn's digits, 8 x 8 pixels in patches of patch x patch."""
    length = (8 // patch) ** 2 + 1
    recipe = make_recipe(
        "images",
        {**SIZES, **IMAGES, "patch_size": patch, "position": position, "max_length": length, "n_classes": 10},
        {"train": [{"dataset": "digits"}], "valid": {"dataset": "digits"}, "batch_tokens": 64 * length, "max_length": length},
        train={"steps": steps, "seed": seed, "optimizer": "muon", "learning_rate": 8e-3, "schedule": "cosine"},
    )  # fmt: skip
    return float(train_network(recipe).last["accuracy"])


def run(lab: Experiment) -> ClaimResult:
    same = lab.per_seed("stack", stack_difference)
    steps = 1000 if lab.full else 150
    systems = {f"{p} x {p}": (p, "learned", steps) for p in PATCHES} | {"2 x 2, no positions": (2, "none", steps)}
    scores = {name: estimate(own) for name, own in lab.grid(accuracy, systems).items()}
    rows = [[name, str((8 // p) ** 2), scores[name].text(1)] for name, (p, _, _) in systems.items()]
    return ClaimResult(
        judge(*(exceeds(scores[f"{p} x {p}"], GOOD) for p in PATCHES if p < IMAGES["image_size"])),
        f"Check: the stack of a ViT loads all {same[0]['weights']} weight tensors of a text encoder's; for the same input vectors the "
        f"outputs differ by {max(one['difference'] for one in same):g}. With patches of 2 x 2 and 4 x 4, "
        f"{scores['2 x 2'].text(1)} and {scores['4 x 4'].text(1)} % of the 8 x 8 digits are correct after {steps} updates; with 2 x 2 and "
        f"without positions, {scores['2 x 2, no positions'].text(1)} %.",
        Table(["patches", "tokens", "held-out accuracy, %"], rows),
        bars({name: {"accuracy": score} for name, score in scores.items()}, "Digits by patches of p x p pixels", "held-out accuracy, %"),
        lab.basis,
    )  # fmt: skip


CLAIM = Claim(
    "C25",
    "A Vision Transformer is the Transformer encoder itself: an image is cut into patches, each patch is a token, the rest is the same.",
    "002, 003, 004",
    "ViTs trained on scikit-learn's digits (1,797 images of 8 x 8 pixels) with patches of 2 to 8 pixels: held-out accuracy. Check: the "
    "weights of a text encoder's stack in a ViT of the same size, outputs for the same input vectors.",
    f"A text encoder's stack on patches that classifies {GOOD} % of the digits or less: with patches of 2 x 2 and of 4 x 4 pixels, each "
    "shown or refuted if the 95 % interval over the seeds does not contain this threshold (8 x 8 is a "
    "single token). One of the two shown: holds in part. The check is true by construction and not part of the verdict.",
    run,
    0.9,
)
