"""Break forty lines of the package, one at a time, and see whether the tests notice.

    python benchmarks/mutations.py                  all of them; exit code 1 if fewer than 38 are caught
    python benchmarks/mutations.py masks native     those whose file or new text contains one of the words
    python benchmarks/mutations.py --list

Each mutation is a mistake that somebody could make: an index that is one too large, a factor that is missing, a sum over the wrong
axis, a swapped sign. The tree is copied to a temporary folder and broken there; the tests that concern the line run in it, first
unbroken. The old text must occur exactly once in its file: where the code was rewritten, the mutation is to be rewritten too.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
NEEDED = 0.95
"""Share that must be caught: 38 of 40."""
LIMIT = 300
"""Seconds that the tests of one mutation may take."""
NOT_RUN = (2, 4, 5)
"""pytest's exit codes where no test failed: interrupted while collecting, wrong usage, no tests."""


class Mutation(NamedTuple):
    file: str
    old: str
    new: str
    tests: str
    """What pytest is called with."""


PARTS, MIXERS, RECURRENT = "tests/test_parts.py", "tests/test_mixers.py", "tests/test_recurrent.py"
OBJECTIVES, GENERATE, BEAM = "tests/test_objectives.py", "tests/test_generate.py", "tests/test_beam.py"
LEARN, TUNING = "tests/test_learn.py", "tests/test_tuning.py"
ENGINE = "tests/test_engine.py -k padding_anywhere"
SUCCESSORS = "tests/test_successors.py -k scan"
CONTRACTS = "tests/test_contracts.py -k 'contract_that_applies and (gpt2-xl or llama2-7b)'"
HEADS = "tests/test_contracts.py -k 'every_head and mean'"
AVERAGES = "tests/test_train.py -k 'schedule or average'"

MUTATIONS = [
    # --- parts: masks and scores
    Mutation("qkv/parts/masks.py", "rows = torch.arange(keys - queries, keys, device=device)[:, None]",
             "rows = torch.arange(keys - queries + 1, keys + 1, device=device)[:, None]", PARTS),
    Mutation("qkv/parts/masks.py", "return (self.keys.long().cumsum(-1) - 1).clamp(min=0)",
             "return self.keys.long().cumsum(-1).clamp(min=0)", CONTRACTS),
    Mutation("qkv/parts/masks.py", "return before - (before * document_starts(documents)).cummax(-1).values", "return before", LEARN),
    Mutation("qkv/parts/masks.py", "end[:-1] = torch.where(starts[1:, 0] == starts[:-1, 0], starts[1:, 1], self.length)",
             "end[:-1] = starts[1:, 1]", LEARN),
    Mutation("qkv/parts/scores.py", "return Dot(1 / math.sqrt(width) if", "return Dot(1 / width if", PARTS),
    Mutation("qkv/parts/softmax.py", "x.repeat_interleave(n_heads // x.size(1), 1)",
             "x.repeat(1, n_heads // x.size(1), 1, 1)", PARTS),
    # --- parts: positions
    Mutation("qkv/parts/positions.py", "device=exact) * 2 / width)", "device=exact) / width)", PARTS),
    Mutation("qkv/parts/positions.py", "return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)",
             "return torch.cat([a * cos + b * sin, a * sin - b * cos], -1)", PARTS),
    Mutation("qkv/parts/positions.py", "(distance > 0) * n", "(distance >= 0) * n", PARTS),
    Mutation("qkv/parts/positions.py", "2 ** (-4 * (2 * i + 1) / power)", "2 ** (-8 * (2 * i + 1) / power)", PARTS),
    Mutation("qkv/parts/positions.py", "clamp(-self.max_distance, self.max_distance) + self.max_distance",
             "clamp(1 - self.max_distance, self.max_distance) + self.max_distance", PARTS),
    # --- parts: other averages
    Mutation("qkv/parts/linear_attention.py", "device=query.device).triu(1)", "device=query.device).triu(2)", MIXERS),
    Mutation("qkv/parts/linear_attention.py", "key.square().sum(-1, keepdim=True) * self.scale / 2",
             "key.square().sum(-1, keepdim=True) * self.scale", MIXERS),
    Mutation("qkv/parts/linear_attention.py", ".flatten(-2) / math.sqrt(2)", ".flatten(-2) / 2", MIXERS),
    Mutation("qkv/parts/mixers.py", "near = ((rows - columns).abs() <= size) &", "near = ((rows - columns).abs() < size) &",
             MIXERS),
    Mutation("qkv/parts/compressed.py", "complete = (positions + 1) // self.stride", "complete = positions // self.stride",
             "tests/test_compressed.py"),
    # --- parts: recurrent cells, state, heads, dropout
    Mutation("qkv/parts/recurrent.py", '(1 - z) * n + z * last["hidden"]', 'z * n + (1 - z) * last["hidden"]', RECURRENT),
    Mutation("qkv/parts/state.py", "{name: kept.detach() for name, kept in layer.items()}", "{**layer}",
             "tests/test_recurrent_lm.py -k border"),
    Mutation("qkv/parts/state.py", "keys = torch.cat([pad(s.real(), 1, length, left=True)",
             "keys = torch.cat([pad(s.real(), 1, length, left=False)", "tests/test_continuous.py"),
    Mutation("qkv/parts/heads.py", "/ keys.sum(1, keepdim=True)", "/ keys.size(1)", HEADS),
    Mutation("qkv/parts/dropout.py", ".mul_(LEVELS / (LEVELS - dropped))", ".mul_(1 + dropped / LEVELS)", "tests/test_dropout.py"),
    # --- objectives
    Mutation("qkv/objectives.py", "even = smoothing / weight.size(0)", "even = smoothing / (weight.size(0) - 1)", OBJECTIVES),
    Mutation("qkv/objectives.py", "dw -= even * weighed.sum(0)", "dw -= even * x.sum(0)", OBJECTIVES),
    Mutation("qkv/objectives.py", "beta=0.0 if start == 0 else 1.0", "beta=0.0", OBJECTIVES),
    Mutation("qkv/objectives.py", "(following != IGNORED).sum(1, keepdim=True)", "(following != IGNORED).sum()", OBJECTIVES),
    Mutation("qkv/objectives.py", "both = batch.mask & batch.mask.roll(-1, 1)", "both = batch.mask", OBJECTIVES),
    # --- generate
    Mutation("qkv/generate/sampling.py", "above = probs.cumsum(-1) - probs", "above = probs.cumsum(-1)", GENERATE),
    Mutation("qkv/generate/logits_processor.py", "torch.where(own > 0, own / factor, own * factor)",
             "torch.where(own < 0, own / factor, own * factor)", f"{GENERATE} {BEAM}"),
    Mutation("qkv/generate/logits_processor.py", "for at in range(len(ids) - n + 1) if", "for at in range(len(ids) - n) if", BEAM),
    Mutation("qkv/generate/beam.py", "formula(n) ** params.length_penalty", "formula(n) ** -params.length_penalty", BEAM),
    Mutation("qkv/generate/sequence.py", "if token in self.eos_ids or len(self.tokens) == self.max_tokens:",
             "if len(self.tokens) == self.max_tokens:", GENERATE),
    # --- train
    Mutation("qkv/train/step.py", "(loss * (weight * module.replicas / max(count, 1))).backward()",
             "(loss * (weight * module.replicas / max(batch.count, 1))).backward()", CONTRACTS),
    Mutation("qkv/train/optimizer.py", "tune.layer_decay ** (self.layers - self.level + 1)",
             "tune.layer_decay ** (self.layers - self.level)", TUNING),
    Mutation("qkv/train/schedule.py", "math.sqrt(max(c.warmup, 1) / step)", "max(c.warmup, 1) / step",
             AVERAGES),
    Mutation("qkv/train/optimizer.py", "get_ema_multi_avg_fn(d)([local(p) for p in averaged]",
             "get_ema_multi_avg_fn(1 - d)([local(p) for p in averaged]", AVERAGES),
    # --- engine
    Mutation("qkv/engine/cpp/stack.cpp", "keys + head * d.key_heads / d.heads * head_size",
             "keys + head % d.key_heads * head_size", ENGINE),
    Mutation("qkv/engine/cpp/stack.cpp", "if (n.centred) {", "if (true) {", ENGINE),
    Mutation("qkv/engine/cpp/attention.h", "sums[from + r] = most + logf(sum);", "sums[from + r] = logf(sum);", LEARN),
    Mutation("qkv/engine/cpp/scan.cpp", "put(s.dstep + place, dstep + dinput * now.u);", "put(s.dstep + place, dstep);", SUCCESSORS),
    Mutation("qkv/engine/cpp/stack.cpp", "chunk * count / chunks; i < (chunk + 1)", "chunk * count / chunks; i <= (chunk + 1)", ENGINE),
]  # fmt: skip


def main() -> None:
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    chosen = [m for m in MUTATIONS if not words or any(word in m.file + m.new for word in words)]
    for mutation in MUTATIONS:
        check_text(mutation)
    if "--list" in sys.argv:
        print(*(f"{m.file}: {short(m.old)}  ->  {short(m.new)}" for m in chosen), sep="\n")
        return
    with tempfile.TemporaryDirectory() as folder:
        caught = run_all(Path(folder) / "tree", chosen)
    print(f"{caught} of {len(chosen)} caught")
    sys.exit(caught < NEEDED * len(chosen))


def check_text(mutation: Mutation) -> None:
    found = (ROOT / mutation.file).read_text().count(mutation.old)
    if found != 1:
        sys.exit(f"error: {mutation.file} has {found} times {short(mutation.old)!r}, not once: rewrite this mutation")


def run_all(tree: Path, mutations: list[Mutation]) -> int:
    """Break a copy of the tree again and again; return how many mutations are caught."""
    ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "*.egg-info")
    shutil.copytree(ROOT, tree, ignore=ignored, symlinks=True)
    selections = list(dict.fromkeys(m.tests for m in mutations))
    whole = " ".join(tests for tests in selections if "-k" not in tests)  # these in one go
    for tests in filter(None, [whole, *(tests for tests in selections if "-k" in tests)]):
        code, seconds = tested(tree, tests, limit=None)
        if code != 0:
            sys.exit(f"error: {tests} fails (exit code {code}) before anything is broken")
        print(f"unbroken, {seconds:3.0f} s: {tests}", flush=True)
    caught = 0
    for mutation in mutations:
        path = tree / mutation.file
        text = path.read_text()
        path.write_text(text.replace(mutation.old, mutation.new))
        build_kernels(tree, path)
        code, seconds = tested(tree, mutation.tests)
        path.write_text(text)
        build_kernels(tree, path)
        noticed = code not in (0, None, *NOT_RUN)
        caught += noticed
        print(
            f"{'caught  ' if noticed else 'SURVIVED'} {seconds:3.0f} s: {mutation.file}: {short(mutation.new)}",
            flush=True,
        )
    return caught


def build_kernels(tree: Path, changed: Path) -> None:
    """Build the kernels in the copy again if one of their files has changed."""
    if changed.parent.name == "cpp":
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "--force"]
        subprocess.run(command, cwd=tree, check=True, capture_output=True)


def tested(tree: Path, tests: str, limit: float | None = LIMIT) -> tuple[int | None, float]:
    """pytest's exit code (None: the time limit) and the seconds it took."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *shlex.split(tests)]
    environment = os.environ | {
        "PYTHONPATH": str(tree),
        "HOME": str(tree),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    start = time.monotonic()
    try:
        code = subprocess.run(command, cwd=tree, env=environment, capture_output=True, timeout=limit).returncode
    except subprocess.TimeoutExpired:
        code = None
    return code, time.monotonic() - start


def short(text: str) -> str:
    return " ".join(text.split())[:100]


if __name__ == "__main__":
    main()
