"""The model card: README.md of a run, as Hugging Face's hub reads it, written from what the run measured."""

from __future__ import annotations

import json
from typing import Any

from qkv.config import CorpusConfig, DataConfig, ModelConfig, Recipe

LICENCE = "unknown: set by the data"


def card(recipe: Recipe, c: ModelConfig, results: dict[str, Any], name: str) -> str:
    """Facts for machines between the two lines of dashes, then the same in words."""
    data = recipe.data
    assert data is not None
    parts = [
        front_matter(data, results, name),
        f"# {name}: from {data.source} to {data.target}\n",
        f"A translator from `{data.source}` to `{data.target}`, trained from raw text with qkv "
        f"{results['training']['qkv']}.\n",
        "## Scores\n", *scores(data, results),
        "## Use\n", use(),
        "## Data\n", *learned_from(data, results),
        "## Model\n", *model(c, data, results),
        "## Training\n", *training(recipe, results),
        f"## Licence\n\n{LICENCE}. Write here what those who made the data allow.\n",
    ]  # fmt: skip
    return "\n".join(parts)


def front_matter(data: DataConfig, results: dict[str, Any], name: str) -> str:
    """YAML; each value in JSON, which is YAML too."""
    facts: dict[str, Any] = {
        "language": [data.source, data.target],
        "license": LICENCE.partition(":")[0],
        "library_name": "qkv",
        "pipeline_tag": "translation",
        "tags": ["translation", "transformer"],
    }
    if results["test"] is not None and data.test is not None:
        facts["metrics"] = [metric_id(s["name"]) for s in results["test"]["scores"]]
        measured = [
            {
                "type": metric_id(s["name"]),
                "name": s["name"],
                "value": round(s["value"], 2),
                "args": {"signature": s["signature"]},
            }
            for s in results["test"]["scores"]
        ]
        which = {"name": origin(data.test), "type": data.test.dataset or "text", "split": data.test.split or "test"}
        task = {"type": "translation", "name": f"Translation {data.source}-{data.target}"}
        facts["model-index"] = [{"name": name, "results": [{"task": task, "dataset": which, "metrics": measured}]}]
    return "".join(["---\n", *(f"{k}: {json.dumps(v, ensure_ascii=False)}\n" for k, v in facts.items()), "---\n"])


def metric_id(name: str) -> str:
    """chrF2 -> chrf: the metric's name on the hub."""
    return name.lower().rstrip("2")


def scores(data: DataConfig, results: dict[str, Any]) -> list[str]:
    valid, test = results["valid"], results["test"]
    rows = [(f"validation | {valid['sentences']:,} | {valid['search']}", "BLEU", valid["bleu"], valid["signature"])]
    if test is not None:
        how = f"beam {test['beam']}" if test["beam"] > 1 else "greedy"
        rows += [
            (f"test | {test['sentences']:,} | {how}", s["name"], s["value"], s["signature"]) for s in test["scores"]
        ]
    bar = "\\|"  # within a table a plain one would begin a new cell
    lines = [
        f"| {which} | {name} | {value:.2f} | `{signature.replace('|', bar)}` |"
        for which, name, value, signature in rows
    ]
    head = ["| set | sentences | search | metric | score | sacreBLEU signature |", "|---|---:|---|---|---:|---|"]
    once = "; the test set was looked at once, afterwards" if test is not None else ""
    return [*head, *lines, "", f"The validation set chose the weights{once}.\n"]


def use() -> str:
    return (
        "```bash\n"
        'echo "A sentence." | qkv translate FOLDER --alignments   # FOLDER: where this file is\n'
        "```\n\n"
        "```python\n"
        "import qkv\n\n"
        'model = qkv.load("FOLDER")\n'
        'print(model.translate(["A sentence."]))\n'
        "```\n"
    )


def learned_from(data: DataConfig, results: dict[str, Any]) -> list[str]:
    found = results["data"]
    lines = [f"- training: {origin(c)}" + (f", weight {c.weight:g}" if len(data.train) > 1 else "") for c in data.train]
    lines += [f"- validation: {origin(data.valid)}"] + ([f"- test: {origin(data.test)}"] if data.test else [])
    if "pairs" in found:
        lines.append(f"- {found['pairs']:,} pairs were learned from")
    else:
        lines.append(f"- streamed: {found['pairs_read']:,} pairs were read since the last start")
    lines += [f"- {count:,} dropped: {reason}" for reason, count in found["dropped"].items()]
    return [*lines, ""]


def origin(c: CorpusConfig) -> str:
    """Where a corpus comes from, in words; of files their names, not where they are."""
    if c.grammar is not None:
        return f"{c.grammar:,} pairs of qkv's English-German grammar"
    if c.dataset is not None:
        return f"{c.dataset}{f' ({c.split})' if c.split else ''}"
    return ", ".join(name.rpartition("/")[2] for name in (c.files or (c.table or "",)))


def model(c: ModelConfig, data: DataConfig, results: dict[str, Any]) -> list[str]:
    kind = f"recurrent ({c.recurrent})" if c.recurrent else "Transformer"
    sizes = f"{c.n_layers} layers a side, width {c.d_model}" + ("" if c.recurrent else f", {c.n_heads} heads")
    both = f"one vocabulary of {c.vocab_size:,} entries for both languages"
    vocabulary = both if data.joint else f"{c.vocab_size:,} entries for the source, {c.target_size:,} for the target"
    return [
        f"- {kind} {c.family} of {results['model']['parameters']:,} parameters: {sizes}",
        f"- tokenizer: {data.tokenizer}, trained on the training text; {vocabulary}",
        "",
    ]


def training(recipe: Recipe, results: dict[str, Any]) -> list[str]:
    t, c = results["training"], recipe.train
    speed = f", {t['target_tokens_per_second']:,} target tokens/s" if "target_tokens_per_second" in t else ""
    return [
        f"- {t['updates']:,} updates, {t['epochs']:,} whole passes over the data, {t['minutes']:.1f} minutes{speed}; "
        f"ended because {t['ended']}",
        f"- learning rate up to {c.learning_rate:g} ({c.schedule}, {c.warmup:,} updates of warm-up), label smoothing "
        f"{c.label_smoothing:g}, dropout {recipe.model.dropout:g}, seed {t['seed']}",
        f"- threads: {t['threads']} (of {t['cores']} cores), torch {t['torch']}, Python {t['python']}",
        f"- best weights: after update {results['valid']['update']:,}",
        "",
    ]
