"""Work that several workers divide: two processes compute the scores of one, and each computes a part."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import needs_compiler

from qkv import recipes
from qkv.cli import app
from qkv.commands import workers
from qkv.config import load_recipe
from qkv.distributed import WorkerLost, from_bytes, process_group, rank, to_bytes
from qkv.errors import QkvError
from qkv.generate.translate import Translator
from qkv.pretrained import find
from qkv.shared_work import share_work, shared_map, shared_parts, shared_sums
from qkv.tasks import conversation, images, language, pretraining, translation, windows
from qkv.tasks.base import task_of

Pair = Callable[..., list[Any]]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """Run a function in two processes that are a process group: what it returns in each."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["qkv.train.run"])
    with ProcessPoolExecutor(2, mp_context=context) as pool:

        def run(function: Callable[..., Any], *arguments: Any) -> list[Any]:
            store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
            jobs = [pool.submit(in_group, number, store.port, function, *arguments) for number in (0, 1)]
            return [job.result() for job in jobs]

        yield run


def in_group(number: int, port: int, function: Callable[..., Any], *arguments: Any) -> Any:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE="2", RANK=str(number),
                      TORCHELASTIC_USE_AGENT_STORE="True")  # fmt: skip
    torch.set_num_threads(1)
    with process_group(), share_work():
        return function(*arguments)


# --- the mechanism


def test_data_keep_all_their_bits() -> None:
    tensors = [torch.randn(3, 2), torch.zeros(0, 4), torch.tensor(7), torch.tensor([True]), torch.randn(2).double()]
    data = {"é": [1, -0.0, 0.1, float("inf"), None, "\ud7ff\n"], "tensors": tensors, "counts": {"tensor": 2, "type": 1}}
    found = from_bytes(to_bytes(data))
    assert found["counts"] == data["counts"]
    assert found["é"] == data["é"] and str(found["é"][1]) == "-0.0"
    for before, after in zip(tensors, found["tensors"], strict=True):
        assert before.dtype == after.dtype and torch.equal(before, after)


def divided() -> dict[str, Any]:
    """What the functions return, and which items this worker computed."""
    mine: list[int] = []

    def square(x: int) -> int:
        mine.append(x)
        return x * x

    squares = list(shared_map(square, range(5)))
    nested = list(
        shared_map(lambda x: sum(shared_map(lambda y: x * y, range(x))), range(5))
    )  # an item is one worker's own
    sums = shared_sums(lambda x: (x, 0.1 * x), range(7))
    parts = shared_parts(lambda some: [x + 1 for x in some], range(5))
    return {
        "squares": squares,
        "nested": nested,
        "sums": sums,
        "parts": parts,
        "mine": mine,
        "empty": list(shared_map(square, [])),
    }


def test_items_are_divided_and_results_are_in_order(pair: Pair) -> None:
    alone = divided()
    first, second = pair(divided)
    assert (alone.pop("mine"), first.pop("mine"), second.pop("mine")) == ([0, 1, 2, 3, 4], [0, 2, 4], [1, 3])
    assert first == second == alone  # the sums bit for bit


def failing(wrong: Sequence[int]) -> tuple[list[int], str, int]:
    """The results before the first error, its message, and how many items this worker tried."""
    tried, found = [], []

    def check(x: int) -> int:
        tried.append(x)
        if x in wrong:
            raise QkvError(f"item {x}")
        return x

    try:
        for x in shared_map(check, range(8)):
            found.append(x)
    except QkvError as error:
        return found, str(error), len(tried)
    return found, "", len(tried)


def test_the_first_error_is_raised_on_all_workers_in_its_place(pair: Pair) -> None:
    for wrong in ([5], [3, 4], [0], [7, 6]):
        alone = failing(wrong)[:2]
        assert [one[:2] for one in pair(failing, wrong)] == [alone, alone]
    assert [tried for _, _, tried in pair(failing, [1])] == [4, 1]  # a worker stops at its own error


def broken(number: int, error: Exception) -> str:
    """The message of the error of one worker, on each."""

    def compute(done: int, lines: Any) -> int:
        if rank() == number:
            raise error
        return len(lines)

    try:
        workers.compute_chunks(compute, lambda _: None, ["x"] * 4 * workers.CHUNK)
    except QkvError as shown:
        return str(shown)
    return ""


def test_what_a_user_can_correct_is_raised_by_rank_0_alone(pair: Pair) -> None:
    for number in (0, 1):
        assert pair(broken, number, OSError(28, "No space left on device")) == ["No space left on device", ""]


def test_any_other_error_of_rank_0_ends_the_others(pair: Pair) -> None:
    """They wait for its results, and the connection closes."""
    with pytest.raises(RuntimeError, match="unexpected"):
        pair(broken, 0, RuntimeError("unexpected"))
    with pytest.raises(WorkerLost):
        pair(broken, 1, RuntimeError("unexpected"))


def test_nothing_is_divided_outside_of_share_work(pair: Pair) -> None:
    assert pair(alone_in_the_group) == [[0, 1, 2], None]


def alone_in_the_group() -> list[int] | None:
    """Rank 0 computes alone: it must not wait for the other."""
    from qkv import shared_work

    shared_work.sharing = False
    return list(shared_map(abs, range(3))) if rank() == 0 else None


# --- evaluation

SMALL = ["model.d_model=32", "model.d_ff=48", "model.n_layers=1", "model.n_heads=2"]
GRAMMAR = [
    "data.train=[{ grammar = 200 }]",
    "data.valid={ grammar = 70 }",
    "data.test={ grammar = 4 }",
    "data.vocab_size=200",
    *SMALL,
]
EXTRA = "data.extra_valid={ other = { grammar = 9 } }"
KINDS: dict[str, tuple[str, list[str]]] = {
    "translation": ("demo", [*GRAMMAR, EXTRA]),
    "translation, recurrent": ("demo", [*GRAMMAR, 'model.recurrent="gru"', 'model.position="none"']),
    "translation, decoder": ("demo", [*GRAMMAR, 'model.family="decoder"', 'model.tie="output"', "model.max_length=200"]),
    "summary": ("summaries", [*GRAMMAR, "data.valid={ grammar = 9 }"]),
    "language": ("grammar-lm", [*GRAMMAR, EXTRA]),
    "language, carried": ("grammar-lm", [*GRAMMAR, "data.carry=true", 'model.recurrent="lstm"', 'model.position="none"']),
    "classification": ("classify-small", GRAMMAR),
    "regression": ("classify-small", [*GRAMMAR, 'task="regression"']),
    "tagging": ("tags", GRAMMAR),
    "answering": ("answers", GRAMMAR),
    "masked": ("masked", [*GRAMMAR, EXTRA]),
    "masked-next": ("masked", [*GRAMMAR, 'model.head="masked-next"', "model.n_segments=2"]),
    "replaced": ("replaced", [s for s in GRAMMAR if "test" not in s]),
    "spans": ("spans", GRAMMAR),
    "denoising": ("denoising", GRAMMAR),
    "conversation": ("chat-grammar", [*GRAMMAR, "data.valid={ grammar = 20 }"]),
    "images": ("digits", SMALL),
    "captions": ("shapes", [*SMALL, "data.train=[{ shapes = 50 }]", "data.valid={ shapes = 9 }"]),
}  # fmt: skip


def evaluation(kind: str) -> tuple[dict[str, float], int, int]:
    """The scores of an untrained network; how many rows it read here, and how many texts it translated."""
    name, settings = KINDS[kind]
    recipe = load_recipe(recipes.find(name), settings)
    task_class = task_of(recipe)
    words = task_class.prepare(recipe, lambda _: None)
    task = task_class(recipe, task_class.fitted(recipe, words), words)
    torch.manual_seed(0)
    network, counts = task.network().eval(), {"rows": 0, "texts": 0}
    network.register_forward_pre_hook(lambda _, given: counts.update(rows=counts["rows"] + given[0].size))
    translate = Translator.translate

    def counted(self: Translator, texts: Sequence[str], *rest: Any) -> Any:
        counts["texts"] += len(texts)
        return translate(self, texts, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Translator, "translate", counted)
        scores = task.evaluate_all(network)
    return scores, counts["rows"], counts["texts"]


def small_batches(kinds: Sequence[str]) -> list[tuple[dict[str, float], int, int]]:
    """Evaluate several tasks, with batches so small that all workers get some."""
    by_length = windows.by_length
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "by_length", lambda lengths, tokens: by_length(lengths, tokens // 16))
        for module, size in ((pretraining, 256), (language, 256), (conversation, 256), (translation, 5)):
            patch.setattr(module, "EVALUATED", size)
        patch.setattr(images, "ASKED", 300)
        return [evaluation(kind) for kind in kinds]


def test_two_workers_score_what_one_scores(pair: Pair) -> None:
    """Of every task, bit for bit; each example is computed by one of them."""
    alone = small_batches(list(KINDS))
    for kind, one, first, second in zip(KINDS, alone, *pair(small_batches, list(KINDS)), strict=True):
        assert first[0] == second[0] == one[0] and one[0], kind
        assert first[1] + second[1] == one[1] and min(first[1], second[1]) > 0, kind
        assert first[2] + second[2] == one[2], kind
        assert min(first[2], second[2]) > 0 or kind.split(",")[0] not in ("translation", "summary"), kind


# --- commands

TEXTS = [
    f"The {a} {b} sees a {c} dog."
    for a in ("old", "small", "clever")
    for b in ("man", "woman")
    for c in ("small", "old")
]
COMMANDS = {
    "translate": ["translate", "example", "FILE", "--json", "--beam", "2"],
    "n-best": ["translate", "example", "FILE", "--n-best", "2", "--beam", "2", "--alignments"],
    "embed": ["embed", "example", "FILE"],
    "tokens": ["embed", "example", "FILE", "--pooling", "tokens", "--json"],
    "evaluate": ["evaluate", str(find("example")), "--source", "FILE", "--references", "FILE", "--bootstrap", "10"],
}


def output(argv: Sequence[str], chunk: int = 512) -> tuple[str, str, Any]:
    """What a command prints on standard output and standard error, and its exit code or error."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(workers, "CHUNK", chunk)
        try:
            end: Any = app(list(argv), standalone_mode=False)
        except QkvError as error:
            end = str(error)
    out.seek(0)
    return out.read(), err.getvalue(), end


@needs_compiler  # workers make other batches, and only the kernels give a row the same bits in any
@pytest.mark.parametrize("name", COMMANDS)
def test_two_workers_print_what_one_prints(name: str, pair: Pair, tmp_path: Path) -> None:
    """In chunks of three lines, of which the last round has one: a line that cannot be translated, an empty one, a short chunk."""
    wrong = ["dog " * 3000] if "translate" in COMMANDS[name] else []
    (tmp_path / "texts").write_text("\n".join([*TEXTS[:4], *wrong, *TEXTS[4:], "", "I sleep."]) + "\n")
    argv = [str(tmp_path / "texts") if word == "FILE" else word for word in COMMANDS[name]]
    alone = output(argv)
    first, second = pair(output, argv, 3)
    assert first == alone and len(alone[0].splitlines()) >= 10
    assert second[:2] == ("", "") and not second[2]
    assert not wrong or (alone[2] == 1 and "line 5 is not translated" in alone[1])


@needs_compiler
def test_a_file_of_vectors_is_the_same(pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "texts").write_text("\n".join(TEXTS))
    for name, run in (("one", output), ("two", lambda argv: pair(output, argv, 3)[0])):
        run(["embed", "example", str(tmp_path / "texts"), "--out", str(tmp_path / f"{name}.npy")])
    assert (tmp_path / "one.npy").read_bytes() == (tmp_path / "two.npy").read_bytes()


def test_an_error_in_the_input_comes_after_what_is_before_it(pair: Pair, tmp_path: Path) -> None:
    """Line 8 is in the third chunk, the second worker's is complete; then both end."""
    (tmp_path / "texts").write_bytes(b"".join(b"caf\xe9\n" if n == 7 else b"I sleep.\n" for n in range(20)))
    first, second = pair(output, ["embed", "example", str(tmp_path / "texts")], 3)
    assert len(first[0].splitlines()) == 6 and "line 8 cannot be read" in first[2]
    assert second == ("", "", None)


def test_workers_read_standard_input_in_one_command() -> None:
    """Started by the agent: the same bytes as with one process."""
    texts = "\n".join([*TEXTS, "dog " * 3000])
    alone, two = (
        subprocess.run([sys.executable, "-m", "qkv", "translate", "example", "--beam", "1", *more], input=texts,
                       capture_output=True, text=True)
        for more in ([], ["--workers", "2"])
    )  # fmt: skip
    assert two.stdout == alone.stdout and len(two.stdout.splitlines()) == len(TEXTS) + 1
    assert two.returncode == alone.returncode == 1 and two.stderr.count("line 13 is not translated") == 1, two.stderr


def test_a_lost_worker_is_an_error_in_one_line() -> None:
    process = subprocess.Popen([sys.executable, "-m", "qkv", "translate", "example", "--workers", "2"], text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    process.stdin.write("I sleep.\n")
    process.stdin.flush()
    assert process.stdout.readline() == "Ich schlafe.\n"  # both have started
    os.kill(int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[1]), signal.SIGKILL)
    said = process.stderr.read().splitlines()
    assert process.wait() == WorkerLost.exit_code and said[-1].startswith("error: worker 1 was ended by SIGKILL")
    assert sum("error" in line for line in said) == 1
