"""The model card: README.md of a run, as Hugging Face's hub reads it, written from what the run measured."""

from __future__ import annotations

import json
import re
from typing import Any

from qkv.config import CorpusConfig, DataConfig
from qkv.evaluate.baseline import describe_baseline
from qkv.tasks.base import Task
from qkv.text.wording import format_duration, plural
from qkv.train.report import digits, in_words

LICENCE = "unknown: set by the data"


def card(task: Task, results: dict[str, Any], name: str) -> str:
    """Facts for machines between the two lines of dashes, then the same in words."""
    data = task.data
    parts = [
        front_matter(task, results, name),
        f"# {name}: {task.title()[:1].lower()}{task.title()[1:]}\n",
        f"{task.title()}, trained with qkv {results['training']['qkv']}.\n",
        "## Scores\n", *scores(results),
        "## Use\n", use(task),
        "## Data\n", *data_lines(data, results),
        "## Model\n", *model(task, results),
        "## Training\n", *training(task, results),
        f"## Licence\n\n{LICENCE}. Replace this with the licence that the training data allows.\n",
    ]  # fmt: skip
    return "\n".join(parts)


def front_matter(task: Task, results: dict[str, Any], name: str) -> str:
    """YAML; each value in JSON, which is YAML too."""
    data = task.data
    facts: dict[str, Any] = {
        **({"language": [data.source, data.target]} if task.name == "translation" else {}),
        "license": LICENCE.partition(":")[0],
        "library_name": "qkv",
        "pipeline_tag": task.hub_tag,
        "tags": [task.name, "recurrent" if task.config.recurrent else "transformer"],
    }
    if results["test"] is not None and data.test is not None:
        facts["metrics"] = list(dict.fromkeys(metric_id(s["name"]) for s in results["test"]["scores"]))
        measured = [
            {"type": metric_id(s["name"]), "name": s["name"], "value": round(s["value"], 4), "args": {"signature": s["signature"]}}
            for s in results["test"]["scores"]
        ]  # fmt: skip
        which = {"name": origin(data.test), "type": data.test.dataset or "text", "split": data.test.split or "test"}
        asked = {"type": task.hub_tag, "name": task.title()}
        facts["model-index"] = [{"name": name, "results": [{"task": asked, "dataset": which, "metrics": measured}]}]
    return "".join(["---\n", *(f"{k}: {json.dumps(v, ensure_ascii=False)}\n" for k, v in facts.items()), "---\n"])


def metric_id(name: str) -> str:
    """chrF2 -> chrf, ROUGE-L -> rouge: the metric's name on the hub."""
    return re.sub(r"2$|-(1|2|l|lsum)$", "", name.lower())


def scores(results: dict[str, Any]) -> list[str]:
    valid, test = results["valid"], results["test"]
    rows = [(f"validation | {valid['examples']:,} | {valid['how']}", in_words(valid["metric"]), valid["value"], "")]
    for name, one in results["extra_valid"].items():
        where, metric = f"validation, {name} | {one['examples']:,} | {one['how']}", one["metric"]
        rows.append((where, in_words(metric), one["scores"][metric], ""))
    for s in test["scores"] if test else ():
        rows.append((f"test | {test['examples']:,} | {test['how']}", s["name"], s["value"], s["signature"]))
    code = lambda sign: f"`{sign}`".replace("|", "\\|") if sign else ""  # a plain bar would begin a new cell  # noqa: E731
    lines = [f"| {which} | {name} | {digits(value)} | {code(sign)} |" for which, name, value, sign in rows]
    head = ["| set | examples | how | metric | score | signature |", "|---|---:|---|---|---:|---|"]
    once = "; the test set was evaluated once, after training" if test is not None else ""
    watched = f" ({', '.join(results['extra_valid'])} not used for selection)" if results["extra_valid"] else ""
    simple = [f"{line[:1].upper()}{line[1:]}.\n" for line in describe_baseline(results)]
    return [*head, *lines, "", f"The weights were selected on the validation set{watched}{once}.\n", *simple]


def use(task: Task) -> str:
    command, python = task.use("FOLDER")
    return (
        "```bash\n"
        f"{command}   # FOLDER: where this file is\n"
        "```\n\n"
        "```python\n"
        "import qkv\n\n"
        'model = qkv.load("FOLDER")\n'
        f"print({python})\n"
        "```\n"
    )


def data_lines(data: DataConfig, results: dict[str, Any]) -> list[str]:
    found = results["data"]
    lines = [f"- training: {origin(c)}" + (f", weight {c.weight:g}" if len(data.train) > 1 else "") for c in data.train]
    extra = {f"validation, {name}": c for name, c in data.extra_valid.items()}
    held_out = {"validation": data.valid, **extra, "test": data.test}
    lines += [f"- {name}: {origin(c)}" for name, c in held_out.items() if c]
    if "examples" in found:
        lines.append(f"- {found['examples']:,} training examples")
    else:
        lines.append(f"- streamed: {found['examples_read']:,} records read since the last start")
    lines += [f"- {count:,} dropped: {reason}" for reason, count in found["dropped"].items()]
    return [*lines, ""]


def origin(c: CorpusConfig) -> str:
    """Where a corpus comes from, in words; of files their names, not where they are."""
    if c.grammar is not None:
        variants = ", half of them in informal variants" if c.casual else ""
        return f"{c.grammar:,} examples of qkv's English-German grammar{variants}"
    if c.dataset is not None:
        return f"{c.dataset}{f' ({c.split})' if c.split else ''}"
    if c.stdlib:
        return "Python's standard library"
    if c.text is not None:
        return f"one text of {len(c.text):,} characters"
    if c.shapes is not None:
        return f"{c.shapes:,} drawings of shapes"
    return ", ".join(name.rpartition("/")[2] for name in (c.files or (c.table or c.images or "",)))


def model(task: Task, results: dict[str, Any]) -> list[str]:
    c, data = task.config, task.data
    states = {*c.mixer} <= {"s4d", "selective"}
    kind = f"recurrent ({c.recurrent})" if c.recurrent else "state-space" if states else "Transformer"
    each = " per side" if c.family == "encoder-decoder" else ""
    heads = "" if c.recurrent or states else f", {c.n_heads} heads"
    sizes = f"{c.n_layers} layers{each}, d_model {c.d_model}{heads}"
    lines = [f"- {kind} {c.family} of {results['model']['parameters']:,} parameters: {sizes}"]
    if task.recipe.tune.start:
        lines.append(f"- fine-tuned from {task.recipe.tune.start.rpartition('/')[2]}")
    if c.vocab_size:
        two = c.target_size != c.vocab_size
        sides = f"{c.vocab_size:,} entries" + (f" for the source, {c.target_size:,} for the target" if two else "")
        given = data.vocabulary or task.recipe.tune.start
        lines.append(f"- tokenizer: {'given' if given else f'{data.tokenizer}, trained on the training text'}; {sides}")
    if c.labels:
        lines.append(f"- labels: {', '.join(c.labels[:50])}{' ...' if len(c.labels) > 50 else ''}")
    return [*lines, ""]


def training(task: Task, results: dict[str, Any]) -> list[str]:
    t, c = results["training"], task.recipe.train
    smoothing = f", label smoothing {task.smoothing:g}" if task.smoothing else ""
    speed = f", {t['target_tokens_per_second']:,} {task.unit}/s" if "target_tokens_per_second" in t else ""
    return [
        f"- {t['updates']:,} updates, {t['epochs']:,} epochs, {format_duration(60 * t['minutes'])}{speed}; ended: {t['ended']}",
        f"- learning rate up to {c.learning_rate:g} ({c.schedule}, {t['warmup']:,} warm-up updates){smoothing}, "
        f"dropout {task.config.dropout:g}, seed {t['seed']}",
        f"- {plural(t['workers'], 'workers')} with {plural(t['threads'], 'threads')} each on {plural(t['cores'], 'cores')}, "
        f"torch {t['torch']}, Python {t['python']}",
        f"- best weights: at update {results['valid']['update']:,}",
        "",
    ]
