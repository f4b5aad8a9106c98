"""Scores: the digits of the `sacrebleu` command, known answers, and comparisons that tell skill from luck."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from qkv.data.grammar import pairs
from qkv.errors import FileError, QkvError
from qkv.evaluate.scores import METRICS, bleu, by_length, read_sentences, score, sentence_scores
from qkv.evaluate.significance import compare

REFERENCES = [p.target for p in islice(pairs("test"), 150)]
Run = Callable[..., tuple[int, str, str]]


def damaged(share: float, seed: int = 0) -> list[str]:
    """The references with that share of the words shuffled, dropped or changed."""
    r, found = random.Random(seed), []
    for text in REFERENCES:
        words = [w if r.random() > share else r.choice(["", w.lower(), "Apfel", w + "e"]) for w in text.split()]
        found.append(" ".join(w for w in words if w))
    return found


GOOD, BAD = damaged(0.1), damaged(0.4)


def write(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(text + "\n" for text in texts))
    return path


def sacrebleu(*arguments: str | Path) -> list[dict]:
    """What the `sacrebleu` command prints."""
    command = [sys.executable, "-m", "sacrebleu", *map(str, arguments), "-w", "4", "-f", "json"]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = json.loads(out)
    return found if isinstance(found, list) else [found]


# --- the same digits as the sacrebleu command


@pytest.mark.parametrize("references", [1, 2])
def test_scores_signatures_and_intervals_are_sacrebleus(tmp_path: Path, run: Run, references: int) -> None:
    hypotheses = write(tmp_path / "h", GOOD)
    targets = [write(tmp_path / "r1", REFERENCES), write(tmp_path / "r2", damaged(0.2, 5))][:references]
    theirs = {s["name"]: s for s in sacrebleu(*targets, "-i", hypotheses, "-m", "bleu", "chrf", "ter", "--confidence")}
    code, out, _ = run("evaluate", hypotheses, *(a for t in targets for a in ("--references", t)), "--json")
    ours = {s["name"]: s for s in json.loads(out)["scores"]}
    assert code == 0 and ours.keys() == theirs.keys() == {"BLEU", "chrF2", "TER"}
    for name, s in ours.items():
        assert round(s["value"], 4) == theirs[name]["score"]
        assert s["signature"] == theirs[name]["signature"]
        assert round(s["mean"], 4) == theirs[name]["confidence_mean"]
        assert round(s["interval"], 4) == theirs[name]["confidence_var"]
    assert theirs["BLEU"]["tok"] == "13a" and theirs["BLEU"]["case"] == "mixed"


def test_options_are_sacrebleus_too(tmp_path: Path, run: Run) -> None:
    hypotheses, target = write(tmp_path / "h", BAD), write(tmp_path / "r", REFERENCES)
    theirs = sacrebleu(target, "-i", hypotheses, "-m", "bleu", "--tokenize", "intl", "-lc")[0]
    _, out, _ = run(
        "evaluate",
        hypotheses,
        "-r",
        target,
        "--metrics",
        "bleu",
        "--tokenize",
        "intl",
        "--lower",
        "--bootstrap",
        "0",
        "--json",
    )
    ours = json.loads(out)["scores"][0]
    assert (round(ours["value"], 4), ours["signature"]) == (theirs["score"], theirs["signature"])
    assert "mean" not in ours


@pytest.mark.parametrize("metric", METRICS)
def test_sentence_scores_are_sacrebleus(tmp_path: Path, run: Run, metric: str) -> None:
    hypotheses, target = write(tmp_path / "h", BAD[:25]), write(tmp_path / "r", REFERENCES[:25])
    command = [
        sys.executable,
        "-m",
        "sacrebleu",
        str(target),
        "-i",
        str(hypotheses),
        "-m",
        metric,
        "-sl",
        "-b",
        "-w",
        "2",
    ]
    theirs = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    code, out, _ = run("evaluate", hypotheses, "-r", target, "--metrics", metric, "--sentences")
    rows = [line.split("\t") for line in out.splitlines()]
    assert code == 0 and rows[0] == ["line", metric, "hypothesis", "reference"]
    assert [row[1] for row in rows[1:]] == theirs
    assert [row[2:] for row in rows[1:]] == [list(pair) for pair in zip(BAD[:25], REFERENCES[:25], strict=True)]


def test_the_paired_bootstrap_is_sacrebleus(tmp_path: Path, run: Run) -> None:
    files = [write(tmp_path / "a", BAD), write(tmp_path / "b", GOOD)]
    target = write(tmp_path / "r", REFERENCES)
    theirs = sacrebleu(target, "-i", *files, "-m", "bleu", "--paired-bs", "--paired-bs-n", "200")
    code, out, _ = run("compare", *files, "--references", target, "--samples", "200", "--metrics", "bleu", "--json")
    assert code == 0
    for row, system in zip(json.loads(out), theirs, strict=True):
        their = system["BLEU"]
        assert row["system"] == system["system"].removeprefix("Baseline: ")
        assert (row["value"], row["mean"], row["interval"], row["p"]) == (
            their["score"],
            their["mean"],
            their["ci"],
            their["p_value"],
        )


# --- known answers


def test_perfect_empty_and_damaged_translations() -> None:
    perfect = {s.name: s.value for s in score(REFERENCES, REFERENCES, METRICS)}
    assert perfect == pytest.approx({"BLEU": 100.0, "chrF2": 100.0, "TER": 0.0})
    nothing = {s.name: s.value for s in score([""] * len(REFERENCES), REFERENCES, METRICS)}
    assert nothing == pytest.approx({"BLEU": 0.0, "chrF2": 0.0, "TER": 100.0})
    assert 100 > bleu(GOOD, REFERENCES) > bleu(BAD, REFERENCES) > 0


def test_bleu_by_hand() -> None:
    """Precisions 5/5, 3/4, 1/3 and, smoothed, 1/2 of 1/2; as long as the reference, so no penalty."""
    value = score(["a b c e d"], ["a b c d e"])[0].value
    assert value == pytest.approx(100 * (5 / 5 * 2 / 4 * 1 / 3 * 1 / 2 / 2) ** 0.25)


def test_case_counts_in_bleu() -> None:
    assert bleu([t.lower() for t in REFERENCES], REFERENCES) < 100
    assert score([t.lower() for t in REFERENCES], REFERENCES, lowercase=True)[0].value == pytest.approx(100)


def test_by_length_shares_out_every_sentence() -> None:
    buckets = by_length(BAD, REFERENCES, edges=(4, 8))
    assert sum(b.sentences for b in buckets) == len(BAD) and len(buckets) >= 2
    inside = [i for i, text in enumerate(REFERENCES) if 5 <= len(text.split()) <= 8]
    chosen = next(b for b in buckets if b.shortest == 5)
    assert (chosen.longest, chosen.sentences) == (8, len(inside))
    assert chosen.bleu == bleu([BAD[i] for i in inside], [REFERENCES[i] for i in inside])
    by_source = by_length(BAD, REFERENCES, edges=(4, 8), sources=["one"] * (len(BAD) - 1) + ["nine words " * 5])
    assert [(b.shortest, b.longest, b.sentences) for b in by_source] == [(0, 4, len(BAD) - 1), (9, 10, 1)]
    whole = by_length(BAD, REFERENCES, edges=(1000,))
    assert len(whole) == 1 and whole[0].bleu == bleu(BAD, REFERENCES)


# --- skill or luck


def test_a_clear_difference_is_significant_and_none_is_not() -> None:
    base, better, same = compare({"bad": BAD, "good": GOOD, "again": list(BAD)}, REFERENCES, samples=300)
    assert base.p is None and base.difference == 0 and not base.significant
    assert better.significant and better.difference == pytest.approx(bleu(GOOD, REFERENCES) - bleu(BAD, REFERENCES))
    assert abs(better.mean - better.value) < better.interval
    assert same.p == pytest.approx(1.0) and not same.significant


def test_the_comparison_does_not_change_from_run_to_run() -> None:
    runs = [compare({"a": BAD, "b": GOOD}, REFERENCES, samples=50) for _ in range(2)]
    assert runs[0] == runs[1]


# --- a model


def test_a_model_is_scored_by_what_it_translates(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import qkv.api

    asked = {}

    class Parrot:
        def translate(self, texts: list[str], beam: int | None, length_penalty: float | None) -> list[str]:
            asked.update(beam=beam, length_penalty=length_penalty)
            return [text.upper() for text in texts]

    monkeypatch.setattr(qkv.api, "load", lambda path, device, precision: Parrot())
    source, target = (
        write(tmp_path / "s", ["ein haus", "ein hund läuft"]),
        write(tmp_path / "r", ["EIN HAUS", "EIN HUND LÄUFT"]),
    )
    code, out, _ = run(
        "evaluate", tmp_path, "--source", source, "-r", target, "--beam", "2", "--output", tmp_path / "o", "--json"
    )
    scores = {s["name"]: s["value"] for s in json.loads(out)["scores"]}
    assert code == 0 and scores["chrF2"] == pytest.approx(100) and scores["TER"] == 0
    assert asked == {"beam": 2, "length_penalty": None}  # None: as the model's own run
    assert (tmp_path / "o").read_text() == target.read_text()
    code, _, err = run("evaluate", tmp_path, "-r", target)
    assert code == 2 and "--source" in err


def test_the_tables_for_people(tmp_path: Path, run: Run) -> None:
    good, bad, target = (write(tmp_path / n, t) for n, t in (("good", GOOD), ("bad", BAD), ("r", REFERENCES)))
    code, out, _ = run("evaluate", good, "-r", target, "--bootstrap", "20")
    assert code == 0 and f"BLEU = {bleu(GOOD, REFERENCES):.2f}" in out and "tok:13a" in out and "reference words" in out
    code, out, _ = run("compare", bad, good, "-r", target, "--samples", "50")
    assert code == 0 and "baseline" in out and "significant" in out and "bs:50" in out


# --- what the user can mend


def test_bad_input_is_one_line(tmp_path: Path, run: Run) -> None:
    good, short = write(tmp_path / "good", GOOD), write(tmp_path / "short", GOOD[:-1])
    (tmp_path / "latin").write_bytes(b"gut\nsch\xf6n\n")
    (tmp_path / "empty").write_bytes(b"")
    cases = [
        (("evaluate", good, "-r", short), "150 hypotheses but the reference has 149"),
        (("evaluate", tmp_path / "latin", "-r", good), "latin, line 2: not UTF-8"),
        (("evaluate", tmp_path / "empty", "-r", good), "is empty"),
        (("evaluate", tmp_path / "absent", "-r", good), "cannot read"),
        (("evaluate", good, "-r", good, "--metrics", "blue"), "unknown metric 'blue': choose one of bleu, chrf, ter"),
        (("evaluate", good, "-r", good, "--tokenize", "14a"), "unknown BLEU tokenizer '14a'"),
        (("evaluate", good, "-r", good, "--source", good), "is not a folder"),
        (("compare", good, "-r", good), "at least two files"),
        (("compare", good, good, "-r", good), "each given once"),
        (("compare", good, short, "-r", good), "149 hypotheses but the reference has 150"),
    ]
    for arguments, message in cases:
        code, _, err = run(*arguments)
        assert code == 2 and message in err and err.count("\n") == 1, (arguments, err)
    with pytest.raises(QkvError, match="nothing to score"):
        score([], [])
    with pytest.raises(QkvError, match="reference 2 has 1 lines"):
        sentence_scores(["a", "b"], [["a", "b"], ["a"]])
    with pytest.raises(FileError):
        read_sentences(tmp_path / "latin")
