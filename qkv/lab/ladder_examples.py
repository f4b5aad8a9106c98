"""Example D6: the ladder from x.x to a Transformer block, and what each rung adds, as exact small computations."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.lab.example_steps import ExampleTable, Step
from qkv.parts.attention import Attention
from qkv.parts.block import Block, NoResidual, Residual
from qkv.parts.feedforward import FeedForward
from qkv.parts.masks import Mask
from qkv.parts.norm import LayerNorm
from qkv.parts.positions import sinusoids
from qkv.parts.scores import Dot, make_score
from qkv.parts.softmax import Softmax

TOKENS, WIDTH = 5, 8


def words() -> Tensor:
    """(1, T, C): random word vectors."""
    torch.manual_seed(0)
    return torch.randn(1, TOKENS, WIDTH)


def self_attention(heads: int = 1, projections: bool = True) -> Attention:
    torch.manual_seed(1)
    width = WIDTH // heads
    return Attention(
        WIDTH, heads, heads, width, Softmax(make_score("scaled-dot", heads, width)), "none", projections=projections
    )


def weights(attention: Attention, x: Tensor, causal: bool = False) -> Tensor:
    """(H, T, T): attention weights of each head."""
    query, key = attention.split(attention.query(x)), attention.split(attention.key(x))  # (1, H, T, D)
    return attention.mixer.weights(query, key, Mask(TOKENS, causal=causal))[0]  # type: ignore[operator,no-any-return]


def apply(attention: Attention, x: Tensor, causal: bool = False) -> Tensor:
    return attention(x, Mask(TOKENS, causal=causal))[0]  # type: ignore[no-any-return]


def gap(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


def asymmetry(projections: bool) -> float:
    """Largest |score(i, j) - score(j, i)|: 0 where a word scores another as the other scores it."""
    attention, x = self_attention(projections=projections), words()
    scores = Dot()(attention.split(attention.query(x)), attention.split(attention.key(x)))
    return gap(scores, scores.transpose(-1, -2))


def additivity(feedforward: bool) -> float:
    """Largest |f(a + b) - f(a) - f(b)| of the values with fixed weights: 0 for an average, however many are stacked."""
    torch.manual_seed(2)
    average, layer = torch.rand(TOKENS, TOKENS).softmax(-1), FeedForward(WIDTH, 32, "relu", bias=False)
    a, b = torch.randn(2, TOKENS, WIDTH)

    def f(x: Tensor) -> Tensor:
        mixed = average @ (average @ x)
        return layer(mixed) if feedforward else mixed

    return gap(f(a + b), f(a) + f(b))


def order_effect(positions: bool) -> float:
    """Change of a word's output when the other words are reversed."""
    attention, x = self_attention(), words()
    order = torch.arange(TOKENS - 1, -1, -1)
    place = sinusoids(torch.arange(TOKENS), WIDTH) if positions else torch.zeros(TOKENS, WIDTH)
    plain, reversed_words = apply(attention, x + place), apply(attention, x[:, order] + place)
    return gap(plain, reversed_words[:, order])


def future_effect(causal: bool) -> float:
    """Change of the first word's output when the last word changes."""
    attention, x = self_attention(), words()
    other = x.clone()
    other[:, -1] += 1
    return gap(apply(attention, x, causal)[:, 0], apply(attention, other, causal)[:, 0])


def two_sources(heads: int) -> float:
    """Error of a word that needs the first half of word 1 and the second half of word 3: each half of the channels follows the
    weights of its head, of which there is one or two."""
    x = words()[0]
    wanted = torch.cat([x[0, : WIDTH // 2], x[2, WIDTH // 2 :]])
    one, other = torch.eye(TOKENS)[0], torch.eye(TOKENS)[2]
    rows = [one, other] if heads == 2 else [(one + other) / 2] * 2
    found = torch.cat([rows[0] @ x[:, : WIDTH // 2], rows[1] @ x[:, WIDTH // 2 :]])
    return gap(found, wanted)


def first_layer_gradient(residual: bool, layers: int = 12) -> float:
    """Norm of the gradient that reaches the input through so many feed-forward blocks with small weights."""
    torch.manual_seed(3)
    x = words().requires_grad_()
    y = x
    for _ in range(layers):
        layer = FeedForward(WIDTH, 32, "relu", bias=False)
        for weight in layer.parameters():
            weight.data *= 0.8
        y = (Residual if residual else NoResidual)(layer).add(y, layer(y))
    (gradient,) = torch.autograd.grad(y.sum(), x)
    return float(gradient.norm())


def saturation(norm: bool) -> float:
    """Largest attention weight when the input is 30 times as large."""
    attention, x = self_attention(), 30 * words()
    return float(weights(attention, LayerNorm(WIDTH, 1e-5)(x) if norm else x).max())


@torch.no_grad()
def block_parts() -> str:
    """Check that the last rung is the block of the package: after(x + layer(before(x))), twice."""
    torch.manual_seed(4)
    attention, layer = self_attention(2), FeedForward(WIDTH, 32, "relu")
    block = Block(Residual(attention, LayerNorm(WIDTH, 1e-5)), Residual(layer, LayerNorm(WIDTH, 1e-5)))
    x = words()
    by_hand = x + apply(attention, LayerNorm(WIDTH, 1e-5)(x), True)
    by_hand = by_hand + layer(LayerNorm(WIDTH, 1e-5)(by_hand))
    return f"{gap(block(x, Mask(TOKENS, causal=True))[0], by_hand):.0e}"


@torch.no_grad()
def rungs() -> list[tuple[str, str, float, float]]:
    """Return of each rung its name, what is measured, and the value without and with it."""
    with torch.enable_grad():
        gradients = first_layer_gradient(False), first_layer_gradient(True)
    return [
        ("queries, keys, values", "score(i, j) - score(j, i)", asymmetry(False), asymmetry(True)),
        ("feed-forward", "f(a + b) - f(a) - f(b)", additivity(False), additivity(True)),
        ("positions", "change when words are reversed", order_effect(False), order_effect(True)),
        ("mask", "effect of the last word on the first", future_effect(False), future_effect(True)),
        ("two heads", "error: halves of two words", two_sources(1), two_sources(2)),
        ("residual", "gradient after 12 layers", *gradients),
        ("norm", "largest weight, input x 30", saturation(False), saturation(True)),
    ]


def d6() -> list[Step]:
    """The ladder (000, 003): from x.x to a Transformer block, one rung at a time"""
    with torch.no_grad():
        plain = weights(self_attention(projections=False), words())
    rows = [[name, what, f"{before:.3g}", f"{after:.3g}"] for name, what, before, after in rungs()]
    return [
        f"first rung, softmax(x x^T / sqrt(d)) x: every output is an average of the words; its weights sum to "
        f"{float(plain.sum(-1).min()):.3f}, and a word mostly attends to itself (mean weight {float(plain[0].diagonal().mean()):.2f})",
        ExampleTable(["rung", "measure", "without", "with"], rows),
        f"all rungs together are a block of the package: difference {block_parts()}",
        "trained with and without a rung:",
        "qkv lab run C6 C7 C11 C12 C13 C14",
        "qkv ablate demo --vary model.residual=true,false --seeds 3",
    ]
