"""Few-shot evaluation of a language model: K solved examples precede each item in the prompt; nothing is trained.

The answer is the label with the highest log-probability after the prompt, as in the LM Evaluation Harness (Gao et al. 2021), or,
where there are too many labels to compare, what the model generates greedily.

    Text: a fine film          a shot
    Label: positive

    Text: it was boring        the item
    Label:                     log p(" positive") against log p(" negative")
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from qkv.config import ModelConfig
from qkv.data.schema import LABEL_NAMES, TEXT, Column, Schema
from qkv.data.sources import Record
from qkv.errors import ConfigError, QkvError
from qkv.evaluate.class_report import class_report
from qkv.evaluate.scores import Score
from qkv.generate.continuous_batching import make_batch
from qkv.generate.detokenize import cut_at_stop
from qkv.generate.scoring import continuation_log_probs
from qkv.generate.search import greedy
from qkv.models.decoder import Decoder
from qkv.tasks.windows import map_by_length
from qkv.text.tokenizer import Tokenizer

SCHEMA = Schema("few-shot evaluation", (TEXT, Column("label", (*LABEL_NAMES, "answer", "output", "completion"))),
                "give one table with a text and a label, or a question and an answer (.tsv, .csv, .jsonl)")  # fmt: skip
TEMPLATES = {3: "Text: {text}\nSecond text: {second}\nLabel: {label}\n\n", 2: "Text: {text}\nLabel: {label}\n\n"}
"""Number of columns -> template."""
CHAT = "chat"
"""In place of a template: shots are turns of a conversation, written by the model's chat template."""
MOST_LABELS = 20
"""With more labels than this, answers are generated."""
TOKENS = 4096
"""Prompt tokens per batch."""


@dataclass(frozen=True)
class Prompting:
    """How items become prompts."""

    shots: int
    """K, the solved examples before each item."""
    template: str = ""
    """A text with {text}, {label} and for pairs {second}; "chat"; "" = the one of TEMPLATES."""
    seed: int = 0
    """Seed of the random choice of shots, which are drawn for each item separately unless `same_shots`."""
    generate: bool = False
    """Generate answers instead of comparing labels."""
    same_shots: bool = False
    """Use the same shots for every item: their tokens are then read once (generate/prefill.py)."""


class FewShot:
    """A language model, shots and a template: `answer` predicts the label of each record."""

    def __init__(self, c: ModelConfig, network: Any, tokenizer: Tokenizer, pool: Sequence[Record], how: Prompting):
        if c.family != "decoder" or c.head != "vocabulary":
            raise ConfigError(f"--shots is for language models (family 'decoder'), and this is of family {c.family!r}")
        self.config, self.network, self.tokenizer, self.pool, self.how = c, network, tokenizer, pool, how
        template = how.template or TEMPLATES.get(len(pool[0]) if pool else 2, TEMPLATES[2])
        self.template = template.replace("\\n", "\n")
        self.chat = how.template == CHAT
        before, mark, self.behind = self.template.partition("{label}")
        if not self.chat and (not mark or "{text}" not in before):
            raise ConfigError(f"--template needs {{text}} and after it {{label}}, given {how.template!r}; or chat")
        self.before = before.rstrip(" ")
        self.space = before[len(self.before) :]
        """Spaces before the label: in most vocabularies they are part of its first token."""
        self.counts: Counter[str] = Counter()
        """Numbers of items with fewer shots than requested, or whose text was cut."""

    # --- prompts

    def prompt(self, number: int, record: Record, room: int) -> list[int]:
        """Return the ids of the shots and the item, with room for so many tokens after them; shots that do not fit the context are
        dropped, then the beginning is cut."""
        shots = self.choose_shots(number, record)
        most = self.config.max_length - room
        while len(ids := self.encode(shots, record)) > most and shots:
            shots = shots[1:]
        self.counts["with fewer shots, which is all that fits"] += len(shots) < self.how.shots
        self.counts["cut at the beginning"] += len(ids) > most
        return ids[-max(most, 1) :]

    def choose_shots(self, number: int, record: Record) -> Sequence[Record]:
        """Draw the shots of an item, none of which has its text."""
        others = [one for one in self.pool if one[:-1] != record[:-1]]
        if len(others) < self.how.shots:
            raise QkvError(f"--shots {self.how.shots}: there are {len(others)} other examples to choose from")
        if self.how.same_shots:  # the first ones of a random order that is the same for all items
            order = random.Random(str(self.how.seed)).sample(range(len(self.pool)), len(self.pool))
            return [one for at in order if (one := self.pool[at])[:-1] != record[:-1]][: self.how.shots]
        return random.Random(f"{self.how.seed}:{number}").sample(others, self.how.shots)

    def encode(self, shots: Sequence[Record], record: Record) -> list[int]:
        """Return the ids of the shots and the item, up to where the label begins."""
        if self.chat:
            turns = [{"role": role, "content": text} for shot in shots
                     for role, text in (("user", "\n".join(shot[:-1])), ("assistant", shot[-1]))]  # fmt: skip
            return self.tokenizer.chat([*turns, {"role": "user", "content": "\n".join(record[:-1])}])
        text = "".join(self.fill(self.template, shot) for shot in shots) + self.fill(self.before, record)
        return self.tokenizer.encode(text) or [self.config.bos_id or 0]

    @staticmethod
    def fill(template: str, record: Record) -> str:
        parts = {"text": record[0], "second": record[1] if len(record) == 3 else "", "label": record[-1]}
        # in one pass: a text may contain {label} itself
        return re.sub(r"\{(text|second|label)\}", lambda match: parts[match[1]].strip(), template)

    def label_ids(self, label: str) -> list[int]:
        """Return the ids of a label after the prompt, with the spaces between; in a conversation with the end token."""
        if self.chat:
            return [*self.tokenizer.plain([label])[0], *self.config.eos_ids[:1]]
        context = self.tokenizer.encode(self.before, special=False)
        whole = self.tokenizer.encode(self.before + self.space + label, special=False)
        return (
            whole[len(context) :] if whole[: len(context)] == context else self.tokenizer.plain([self.space + label])[0]
        )

    # --- answers

    def answer(self, records: Sequence[Record], labels: Sequence[str]) -> tuple[list[str], list[str]]:
        """Predict the label of each record by its log-probability, and by its log-probability per byte of the label.

        Generated answers, `how.generate`, are the same in both lists.
        """
        choices = [self.label_ids(label) for label in labels]
        room = max(map(len, choices)) + (10 if self.how.generate else 0)
        prompts = [self.prompt(number, record, room) for number, record in enumerate(records)]

        def compute(numbers: list[int]) -> list[tuple[str, str]]:
            some = [prompts[n] for n in numbers]
            if self.how.generate:
                return [(text, text) for text in self.generate(some, room)]
            sums = continuation_log_probs(self.network, some, [choices] * len(some), self.config.pad_id)
            return [best_labels(row, labels) for row in sums]

        found = map_by_length(compute, [len(prompt) for prompt in prompts], TOKENS)
        return [a for a, _ in found], [b for _, b in found]

    def generate(self, prompts: Sequence[list[int]], most: int) -> list[str]:
        """Generate at most so many tokens greedily, up to the text that follows the label in the template, or to the end of the line."""
        device, ends = next(self.network.parameters()).device, self.config.eos_ids
        batch = make_batch(prompts, pad_id=self.config.pad_id).to(device)
        rows = greedy(self.network, batch, most, ends)
        stop = [] if self.chat else [self.behind or "\n"]
        texts = (self.tokenizer.decode([i for i in ids if i not in ends]) for ids in rows)
        return ["".join(cut_at_stop([text.lstrip()], stop)).strip() for text in texts]


def best_labels(sums: Sequence[float], labels: Sequence[str]) -> tuple[str, str]:
    """Return the label with the highest log-probability, and that with the highest per byte, which does not favour short labels."""
    rates = [total / max(len(label.encode()), 1) for total, label in zip(sums, labels, strict=True)]
    return labels[max(range(len(sums)), key=sums.__getitem__)], labels[max(range(len(rates)), key=rates.__getitem__)]


def evaluate_few_shot(c: ModelConfig, network: Decoder, tokenizer: Tokenizer, records: Sequence[Record],
                      pool: Sequence[Record], how: Prompting) -> dict[str, Any]:  # fmt: skip
    """Score a language model on labelled texts; return {"examples", "how", "scores", ...}, as results.json stores them."""
    references = [record[-1].strip() for record in records]
    labels = sorted({*references, *(record[-1].strip() for record in pool)})
    if len(labels) > MOST_LABELS and not how.generate:
        how = replace(how, generate=True)
    model = FewShot(c, network, tokenizer, pool, how)
    answers, normalised = model.answer(records, labels)
    scores = [accuracy("accuracy", answers, references)]
    ways = "greedy answers" if how.generate else f"log-probabilities of {len(labels)} labels"
    if not how.generate:
        scores.append(accuracy("accuracy_norm", normalised, references, "log-probability per byte of the label"))
    most = Counter(references).most_common(1)[0]
    scores.append(Score("majority", 100 * most[1] / len(references), "", f"always {most[0]!r}"))
    found = {"examples": len(records),
             "how": f"{how.shots} {'equal ' * how.same_shots}shots, seed {how.seed}, {ways}",
             "scores": [score.to_json() for score in scores],
             "notes": {note: count for note, count in model.counts.items() if count}}  # fmt: skip
    return found if how.generate else {**found, "report": class_report(answers, references, labels).to_json()}


def accuracy(name: str, answers: Sequence[str], right: Sequence[str], about: str = "") -> Score:
    """Return the share of right answers in per cent, with the 95 % interval of Wilson (1927)."""
    n = len(right)
    p = sum(a == b for a, b in zip(answers, right, strict=True)) / n
    z = 1.96
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    low, high = 100 * (middle - half), 100 * (middle + half)
    return Score(name, 100 * p, about, f"(95 % interval {low:.1f} to {high:.1f})", 100 * middle, 100 * half)
