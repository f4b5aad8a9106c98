"""Evaluation: the scores of a model on one test set, as results.json keeps them and as people read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qkv.evaluate.class_report import ClassReport
from qkv.look.figures import matrix
from qkv.text.wording import plural
from qkv.train.report import digits


@dataclass(frozen=True)
class Evaluation:
    """The scores of a model on one test set. `print(evaluation)` shows what `qkv evaluate` prints."""

    task: str
    set: str
    """The test set: "test" or "valid" of its run, or the names of files."""
    examples: int
    scores: dict[str, float]
    """Metric -> value; in per cent where papers print it so."""
    report: ClassReport | None
    """Precision, recall and F1 of every class or entity, and the confusion matrix; None where there are no classes."""
    details: dict[str, Any]
    """All of it as plain data."""

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Evaluation:
        """From what `rescore` returns, or the "test" of results.json."""
        report = ClassReport.from_json(found["report"]) if "report" in found else None
        scores = {score["name"]: score["value"] for score in found["scores"]}
        return cls(found.get("task", ""), found.get("set", "test"), found["examples"], scores, report, found)

    def to_json(self) -> dict[str, Any]:
        return self.details

    def __getitem__(self, metric: str) -> float:
        return self.scores[metric]

    def __repr__(self) -> str:
        scores = ", ".join(f"{name} {digits(value)}" for name, value in self.scores.items())
        return f"Evaluation({self.task}, {self.set}, {plural(self.examples, 'examples')}: {scores})"

    def __str__(self) -> str:
        lines = score_lines({"test": self.details})
        return "\n".join(lines if self.report is None else [*lines, "", str(self.report)])

    def picture(self) -> str | None:
        """The confusion matrix as SVG; None where there is none, or one of too many classes."""
        if self.report is None or not self.report.confusion:
            return None
        return matrix(self.report.labels, self.report.confusion, f"Confusion matrix: {self.set}")


def score_lines(results: dict[str, Any]) -> list[str]:
    """The scores of a test set, as `qkv train` and `qkv evaluate` print them."""
    test = results["test"]
    if test is None:
        return []
    name = test.get("set", "test")
    name += " set" if name in ("test", "valid") else ""
    lines = [f"{name}, {plural(test['examples'], 'examples')}{', ' if test['how'] else ''}{test['how']}:"]
    lines += [f"  {s['name']} = {digits(s['value'])}  {s.get('details', '')}".rstrip() for s in test["scores"]]
    return lines + [f"  {s['name']}|{s['signature']}" for s in test["scores"] if s["signature"]]
