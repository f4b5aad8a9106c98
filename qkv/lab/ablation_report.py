"""Files of an ablation: table.md, table.csv, results.json, figure.svg and the page index.html."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from html import escape
from typing import Any

from qkv.convert.files import write_json, write_text
from qkv.lab.experiment import Table
from qkv.lab.report import describe_measurement, facts_html, page, table_html
from qkv.lab.variant_results import Ablation, MetricResult, VariantResult
from qkv.look.charts import DotRow, dot_plot
from qkv.text.wording import format_duration
from qkv.train.report import digits, in_words


def write_ablation(a: Ablation, command: str) -> None:
    """Write all files of an ablation into its folder."""
    a.folder.mkdir(parents=True, exist_ok=True)
    table, picture, facts = make_table(a), draw(a), describe_measurement()
    write_text(a.folder / "table.md", table.markdown() + "\n\n" + "".join(f"- {note}\n" for note in a.notes))
    write_text(a.folder / "table.csv", csv_text(a))
    write_json(a.folder / "results.json", {**to_json(a), "command": command, **facts})
    write_text(a.folder / "figure.svg", picture)
    write_text(a.folder / "index.html", html(a, table, picture, command, facts))


# --- the table


def make_table(a: Ablation) -> Table:
    """One row per variant: the main metric with its tests, then the other metrics and the costs."""
    others = [name for name in a.baseline.metrics or some_metrics(a) if name != a.metric]
    columns = ["variant", "seeds", in_words(a.metric), "difference", "p, outputs", "p, seeds", "result",
               *map(in_words, others), "parameters", "operations per token", "minutes"]  # fmt: skip
    rows = [[row.variant.name, f"{len(row.trials)}", *main_cells(row, a), *(mean_cell(row, name) for name in others),
             f"{row.parameters:,}" if row.parameters else "", millions(row.operations),
             minutes(row)] for row in a.variants]  # fmt: skip
    return without_empty_columns(Table(columns, rows))


def some_metrics(a: Ablation) -> Sequence[str]:
    return next((list(row.metrics) for row in a.variants if row.metrics), [])


def main_cells(row: VariantResult, a: Ablation) -> list[str]:
    """Mean, difference, both p-values and the result of the main metric."""
    found = row.metrics.get(a.metric)
    if found is None:
        return ["failed", "", "", "", ""]
    if row is a.baseline:
        return [mean_cell(row, a.metric), "", "", "", "baseline"]
    change = "" if found.difference is None else format_difference(found.difference.mean, found.estimate.mean)
    p_seeds = "" if found.p_seeds is None else f"{found.p_seeds:.4f}"
    return [mean_cell(row, a.metric), change, outputs_cell(row, found), p_seeds, found.verdict(a.metric)]


def outputs_cell(row: VariantResult, found: MetricResult) -> str:
    if found.p_test is None:
        return "not compared" if row.reason else "no outputs"
    count = f" ({found.significant_seeds} of {len(found.p_by_seed)})" if len(found.p_by_seed) > 1 else ""
    return f"{found.p_test:.4f}{count}"


def mean_cell(row: VariantResult, metric: str) -> str:
    if metric not in row.metrics:
        return ""
    found = row.metrics[metric].estimate
    return found.text(2 if abs(found.mean) >= 10 else 4)


def format_difference(value: float, like: float) -> str:
    """A difference with as many digits as the score has."""
    return f"{value:+.2f}" if abs(like) >= 10 else f"{value:+.4f}"


def millions(value: float | None) -> str:
    return "" if value is None else f"{value / 1e6:,.2f} M"


def minutes(row: VariantResult) -> str:
    return f"{row.minutes:.2f}" if row.trials else ""


def without_empty_columns(table: Table) -> Table:
    """Leave out columns without any entry."""
    kept = [at for at in range(len(table.columns)) if any(row[at] for row in table.rows)]
    return Table([table.columns[at] for at in kept], [[row[at] for at in kept] for row in table.rows])


# --- files


def csv_text(a: Ablation) -> str:
    """One row per variant with plain numbers; a column for each field that varies, five for each metric."""
    fields = list(dict.fromkeys(field for row in a.variants for field, _ in row.variant.changes))
    metrics = list(dict.fromkeys(name for row in a.variants for name in row.metrics))
    parts = ("", "_interval", "_difference", "_p_outputs", "_p_seeds")
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    head = ["variant", *fields, "seeds", *(f"{name}{part}" for name in metrics for part in parts)]
    writer.writerow([*head, "parameters", "operations_per_token", "minutes"])
    for row in a.variants:
        numbers = [cell for name in metrics for cell in csv_cells(row.metrics.get(name))]
        own = [dict(row.variant.changes).get(field, "") for field in fields]
        costs = [row.parameters, row.operations, row.minutes if row.trials else None]
        writer.writerow([row.variant.name, *own, len(row.trials), *numbers, *("" if x is None else x for x in costs)])
    return out.getvalue()


def csv_cells(found: MetricResult | None) -> list[float | str]:
    if found is None:
        return [""] * 5
    change = None if found.difference is None else found.difference.mean
    cells = [found.estimate.mean, finite(found.estimate.half_width), change, found.p_test, found.p_seeds]
    return ["" if cell is None else cell for cell in cells]


def to_json(a: Ablation) -> dict[str, Any]:
    """All numbers, run by run."""
    return {"recipe": a.recipe, "task": a.task, "set": a.set, "metric": a.metric, "seeds": a.seeds,
            "baseline": a.baseline.variant.name, "variants": [variant_json(a, row) for row in a.variants],
            "failed": a.failed, "notes": a.notes}  # fmt: skip


def variant_json(a: Ablation, row: VariantResult) -> dict[str, Any]:
    runs = [{"seed": trial.seed, "folder": str(trial.folder), "scores": trial.scores,
             "minutes": trial.results["training"]["minutes"]} for trial in row.trials]  # fmt: skip
    metrics = {name: metric_json(found, a.corrected(name).get(row.variant.name)) for name, found in row.metrics.items()}
    return {"name": row.variant.name, "changes": dict(row.variant.changes), "runs": runs, "metrics": metrics,
            "parameters": row.parameters, "operations_per_token": row.operations, "minutes": row.minutes,
            "outputs_not_compared": row.reason}  # fmt: skip


def metric_json(found: MetricResult, corrected: float | None) -> dict[str, Any]:
    change = found.difference
    return {
        "values": found.values, "mean": found.estimate.mean, "interval": finite(found.estimate.half_width),
        "difference": change and change.mean, "difference_interval": change and finite(change.half_width),
        "p_seeds": found.p_seeds, "p_outputs": found.p_test, "p_outputs_corrected": corrected,
        "p_outputs_by_seed": found.p_by_seed, "test": found.test,
    }  # fmt: skip


def finite(value: float) -> float | None:
    """None for the interval of a single value; JSON has no infinity."""
    return value if math.isfinite(value) else None


# --- figure and page


def draw(a: Ablation) -> str:
    """The main metric of every variant: its seeds as dots, mean and interval as a line; a dashed line at the baseline."""
    rows = [DotRow(row.variant.name, list(row.metrics[a.metric].values.values()), *row.metrics[a.metric].estimate)
            for row in a.variants if a.metric in row.metrics]  # fmt: skip
    base = a.baseline.metrics.get(a.metric)
    label = in_words(a.metric) + ("" if len(a.seeds) == 1 else ", mean and 95 % interval over the seeds")
    return dot_plot(
        rows, f"{a.recipe}: {in_words(a.metric)} by variant", label, None if base is None else base.estimate.mean
    )


def html(a: Ablation, table: Table, picture: str, command: str, measured: dict[str, str]) -> str:
    facts = {
        "Recipe": a.recipe, "Task": a.task, "Baseline": a.baseline.variant.name, "Seeds": ", ".join(map(str, a.seeds)),
        "Command": command, "Measured": f"{measured['date']}, {measured['machine']}",
    }  # fmt: skip
    failed = "".join(f"<li class=fails>{escape(name)}: {escape(error)}</li>" for name, error in a.failed.items())
    listed = "".join(f"<li>{escape(note)}</li>" for note in a.notes)
    runs = Table(["run", in_words(a.metric), "updates", "time", "folder"], run_rows(a))
    return page(f"Ablation of {a.recipe}", [
        f"<section>{facts_html(facts)}{picture}</section>",
        f"<section><h2>Variants</h2>{table_html(table)}<ul>{listed}</ul></section>",
        f"<section><h2>Failed runs</h2><ul>{failed}</ul></section>" if failed else "",
        f"<section><h2>Runs</h2>{table_html(runs)}</section>",
    ])  # fmt: skip


def run_rows(a: Ablation) -> list[list[str]]:
    rows = []
    for row in a.variants:
        for trial in row.trials:
            training, score = trial.results["training"], trial.scores.get(a.metric)
            rows.append([f"{row.variant.name}, seed {trial.seed}", "" if score is None else digits(score),
                         f"{training.get('updates', '')}", format_duration(60 * training["minutes"]),
                         str(trial.folder)])  # fmt: skip
    return rows
