"""Files of a scaling experiment: table.md, table.csv, results.json, figure.svg and the page index.html."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import asdict
from html import escape
from typing import Any

import numpy as np

from qkv.convert.files import write_json, write_text
from qkv.lab.experiment import Table
from qkv.lab.report import describe_measurement, facts_html, page, table_html
from qkv.lab.scaling import Interval, ScalingLaw
from qkv.lab.scaling_experiment import Scaling
from qkv.lab.scaling_plan import ScalingPlan, makespan
from qkv.look.charts import lines
from qkv.text.wording import format_duration, plural

NUMBERS = {"E": "irreducible loss", "A": "", "a": "exponent of size", "B": "", "b": "exponent of data"}


def write_scaling(s: Scaling, command: str) -> None:
    """Write all files of an experiment into its folder."""
    tables, picture, facts = make_tables(s), draw(s), describe_measurement()
    text = "\n\n".join([*findings(s), *(table.markdown() for table in tables.values())])
    write_text(s.folder / "table.md", text + "\n\n" + "".join(f"- {note}\n" for note in s.notes))
    write_text(s.folder / "table.csv", csv_text(s))
    write_json(s.folder / "results.json", {**to_json(s), "command": command, **facts})
    write_text(s.folder / "figure.svg", picture)
    write_text(s.folder / "index.html", html(s, tables, picture, command, facts))


# --- sentences


def findings(s: Scaling) -> list[str]:
    """The law, whether it is determined, and whether its prediction came true."""
    law, fit = s.fit.law, s.fit
    found = [f"L(N, D) = {law.E:.3g} + {law.A:.3g} / N^{law.a:.3f} + {law.B:.3g} / D^{law.b:.3f}, fitted to {len(s.trained)} runs; "
             f"the losses scatter by {100 * fit.deviation:.2g} % around it."]  # fmt: skip
    if fit.separable:
        found.append("The runs determine both exponents.")
    else:
        found.append(
            f"These runs cannot separate the exponents: {'; '.join(fit.problems)}. Do not extrapolate this law."
        )
    if s.check is not None:
        run, low, high = s.check.trained.run, *s.check.interval
        ratio, verdict = run.operations / s.check.largest, "within" if s.check.within else "outside"
        found.append(
            f"Check: for {run.operations:.2e} operations ({ratio:.2g} times the most expensive fitted run) N = {run.size.parameters:,} was "
            f"trained; the predicted loss is {s.check.predicted:.4f} ({low:.4f} to {high:.4f}). Measured: "
            f"{s.check.trained.loss:.4f}, {verdict} the interval, error {100 * s.check.error:+.2f} %."
        )
    return found


# --- tables


def make_tables(s: Scaling) -> dict[str, Table]:
    """The numbers of the law, the predictions and the runs, by title."""
    tables = {"Law": law_table(s)}
    if s.predictions:
        tables["Best size for a budget"] = prediction_table(s)
    return {**tables, "Runs": run_table(s)}


def law_table(s: Scaling) -> Table:
    values = asdict(s.fit.law)
    rows = [[name, f"{values[name]:.4g}", span(s.fit.interval(lambda law, name=name: getattr(law, name))), meaning]  # type: ignore[misc]
            for name, meaning in NUMBERS.items()]  # fmt: skip
    own, interval = best_exponent(s.fit.law), s.fit.interval(best_exponent)
    rows.append(["b / (a + b)", f"{own:.4g}", span(interval), "the best N grows with C to this power"])
    return Table(["number", "value", "95 % interval", "meaning"], rows)


def best_exponent(law: ScalingLaw) -> float:
    return law.b / max(law.a + law.b, 1e-9)


def prediction_table(s: Scaling) -> Table:
    rows = [[f"{p.best.operations:.2e}", short(p.best.parameters), span(p.parameters, short), short(p.best.tokens),
             span(p.tokens, short), f"{p.best.tokens / p.best.parameters:,.1f}", f"{p.best.loss:.4f}", span(p.loss)]
            for p in s.predictions]  # fmt: skip
    head = ["operations", "best N", "95 % interval", "best D", "95 % interval", "D / N", "loss", "95 % interval"]
    return Table(head, rows)


def run_table(s: Scaling) -> Table:
    rows = [run_cells(one.run.size.name, one, s.fit.law) for one in s.trained]
    if s.check is not None:
        rows.append(run_cells(f"check: {s.check.trained.run.size.name}", s.check.trained, s.fit.law))
    return Table(["size", "N", "all parameters", "D", "C = 6 N D", "loss", "law", "difference", "minutes"], rows)


def run_cells(name: str, one: Any, law: ScalingLaw) -> list[str]:
    n, d = one.run.size.parameters, one.run.tokens
    fitted = law.loss(n, d)
    return [name, f"{n:,}", f"{one.run.size.total:,}", f"{d:,}", f"{one.run.operations:.2e}", f"{one.loss:.4f}", f"{fitted:.4f}",
            f"{100 * (fitted / one.loss - 1):+.2f} %", f"{one.minutes:.2f}"]  # fmt: skip


def span(interval: Interval, write: Any = None) -> str:
    write = write or (lambda value: f"{value:.4g}")
    return "" if math.isnan(interval[0]) else f"{write(interval[0])} to {write(interval[1])}"


def short(value: float) -> str:
    """A large number in three digits: 1.23 M."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"


def plan_table(p: ScalingPlan) -> Table:
    """The runs that are going to be trained."""
    rows = [[run.size.name, f"{run.size.parameters:,}", f"{run.size.rate:,.0f}", f"{run.updates:,}", f"{run.tokens:,}",
             f"{run.operations:.2e}", format_duration(run.seconds)]
            for run in sorted(p.runs, key=lambda run: (run.size.parameters, run.tokens))]  # fmt: skip
    return Table(["size", "N", "tokens/s", "updates", "D", "C = 6 N D", "time"], rows)


def describe_plan(p: ScalingPlan, check_share: float) -> str:
    """One sentence about the plan."""
    return (f"{plural(len(p.runs), 'runs')} in about {format_duration(makespan(p.runs, p.jobs))}, {p.jobs} in parallel; then at most "
            f"{format_duration(check_share * 60 * p.minutes)} for the check.")  # fmt: skip


# --- files


def csv_text(s: Scaling) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow("kind d_model n_layers parameters all_parameters tokens operations loss law minutes".split())
    both = [("fit", one) for one in s.trained] + ([("check", s.check.trained)] if s.check else [])
    for kind, one in both:
        run = one.run
        writer.writerow([kind, run.size.fields["d_model"], run.size.fields["n_layers"], run.size.parameters, run.size.total,
                         run.tokens, run.operations, one.loss, s.fit.law.loss(*one.point[:2]), one.minutes])  # fmt: skip
    return out.getvalue()


def to_json(s: Scaling) -> dict[str, Any]:
    """All numbers."""
    names = ("E", "A", "B", "a", "b")
    intervals = {name: s.fit.interval(lambda law, name=name: getattr(law, name)) for name in names}  # type: ignore[misc]
    check = s.check and {
        "size": s.check.trained.run.size.fields, "parameters": s.check.trained.run.size.parameters, "tokens": s.check.trained.run.tokens,
        "operations": s.check.trained.run.operations, "predicted_best_parameters": s.check.best,
        "predicted": s.check.predicted, "interval": s.check.interval,
        "measured": s.check.trained.loss, "within": s.check.within, "folder": str(s.check.trained.folder),
    }  # fmt: skip
    return {
        "recipe": s.recipe, "findings": findings(s), "law": asdict(s.fit.law), "intervals": intervals,
        "separable": s.fit.separable, "problems": s.fit.problems, "deviation": s.fit.deviation,
        "predictions": [{**p.best._asdict(), "parameters_interval": p.parameters, "tokens_interval": p.tokens,
                         "loss_interval": p.loss, "samples_without_optimum": p.share_without_optimum} for p in s.predictions],
        "check": check, "embeddings_counted": s.plan.embeddings,
        "minutes": s.plan.minutes, "jobs": s.plan.jobs, "corpus_tokens": s.plan.corpus_tokens,
        "runs": [{"size": one.run.size.fields, "parameters": one.run.size.parameters, "all_parameters": one.run.size.total,
                  "tokens": one.run.tokens, "operations": one.run.operations, "loss": one.loss,
                  "law": s.fit.law.loss(*one.point[:2]), "minutes": one.minutes, "folder": str(one.folder)} for one in s.trained],
        "failed": s.failed, "notes": s.notes,
    }  # fmt: skip


# --- figure and page


def draw(s: Scaling) -> str:
    """The loss over the data, a colour for each size: runs as dots, the law as lines; the check has a colour of its own."""
    most = max([one.run.tokens for one in s.trained] + ([s.check.trained.run.tokens] if s.check else []))
    least = min(one.run.tokens for one in s.trained)
    points: dict[str, list[tuple[float, float]]] = {}
    sizes: dict[str, int] = {}
    for one in s.trained:
        name = f"N = {short(one.run.size.parameters)}"
        points.setdefault(name, []).append((one.run.tokens, one.loss))
        sizes[name] = one.run.size.parameters
    if s.check is not None:
        name = f"check, N = {short(s.check.trained.run.size.parameters)}"
        points[name], sizes[name] = (
            [(s.check.trained.run.tokens, s.check.trained.loss)],
            s.check.trained.run.size.parameters,
        )
    across = np.geomspace(least, most, 60).tolist()
    curves = {name: [(d, s.fit.law.loss(n, d)) for d in across] for name, n in sizes.items()}
    return lines(curves, f"{s.recipe}: loss by size and data", "training tokens, D", "loss", log_x=True, points=points)


def html(s: Scaling, tables: dict[str, Table], picture: str, command: str, measured: dict[str, str]) -> str:
    total = sum(one.minutes for one in s.trained) + (s.check.trained.minutes if s.check else 0.0)
    facts = {"Recipe": s.recipe, "Command": command, "Training time": f"{format_duration(60 * total)} of one core",
             "Measured": f"{measured['date']}, {measured['machine']}"}  # fmt: skip
    told = "".join(
        f"<p{'' if s.fit.separable or 'cannot' not in one else ' class=fails'}>{escape(one)}</p>" for one in findings(s)
    )
    listed = "".join(f"<li>{escape(note)}</li>" for note in s.notes)
    failed = "".join(f"<li class=fails>{escape(name)}: {escape(error)}</li>" for name, error in s.failed.items())
    parts = [f"<section><h2>{escape(title)}</h2>{table_html(table)}</section>" for title, table in tables.items()]
    return page(f"Scaling law of {s.recipe}", [
        f"<section>{told}{facts_html(facts)}{picture}</section>", *parts,
        f"<section><h2>Notes</h2><ul>{listed}{failed}</ul></section>",
    ])  # fmt: skip
