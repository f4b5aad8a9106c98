"""C3: the gradient of a recurrent network vanishes or explodes with the distance, a Transformer's does not."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import qkv
from qkv.config import ModelConfig
from qkv.errors import QkvError
from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table, judge
from qkv.lab.statistics import estimate, outside, within
from qkv.look.charts import lines
from qkv.look.gradients import gradient_by_distance
from qkv.models.build import build
from qkv.models.decoder import Decoder

FARTHEST, WIDTH, WORDS, ROWS = 200, 64, 100, 8
COLUMNS = (0, 1, 10, 50, 100, 200)
RECURRENT = ModelConfig(
    family="decoder", recurrent="elman", vocab_size=WORDS, d_model=WIDTH, n_layers=2, position="none", embed_scale=True, dropout=0.0
)  # fmt: skip
BLOCKS = ModelConfig(
    family="decoder", vocab_size=WORDS, d_model=WIDTH, n_layers=2, n_heads=4, d_ff=4 * WIDTH, norm_order="pre", embed_scale=True,
    dropout=0.0,
)  # fmt: skip
OPEN = "LSTM, forget bias 3"
SYSTEMS: dict[str, tuple[ModelConfig, str, float]] = {
    "Elman": (RECURRENT, "", 0.0),
    "Elman, radius 0.9": (RECURRENT, "radius", 0.9),
    "Elman, radius 2": (RECURRENT, "radius", 2.0),
    "GRU": (RECURRENT.changed(recurrent="gru"), "", 0.0),
    "LSTM": (RECURRENT.changed(recurrent="lstm"), "", 0.0),
    "LSTM, forget bias 1": (RECURRENT.changed(recurrent="lstm"), "forget", 1.0),
    OPEN: (RECURRENT.changed(recurrent="lstm"), "forget", 3.0),
    "Transformer": (BLOCKS, "", 0.0),
    "linear attention": (BLOCKS.changed(mixer=("linear",)), "", 0.0),
    "gated linear": (BLOCKS.changed(mixer=("gated-linear",), position="none"), "", 0.0),
    "selective": (BLOCKS.changed(mixer=("selective",), position="none"), "", 0.0),
}
"""Name -> network, which initial weights are changed, and to what."""
USUAL = ("Elman", "GRU", "LSTM")
"""Recurrent networks with their usual initial weights."""
STAYS = (0.98, 1.02)
"""A gradient that each token multiplies by a factor in between neither vanishes nor explodes."""


def set_radius(network: nn.Module, factor: float) -> None:
    """Set the recurrent matrix U to a random rotation (or reflection) times `factor`, which all its singular values then equal."""
    for name, weight in network.named_parameters():
        if "weight_hh" in name:
            nn.init.orthogonal_(weight, factor)


def set_forget_bias(network: nn.Module, bias: float) -> None:
    """Let the forget gates of an LSTM start at sigmoid(bias): 0.73 for 1 (Gers et al. 2000), 0.95 for 3."""
    for name, vector in network.named_parameters():
        if "bias_hh" in name or "bias_ih" in name:
            width = len(vector) // 4  # input, forget, cell, output
            with torch.no_grad():
                vector[width : 2 * width] = bias if "bias_hh" in name else 0.0


def random_directions(rows: int, width: int) -> Tensor:
    return nn.functional.normalize(torch.randn(rows, width, dtype=torch.double), dim=-1)


def gradients(name: str, seed: int, farthest: int = FARTHEST) -> list[float]:
    """|d out_T / d x_(T-k)| for k = 0 ... farthest: mean over random texts, of one fresh network, in double precision."""
    config, change, value = SYSTEMS[name]
    torch.manual_seed(seed)
    network = build(config)
    if change:
        (set_radius if change == "radius" else set_forget_bias)(network, value)
    ids = torch.randint(0, config.vocab_size, (ROWS, farthest + 1))
    found = gradient_by_distance(network.double().eval(), ids, random_directions(ROWS, config.d_model))  # type: ignore[arg-type]
    return found.mean(0).tolist()  # type: ignore[no-any-return]


def gradients_of_model(folder: str) -> list[float]:
    """The same for a trained language model on random tokens, up to the length of its context."""
    model = qkv.load(Path(folder), device="cpu")
    if not isinstance(model.network, Decoder):
        raise QkvError(f"{folder} is not a language model: its family is {model.config.family!r}, not 'decoder'")
    torch.manual_seed(0)
    length = min(FARTHEST + 1, model.config.max_length)
    ids = torch.randint(0, model.config.vocab_size, (4 * ROWS, length))
    directions = random_directions(len(ids), model.config.d_model)
    return gradient_by_distance(model.network.double().eval(), ids, directions).mean(0).tolist()  # type: ignore[no-any-return]


def factor(norms: list[float]) -> float:
    """Factor per token by which the gradient changes, on average from distance 1 to the last."""
    return float((norms[-1] / norms[1]) ** (1 / (len(norms) - 2)))


def run(lab: Experiment) -> ClaimResult:
    found = {name: lab.per_seed(name, gradients, name) for name in SYSTEMS}
    if lab.full and lab.data is not None:
        found["stories260K, trained"] = [
            lab.measure("stories260K", gradients_of_model, str(lab.require_data("stories260K")))
        ]
    factors = {name: estimate([factor(norms) for norms in own]) for name, own in found.items()}
    changes = {name: outside(factors[name], *STAYS) for name in (*USUAL, OPEN)}
    by_weights = changes["LSTM"] and changes[OPEN] is False
    means = {name: torch.tensor(own, dtype=torch.double).mean(0).tolist() for name, own in found.items()}
    rows = [
        [name, *(f"{norms[k]:.2g}" if k < len(norms) else "" for k in COLUMNS), factors[name].text(3)]
        for name, norms in means.items()
    ]
    points = {name: [(k, v) for k, v in enumerate(norms) if v > 0] for name, norms in means.items()}
    return ClaimResult(
        judge(*changes.values(), within(factors["Transformer"], *STAYS)),
        "Each further token multiplies the gradient by "
        + ", ".join(f"{factors[name].mean:.3f} ({name})" for name in ("Elman", "Elman, radius 2", "GRU", "LSTM", "Transformer"))
        + f"; in an LSTM with a forget-gate bias of 3, by {factors[OPEN].mean:.3f}"
        + (": in an LSTM the claim depends on the initial weights." if by_weights else "."),
        Table(["network", *(f"k = {k}" for k in COLUMNS), "factor per token"], rows),
        lines(points, "Gradient of the last output", "distance k", "norm of the gradient", log_y=True),
        lab.basis,
    )  # fmt: skip


CLAIM = Claim(
    "C3",
    "In a recurrent network the gradient with respect to a token k steps back vanishes or explodes with k; in a Transformer it does not.",
    "002, 003",
    f"Norm of the gradient of the last output with respect to the input vector k tokens earlier, k = 0 ... {FARTHEST}; untrained networks "
    f"with two layers of width {WIDTH}, {ROWS} random texts per seed.",
    f"A recurrent network ({', '.join((*USUAL, OPEN))}) whose gradient changes by less than 2 % per token, or a Transformer whose gradient "
    "changes by more. Only some of the networks: holds in part.",
    run,
    0.5,
)
