"""`qkv plan`: memory, traffic and time of training on many devices."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.commands.common import Json, Settings, align_columns, config_of, to_stderr
from qkv.commands.cost import SOURCE, power, recipe_and_updates, short
from qkv.errors import ConfigError
from qkv.text.wording import format_duration

if TYPE_CHECKING:
    from qkv.plan.job import Request
    from qkv.plan.plans import Cluster, TrainingPlan

WHAT = typer.Argument(metavar="RECIPE|PRESET", help="A recipe, a preset or a run folder.", show_default=False)
WORKERS = typer.Option(
    "--workers",
    min=1,
    max=1_000_000,
    help="Number of devices; default: those of one machine; with --device cpu one per core.",
)
DEVICE = typer.Option(
    "--device",
    help="Device to plan for: a100-40g, a100-80g, h100-80g, v100-32g, p100-16g, rtx-4090, t4, or cpu (this machine).",
)
BATCH = typer.Option("--batch-tokens", min=1, max=10**12, help="Tokens per update, over all workers.")
LENGTH = typer.Option("--length", min=1, max=100_000_000, help="Tokens per row; default: as in qkv cost.")
TOKENS = typer.Option(
    "--tokens", min=1, max=1e18, help="Tokens of the whole run, such as 300e9; default: the recipe's updates."
)
PRECISION = typer.Option("--precision", help="auto, float32 or bfloat16; default: the recipe's.")
CALIBRATE = typer.Option(
    "--calibrate", help="Measure this machine for --device cpu, for about a minute; keep it idle meanwhile."
)
HEADER = ["plan", "memory", "fits", "rows", "ckpt", "sent", "update", "of peak"]


def run(
    what: Annotated[str | None, WHAT] = None,
    workers: Annotated[int | None, WORKERS] = None,
    device: Annotated[str, DEVICE] = "a100-80g",
    batch_tokens: Annotated[int | None, BATCH] = None,
    length: Annotated[int | None, LENGTH] = None,
    source: Annotated[int | None, SOURCE] = None,
    tokens: Annotated[float | None, TOKENS] = None,
    precision: Annotated[str | None, PRECISION] = None,
    calibrate: Annotated[bool, CALIBRATE] = False,
    as_json: Json = False,
    settings: Settings = None,
) -> None:
    """Plan training on many devices: memory, traffic and time of each way to parallelise it.

    Compares data parallelism (DDP), sharded parameters (FSDP2, ZeRO-3), tensor
    and pipeline parallelism and their combinations, each with the micro-batches and
    activation checkpointing (ckpt) that make it fastest, and recommends one.
    Memory and bytes sent per update are those of one device; rows: rows per pass x
    passes per update. qkv train supports all but pipeline parallelism. Method and
    validation: docs/scale.md.

    [dim]qkv plan transformer-big --workers 8 --device p100-16g[/]
    [dim]qkv plan gpt3-175b --workers 1024 --batch-tokens 3145728 --tokens 300e9[/]
    [dim]qkv plan gpt2-like --workers 4 --device rtx-4090 --json[/]
    [dim]qkv plan --calibrate                            # measure this machine[/]
    [dim]qkv plan gpt2-like --workers 2 --device cpu[/]
    """
    if calibrate:
        from qkv.plan.calibrate import calibrate as measure
        from qkv.plan.this_machine import save

        to_stderr(f"constants of this machine: {save(measure(to_stderr))}")
    if what is None:
        if calibrate:
            return
        raise ConfigError("give a recipe or a preset, for example: qkv plan transformer-big --workers 8")
    report = make_report(what, workers, device, batch_tokens, length, source, tokens, precision, settings)
    print(json.dumps(report.as_json(), indent=2) if as_json else "\n".join(report.lines()))


def make_report(what: str, workers: int | None, device: str, batch_tokens: int | None, length: int | None, source: int | None,
                tokens: float | None, precision: str | None, settings: list[str] | None) -> PlanReport:  # fmt: skip
    """Compute all plans."""
    from pathlib import Path

    from qkv.plan.devices import find_device
    from qkv.plan.job import Request, make_job
    from qkv.plan.plans import all_plans
    from qkv.plan.this_machine import this_machine

    cluster: Cluster = this_machine() if device == "cpu" else find_device(device)
    recipe, _ = recipe_and_updates(what, settings)
    config = recipe.model if recipe is not None else config_of(what, settings)
    asked = Request(
        Path(what).stem if recipe is not None else what, config, recipe, workers or cluster.default_workers, length, source,
        batch_tokens, tokens,
    )  # fmt: skip
    wanted = precision or (recipe.train.precision if recipe is not None else "auto")
    if wanted not in ("auto", "float32", "bfloat16"):
        raise ConfigError(f"--precision {wanted}: choose auto, float32 or bfloat16")
    job = make_job(asked, cluster.precision(wanted, config.d_model), table=device == "cpu")
    return PlanReport(asked, cluster, all_plans(job, asked.workers, cluster))


class PlanReport:
    """Output of the command."""

    def __init__(self, asked: Request, cluster: Cluster, plans: list[TrainingPlan]):
        from qkv.plan.plans import recommend

        self.asked, self.cluster, self.plans = asked, cluster, plans
        self.job = plans[0].job
        self.chosen, self.reason = recommend(plans)

    def as_json(self) -> dict[str, Any]:
        network = self.job.network
        return {
            "name": self.asked.name, "device": self.cluster.name, "workers": self.asked.workers, "precision": self.job.precision,
            "parameters": network.parameters, "rows_per_update": self.job.rows, "tokens_per_row": network.tokens,
            "tokens_per_update": self.job.tokens, "operations_per_update": self.job.rows * network.operations(),
            "updates": self.job.updates, "plans": [plan.as_json() for plan in self.plans],
            "recommended": None if self.chosen is None else self.chosen.layout.name, "reason": self.reason,
            "settings": [] if self.chosen is None else self.settings(self.chosen),
        }  # fmt: skip

    def lines(self) -> list[str]:
        network, job, workers = self.job.network, self.job, self.asked.workers
        operations = job.rows * network.operations()
        machines = "" if self.cluster.machines(workers) == 1 else f" in {self.cluster.machines(workers):,} machines"
        run = (
            ""
            if job.updates is None
            else f"; run: {job.updates:,} updates, {power(operations * job.updates)} operations"
        )
        usable = self.cluster.usable_memory(workers)
        return [
            f"{self.asked.name}: {self.asked.config.family}, {network.parameters:,} parameters",
            f"{workers:,} x {self.cluster.name}{machines}, {size(usable)} usable each, {job.precision}",
            f"update: {job.rows:,} x {network.tokens:,} tokens, {power(operations)} operations{run}",
            "",
            *align_columns([[*HEADER, "tokens/s" if job.updates is None else "run"], *map(self.row, self.plans)]),
            "",
            *(self.recommendation() if self.chosen is not None else [self.reason]),
        ]  # fmt: skip

    def row(self, plan: TrainingPlan) -> list[str]:
        at, hours = plan.layout, plan.hours
        last = f"{plan.tokens_per_second:,.0f}" if hours is None else format_duration(3600 * hours)
        return [
            at.name + "*" * (not at.runs), size(plan.bytes), "yes" if plan.fits else "no", f"{at.rows} x {at.passes}",
            "yes" if at.recompute else "no", size(sum(plan.traffic.values())), duration(plan.seconds), f"{plan.utilisation:.0%}", last,
        ]  # fmt: skip

    def recommendation(self) -> list[str]:
        """Describe the recommended plan item by item."""
        assert self.chosen is not None
        plan, hours = self.chosen, self.chosen.hours
        found = plan.times
        time = {
            "compute": found.compute,
            "optimiser": found.optimiser,
            "communication": found.exposed,
            "pipeline": found.bubble,
            "division": found.overhead,
        }
        hidden = found.communication - found.exposed
        lines = [
            f"recommended: {plan.layout.name}, {self.reason}",
            f"  memory: {items(plan.memory, size)}",
            f"  sent:   {items(plan.traffic, size) or 'nothing'}",
            f"  update: {items(time, duration)}"
            + (f"; {duration(hidden)} of communication hidden" if hidden > 0 else ""),
            f"  speed:  {plan.tokens_per_second:,.0f} tokens/s",
        ]
        if hours is not None:
            lines.append(f"  run:    {format_duration(3600 * hours)}, {hours * plan.layout.workers:,.0f} device-hours")
        if plan.layout.runs:
            lines.append(f"  set:    {' '.join(self.settings(plan))}")
        if any(not one.layout.runs for one in self.plans):
            lines.append("* planned only: qkv train has no pipeline parallelism")
        return lines

    def settings(self, plan: TrainingPlan) -> list[str]:
        """Return the fields of a recipe that select this plan."""
        at, network = plan.layout, self.job.network
        fields = {"sharding": "full"} if at.sharded else {}
        fields |= {"tensor_parallel": str(at.tensor)} if at.tensor > 1 else {}
        fields |= {"activation_checkpointing": "true"} if at.recompute else {}
        tokens = at.rows * at.data * network.longest
        return [
            f"data.batch_tokens={tokens}",
            *(f"train.{k}={v}" for k, v in fields.items()),
            f"train.accumulate={at.passes}",
        ]


def items(values: dict[str, float], text: Any) -> str:
    """List the items that are not negligible."""
    total = sum(values.values())
    return ", ".join(f"{name} {text(value)}" for name, value in values.items() if value > 1e-4 * total)


def size(number: float) -> str:
    return f"{short(number)}B"


def duration(seconds: float) -> str:
    """Format the time of an update: 31 ms, 2.35 s, 473 s."""
    if seconds < 0.9995:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 999.5 else format_duration(seconds)
