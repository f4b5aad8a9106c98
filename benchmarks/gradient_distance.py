"""How gradients fare with distance (claim C3): `python benchmarks/gradient_distance.py [--model FOLDER] [--write docs/results.md]`.

For each network the norm of the gradient of its last output (a random direction of it) with respect to the input vector
k tokens earlier, k = 0 to 200: the mean over fresh networks and texts, in double precision. Two layers of width 64 each. In
an Elman network U, the matrix from step to step, is as torch draws it or a rotation times a factor: its radius. An LSTM is
as torch draws it or has a bias on its forget gates, which then stand open. Under a minute.

--model FOLDER adds a trained language model (may be repeated), on --text FILE or else on random tokens. --write puts the
table into that page and the picture, gradient-distance.svg, beside it.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from pages import machine, write
from torch import Tensor, nn

import qkv
from qkv.config import ModelConfig
from qkv.errors import QkvError
from qkv.look.charts import lines
from qkv.look.gradients import gradient_by_distance
from qkv.models.build import build
from qkv.models.decoder import Decoder

FARTHEST, WIDTH, WORDS, ROWS, DRAWS = 200, 64, 100, 4, 8
"""Distance; width; vocabulary; texts of each network; networks of each kind."""
SHOWN = (0, 1, 10, 50, 100, 200)
PICTURE = "gradient-distance.svg"
Change = Callable[[nn.Module], None]


# --- the systems


def radius(factor: float) -> Change:
    """U of every layer becomes a random rotation (or reflection) times `factor`: all its singular values are that."""

    def change(network: nn.Module) -> None:
        for name, weight in network.named_parameters():
            if "weight_hh" in name:
                nn.init.orthogonal_(weight, factor)

    return change


def forget(bias: float) -> Change:
    """The forget gates of an LSTM begin at sigmoid(bias): 0.73 for 1 (Gers et al. 2000), 0.95 for 3."""

    def change(network: nn.Module) -> None:
        for name, vector in network.named_parameters():
            if "bias_hh" in name or "bias_ih" in name:
                width = len(vector) // 4  # enter, forget, new, leave
                with torch.no_grad():
                    vector[width : 2 * width] = bias if "bias_hh" in name else 0.0

    return change


def nothing(network: nn.Module) -> None:
    """As it is built."""


def systems() -> dict[str, tuple[ModelConfig, Change]]:
    """Name -> what to build, and what is done to it then."""
    recurrent = ModelConfig(
        family="decoder", recurrent="elman", vocab_size=WORDS, d_model=WIDTH, n_layers=2, position="none",
        embed_scale=True, dropout=0.0,
    )  # fmt: skip
    block = ModelConfig(
        family="decoder", vocab_size=WORDS, d_model=WIDTH, n_layers=2, n_heads=4, d_ff=4 * WIDTH, norm_order="pre",
        embed_scale=True, dropout=0.0,
    )  # fmt: skip
    gru, lstm = (recurrent.changed(recurrent=kind) for kind in ("gru", "lstm"))
    found: dict[str, tuple[ModelConfig, Change]] = {
        "Elman": (recurrent, nothing),
        "Elman, radius 0.9": (recurrent, radius(0.9)),
        "Elman, radius 2": (recurrent, radius(2.0)),
        "GRU": (gru, nothing),
        "LSTM": (lstm, nothing),
        "LSTM, forget bias 1": (lstm, forget(1.0)),
        "LSTM, forget bias 3": (lstm, forget(3.0)),
        "Transformer": (block, nothing),
    }
    for name, mixer in {"linear attention": "linear", "gated linear": "gated-linear", "selective": "selective"}.items():
        position = block.position if mixer == "linear" else "none"  # the others need none
        found[name] = block.changed(mixer=(mixer,), position=position), nothing
    return found


# --- measuring


def unit_vectors(rows: int, width: int) -> Tensor:
    return nn.functional.normalize(torch.randn(rows, width, dtype=torch.double), dim=-1)


def fresh(config: ModelConfig, change: Change, farthest: int = FARTHEST, draws: int = DRAWS) -> Tensor:
    """(farthest + 1,): mean over `draws` networks with weights of their own and ROWS random texts."""
    norms = []
    for seed in range(draws):
        torch.manual_seed(seed)
        network = build(config)
        change(network)
        ids = torch.randint(0, config.vocab_size, (ROWS, farthest + 1))
        norms.append(gradient_by_distance(network.double().eval(), ids, unit_vectors(ROWS, config.d_model)))
    return torch.cat(norms).mean(0)


def trained(folder: Path, text: str | None) -> Tensor:
    """The same of one trained model: mean over 8 times ROWS texts, as long as it can read."""
    model = qkv.load(folder, device="cpu")
    if not isinstance(model.network, Decoder):
        raise QkvError(f"{folder}: no language model, but of family {model.config.family!r}")
    torch.manual_seed(0)
    length, rows = min(FARTHEST + 1, model.config.max_length), DRAWS * ROWS
    if text is None:
        ids = torch.randint(0, model.config.vocab_size, (rows, length))
    elif model.tokenizer is None:
        raise QkvError(f"{folder} has no tokenizer: leave --text out")
    else:
        read = torch.tensor(model.tokenizer.encode(text))
        if len(read) < rows * length:
            raise QkvError(f"--text has {len(read):,} tokens, and {rows * length:,} are needed")
        ids = read[: rows * length].view(rows, length)
    network = model.network.double().eval()
    return gradient_by_distance(network, ids, unit_vectors(rows, model.config.d_model)).mean(0)


def factor(norms: Tensor) -> float:
    """By how much each further token multiplies the gradient, on the whole way from distance 1 to the last."""
    return float((norms[-1].log() - norms[1].log()).div(len(norms) - 2).exp())


# --- telling


def table(found: dict[str, Tensor]) -> Iterator[str]:
    yield "| network | " + " | ".join(f"k = {k}" for k in SHOWN) + " | factor per token |"
    yield "|---" + "|---:" * (len(SHOWN) + 1) + "|"
    for name, norms in found.items():
        cells = [f"{norms[k]:.2g}" if k < len(norms) else "" for k in SHOWN]
        yield f"| {name} | {' | '.join(cells)} | {factor(norms):.3f} |"


def picture(found: dict[str, Tensor]) -> str:
    points = {name: [(k, v) for k, v in enumerate(norms.tolist()) if v > 0] for name, norms in found.items()}
    return lines(points, "How much of a token is felt k tokens later", "distance k", "norm of the gradient", log_y=True)


def section(found: dict[str, Tensor], models: int) -> str:
    command = "python benchmarks/gradient_distance.py" + " --model FOLDER" * models
    return "\n".join([
        "## Gradients against distance (C3)\n",
        f"{datetime.date.today()}, `{command}`, on {machine()}. Norm of the gradient of the last",
        f"output with respect to the input vector k tokens earlier; mean of {DRAWS} fresh networks with {ROWS} texts each, two",
        f"layers of width {WIDTH}. Below 1 per token it vanishes, above it explodes.\n",
        *table(found),
        f"\n![The same as a picture]({PICTURE})",
    ])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, action="append", default=[])
    parser.add_argument("--text", type=Path)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    found = {name: fresh(config, change) for name, (config, change) in systems().items()}
    text = options.text.read_text() if options.text else None
    try:
        found |= {f"{folder.resolve().name}, trained": trained(folder, text) for folder in options.model}
    except QkvError as error:
        parser.error(str(error))
    page = section(found, len(options.model))
    print(page)
    if options.write:
        write(options.write, "gradients", page)
        (options.write.parent / PICTURE).write_text(picture(found))


if __name__ == "__main__":
    main()
