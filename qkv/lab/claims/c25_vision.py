"""C25: a Vision Transformer is the same network on patches of an image."""

from __future__ import annotations

from typing import Any

import torch

from qkv.config import ModelConfig
from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table, decide
from qkv.lab.statistics import estimate
from qkv.lab.training import make_recipe, train_network
from qkv.look.charts import bars
from qkv.models.build import build
from qkv.parts.masks import Mask

SIZES: dict[str, Any] = {
    "family": "encoder", "d_model": 64, "n_layers": 2, "n_heads": 4, "d_ff": 128, "feedforward": "gelu", "norm_order": "pre",
}  # fmt: skip
IMAGES: dict[str, Any] = {"head": "classes", "image_size": 8, "n_channels": 1, "pooler": False, "pooling": "mean"}
PATCHES = (2, 4, 8)


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
    exact = max(one["difference"] for one in same) == 0
    steps = 1000 if lab.full else 150
    systems = {f"{p} x {p}": (p, "learned", steps) for p in PATCHES} | {"2 x 2, no positions": (2, "none", steps)}
    scores = {name: estimate(own) for name, own in lab.grid(accuracy, systems).items()}
    works = scores["2 x 2"].low > 90
    rows = [[name, str((8 // p) ** 2), scores[name].text(1)] for name, (p, _, _) in systems.items()]
    return ClaimResult(
        decide(exact and works, exact),
        f"The stack of a ViT takes all {same[0]['weights']} weights of a text encoder's and computes the same outputs (difference "
        f"{max(one['difference'] for one in same):g}); only the embedding differs. On digits of 8 x 8 pixels in patches of 2 x 2 it "
        f"reads {scores['2 x 2'].text(1)} % correctly after {steps} updates, without positions {scores['2 x 2, no positions'].text(1)} %.",
        Table(["patches", "tokens", "held-out accuracy, %"], rows),
        bars({name: {"accuracy": score} for name, score in scores.items()}, "Digits by patches of p x p pixels", "held-out accuracy, %"),
        f"exact (stack); {lab.basis} (accuracy)",
    )  # fmt: skip


CLAIM = Claim(
    "C25",
    "A Vision Transformer is the Transformer encoder itself: an image is cut into patches, each patch is a token, the rest is equal.",
    "002, 003, 004",
    "The weights of a text encoder's stack in a ViT of the same sizes: outputs for the same vectors. And ViTs trained on scikit-learn's "
    "digits (1,797 images) with patches of 2 to 8 pixels.",
    "A part of the stack that an image needs and a text does not; or accuracy below 90 % on digits.",
    run,
    0.9,
)
