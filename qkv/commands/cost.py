"""`qkv cost`: count parameters, operations and activation memory by part."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv import pretrained
from qkv.commands.common import Json, Settings, align_columns, config_of

if TYPE_CHECKING:
    from qkv.config import ModelConfig, Recipe
    from qkv.models.cost import Cost, PartCost

WHAT = typer.Argument(metavar="NAME|RECIPE|FOLDER", help="A preset, a recipe or a model folder.", show_default=False)
LENGTH = typer.Option(
    "--length",
    min=1,
    max=100_000_000,
    help="Tokens per row; default: the model's max_length; for a recipe, its window length, or 32 for sentences.",
)
SOURCE = typer.Option(
    "--source", min=1, max=100_000_000, help="Encoder-decoder: source tokens per row; default: as --length."
)
UNITS = ("", "k", "M", "G", "T", "P", "E")
BATCH = typer.Option("--batch", min=1, max=100_000_000, help="Rows; default: 1, or as in a batch of the recipe.")


def run(
    what: Annotated[str, WHAT],
    length: Annotated[int | None, LENGTH] = None,
    source: Annotated[int | None, SOURCE] = None,
    batch: Annotated[int | None, BATCH] = None,
    as_json: Json = False,
    settings: Settings = None,
) -> None:
    """Count parameters, operations and activation memory by part, without allocating memory.

    Operations are those of matrix products, 2 per multiply-add, as PyTorch's
    FlopCounterMode counts them; training is a forward and a backward pass.
    Activations are the tensors that autograd keeps in float32 between the two.
    For a recipe or a run, the operations of the whole training are estimated;
    for transformer-base and transformer-big, the paper's figures are printed too.

    [dim]qkv cost gpt2 --length 1024 --batch 8[/]
    [dim]qkv cost transformer-big[/]
    [dim]qkv cost demo --json                  # a recipe[/]
    [dim]qkv cost longformer-base --length 16384 --set model.max_length=16384[/]
    """
    report = measure(what, length, source, batch, settings)
    print(json.dumps(report.as_json(), indent=2) if as_json else "\n".join(report.lines()))


@dataclass(frozen=True)
class CostReport:
    """Counts that the command prints."""

    name: str
    config: ModelConfig
    recipe: Recipe | None
    cost: Cost
    activations: dict[tuple[str, str], int]
    updates: int | None = None
    """Updates of a run that has ended."""
    sentence: int | None = None
    """Length of the sentences in a published run; None = SENTENCE."""

    def as_json(self) -> dict[str, Any]:
        from qkv.models.params import count

        found = self.cost.as_json()
        for part in found["parts"]:
            part["activation_bytes"] = self.activations.get((part["side"], part["part"]), 0)
        found["total"] = {key: value for key, value in found["total"].items() if key not in ("side", "part")}
        found["total"]["activation_bytes"] = sum(self.activations.values())
        found["total"]["active"] = count(self.config).active
        return {"name": self.name, "family": self.config.family, **found, **self.training()}

    def training(self) -> dict[str, Any]:
        from qkv.train.training_cost import PUBLISHED, SENTENCE, published_updates, run_cost

        found: dict[str, Any] = {}
        if self.recipe is not None:
            found["training"] = run_cost(self.recipe, self.cost, self.updates).as_json()
        if (paper := PUBLISHED.get(self.name)) is not None:
            counted = published_updates(self.config, paper, self.sentence or SENTENCE)
            found["published"] = {"operations": paper.operations, "hours": paper.hours, "gpus": paper.gpus,
                                  "per_second": paper.per_second, "counted": counted.as_json()}  # fmt: skip
        return found

    def lines(self) -> list[str]:
        rows, tokens, source = self.cost.shape
        total, each = self.cost.total, rows * max(tokens, 1)
        sizes = f"{rows:,} x {tokens:,} tokens" + (f" from {source:,} source tokens" if source else "")
        lines = [
            f"{self.name}: {self.config.family}, {total.parameters:,} parameters{self.active()}",
            f"batch: {sizes}",
            "",
            *align_columns(self.table()),
            "",
            f"per {'target ' * bool(source)}token: {short(total.forward // each)} operations forward, "
            f"{short(total.training // each)} in training",
        ]
        return [*lines, *notes(self.config, self.cost), *self.training_lines()]

    def active(self) -> str:
        from qkv.models.params import count

        return f", {count(self.config).active:,} active per token" if self.config.n_experts else ""

    def table(self) -> list[list[str]]:
        """Return a row for each part, under the name of its side where there are two."""
        rows, side = [["", "parameters", "forward", "%", "training", "activations"]], ""
        whole = self.cost.total
        for one in self.cost.parts:
            if one.side != side:
                rows.append([one.side, "", "", "", "", ""])
            side = one.side
            kept = self.activations.get((one.side, one.part), 0)
            rows.append(["  " * bool(side) + one.part, *cells(one, whole.forward, kept)])
        return [*rows, ["total", *cells(whole, whole.forward, sum(self.activations.values()))]]

    def training_lines(self) -> list[str]:
        found, lines = self.training(), []
        if (run := found.get("training")) is not None:
            most = "at most " * bool(run["limit"])
            lines += [
                f"training: {most}{run['updates']:,} updates of {short(run['per_update'])} "
                f"= {power(run['operations'])} operations"
            ]
            lines += [f"(the run may end earlier: {run['limit']})"] if run["limit"] else []
        if (paper := found.get("published")) is not None:
            counted = paper["counted"]
            time = f"{paper['hours']:g} h" if paper["hours"] < 24 else f"{paper['hours'] / 24:g} days"
            lines += [
                f"training as published (Vaswani et al. 2017, table 2): {power(paper['operations'])} operations",
                f"  = {time} x {paper['gpus']} GPUs x {paper['per_second'] / 1e12:g}e12 operations per second",
                f"training as counted here: {power(counted['operations'])} operations",
                f"  = {counted['updates']:,} updates of 25,000 tokens per side x {short(counted['per_update'])}",
                f"the matrix products are {counted['operations'] / paper['operations']:.0%} of the published figure",
            ]
        return lines


def measure(
    what: str, length: int | None, source: int | None, rows: int | None, settings: list[str] | None
) -> CostReport:
    from qkv.models.cost import PartCost, cost, in_order
    from qkv.train.activation_memory import activation_memory
    from qkv.train.training_cost import check_length, default_shape, generator_cost, target_count, update_shape

    recipe, updates = recipe_and_updates(what, settings)
    if recipe is None:
        config = config_of(what, settings)
        shape = default_shape(config, length, rows or 1, source)
    else:
        config = recipe.model
        shape = update_shape(recipe, length, rows, source)
    check_length(config, what, shape)
    targets = target_count(config, shape, recipe.corrupt if recipe is not None else None)
    counted, kept = cost(config, shape, targets), activation_memory(config, shape, targets)
    parts = counted.parts + [
        PartCost(*key) for key in kept if key not in {(one.side, one.part) for one in counted.parts}
    ]
    parts = in_order(parts)
    if recipe is not None and recipe.task == "replaced":
        generator, kept["", "generator"] = generator_cost(recipe, shape)
        parts.append(generator)
    name = Path(what).stem if recipe is not None else what
    return CostReport(name, config, recipe, replace(counted, parts=parts), dict(kept), updates, length)


def recipe_and_updates(what: str, settings: list[str] | None) -> tuple[Recipe | None, int | None]:
    """Return the recipe, if `what` is one or a run's folder, and the updates of a run that has ended."""
    from qkv.config import load_recipe
    from qkv.presets import PRESETS
    from qkv.recipes import find, names

    path = pretrained.find(what)
    if path.suffix == ".toml" or (what in names() and what not in PRESETS and path == Path(what)):
        return load_recipe(find(what), settings), None
    if what in PRESETS or not path.is_dir():
        return None, None
    from qkv.convert.detect import find_run
    from qkv.train.rescore import recipe_of

    folder = find_run(path)
    if folder is None or settings:
        return None, None
    results = folder / "results.json"
    updates = json.loads(results.read_text())["training"]["updates"] if results.is_file() else None
    return recipe_of(folder), updates


def cells(one: PartCost, forward: int, kept: int) -> list[str]:
    share = 100 * one.forward / max(forward, 1)
    return [short(one.parameters), short(one.forward), f"{share:.{0 if share in (0, 100) else 1}f}", short(one.training),
            f"{short(kept)}B"]  # fmt: skip


def power(number: float) -> str:
    """Format as 3.3e18."""
    return f"{number:.1e}".replace("e+", "e")


def short(number: float) -> str:
    """Round to three digits with a unit: 0, 512, 12.3 M, 1.20 T."""
    thousands = 0
    while number >= 999.5 and thousands < len(UNITS) - 1:
        number, thousands = number / 1000, thousands + 1
    digits = 0 if thousands == 0 or number >= 99.95 else 1 if number >= 9.995 else 2
    return f"{number:.{digits}f} {UNITS[thousands]}"


def notes(c: ModelConfig, counted: Cost) -> list[str]:
    lines = []
    if c.tie in ("output", "all"):
        lines.append("The output matrix is tied to the embeddings and counted there.")
    if counted.targets is not None:
        share = counted.targets / (counted.shape[0] * counted.shape[1])
        lines.append(f"In training, logits are computed only at the masked positions, {share:.0%} of all.")
    if c.recurrent == "lstm":
        lines.append("PyTorch's fused LSTM keeps about twice the activations that are counted here.")
    if {"s4d", "selective"} & {*c.mixer} and c.recurrent is None:
        lines.append("Not counted: the elementwise scan of a state space model, or its Fourier transforms.")
    return lines
