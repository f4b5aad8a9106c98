"""Answering: answers are words of the text, found in windows or whole, alone or in a batch; a small model learns it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as hf
from conftest import Run, needs_compiler
from hypothesis import given, settings
from hypothesis import strategies as st

import qkv
from qkv.config import CorpusConfig, DataConfig, ModelConfig, Recipe
from qkv.convert import folder as ours
from qkv.data.batching import Unusable
from qkv.errors import ConfigError, QkvError
from qkv.models.build import build
from qkv.tasks.answering import (
    ANSWERED,
    AnsweringTask,
    AnswerSpan,
    ContextCutter,
    ContextWindow,
    QuestionAnswerer,
    answer_span,
    collate,
    scores,
    spans,
)
from qkv.text.tokenizer import Tokenizer
from qkv.text.train import KINDS, train_tokenizer

CONTEXT = "The quick brown fox doesn't jump over 12,000 lazy dogs.  A naïve café owner waits, why not? Foxes sleep."
QUESTION = "Who jumps over the dogs?"
TOKENIZERS = {kind: train_tokenizer([CONTEXT, QUESTION] * 5, kind, 150) for kind in KINDS}


def config(**fields: Any) -> ModelConfig:
    base = {"family": "encoder", "head": "span", "d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 24, "vocab_size": 400,
            "n_segments": 2, "dropout": 0.0, "bos_id": 1, "eos_id": 2}  # fmt: skip
    return ModelConfig(**{**base, **fields})


def reader(tokenizer: Tokenizer = TOKENIZERS["wordpiece"], **fields: Any) -> QuestionAnswerer:
    torch.manual_seed(0)
    c = config(**fields)
    network = build(c).eval()
    with torch.no_grad():
        network.head.output.weight.mul_(5)  # type: ignore[union-attr, operator]  # so that one span stands out
    return QuestionAnswerer(c, network, tokenizer)


# --- windows


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("most", [12, 20, 500])
def test_windows_hold_question_and_context(kind: str, most: int) -> None:
    tokenizer = TOKENIZERS[kind]
    cut = ContextCutter(config(), tokenizer, most)
    (found,) = cut([(QUESTION, CONTEXT)])
    question, context = tokenizer.plain([QUESTION, CONTEXT])
    seen = set[tuple[int, int]]()
    for window in found:
        assert len(window.ids) <= most
        behind = window.first - len(cut.between)
        assert window.ids[len(cut.before) : behind] == question[: behind - len(cut.before)]
        assert len(window.ids) == window.first + len(window.offsets) + len(cut.after)
        seen |= set(window.offsets)
    text = "".join(CONTEXT[place] for place in sorted({i for a, b in seen for i in range(a, b)}))
    assert text == CONTEXT.replace(" ", "")  # no character of the context is in no window
    if most == 500:
        (whole,) = found
        assert whole.ids[whole.first : whole.first + len(context)] == context


def test_segments_tell_question_from_context() -> None:
    cut = ContextCutter(config(), TOKENIZERS["wordpiece"], 100)
    (window,), (other,) = cut([(QUESTION, CONTEXT), ("Who?", "Foxes.")])
    batch = collate([window, other], config())
    assert batch.segments is not None and batch.inputs is not None and batch.mask is not None
    assert batch.segments[0].tolist() == [0] * window.first + [1] * (len(window.ids) - window.first)
    assert batch.inputs[1, : other.first].tolist() == TOKENIZERS["wordpiece"].encode("Who?")
    assert collate([window], config(n_segments=0)).segments is None
    assert collate([window], config(n_segments=1)).segments.max() == 0  # type: ignore[union-attr]


def test_hugging_face_reads_the_same() -> None:
    """ids, segments and the characters of each token, as its tokenizer gives them for a pair."""
    tokenizer = TOKENIZERS["wordpiece"]
    fast = hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend)
    theirs = fast(QUESTION, CONTEXT, return_offsets_mapping=True, return_token_type_ids=True)
    ((window,),) = ContextCutter(config(), tokenizer, 200)([(QUESTION, CONTEXT)])
    assert window.ids == theirs.input_ids
    assert collate([window], config()).segments[0].tolist() == theirs.token_type_ids  # type: ignore[index]
    assert window.offsets == [
        tuple(o) for o, s in zip(theirs.offset_mapping, theirs.sequence_ids(), strict=True) if s == 1
    ]


# --- the best span


@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(2, 9), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_the_best_span_is_the_best_of_all(seed: int, longest: int, length: int, blank: int) -> None:
    """Against trying every pair of places, one window beside a longer one; blank pieces are no places."""
    logits = 3 * torch.randn(2, 14, 2, generator=torch.Generator().manual_seed(seed))
    places = [(i, i + (i != blank)) for i in range(length)]
    rows = [ContextWindow([0] * (length + 4), 3, places), ContextWindow([0] * 14, 2, [(i, i + 1) for i in range(11)])]
    for row, window, (score, first, last, nothing) in zip(logits, rows, spans(logits, rows, longest), strict=True):
        legal = [window.first + i for i, (a, b) in enumerate(window.offsets) if a < b]
        starts, ends = (
            dict(zip([0, *legal], row[[0, *legal], side].softmax(0).tolist(), strict=True)) for side in (0, 1)
        )
        best = max((starts[i] * ends[j], i, j) for i in legal for j in legal if i <= j < i + longest)
        assert (first + window.first, last + window.first) == best[1:]
        assert math.exp(score) == pytest.approx(best[0], rel=1e-4)
        assert math.exp(nothing) == pytest.approx(starts[0] * ends[0], rel=1e-4)


# --- a reader


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_words_of_the_text(kind: str) -> None:
    for most in (16, 512):
        r = reader(TOKENIZERS[kind], max_length=most)
        for context in (CONTEXT, "  x  ", "\u00e9" * 40, "\n\tfox\u00ad\n"):
            found = r.answer(QUESTION, context)
            assert context[found.start : found.end] == found.text == found.text.strip()
            assert 0 < found.score <= 1 and (found.text or context.strip() == "")


def test_alone_or_in_a_batch() -> None:
    r = reader(max_length=30)
    pairs = [(QUESTION, CONTEXT * 2), ("Who?", "Foxes sleep."), ("", CONTEXT), (QUESTION * 9, CONTEXT), ("Why?", "")]
    for no_answer in (False, True):
        together, small = r.answers(pairs, no_answer), r.answers(pairs, no_answer, batch_tokens=1)
        for pair, one, other in zip(pairs, together, small, strict=True):
            alone = r.answer(*pair, no_answer=no_answer)
            assert one[2:] == alone[2:] == other[2:] and one.text == alone.text
            assert one.score == pytest.approx(alone.score, abs=1e-5)
    assert r.answers([]) == []


def test_a_text_without_words_has_no_answer() -> None:
    for context in ("", "   \n"):
        assert reader().answer(QUESTION, context)[0] == ""


def test_no_answer_only_where_it_may_be() -> None:
    """A network that sees the answer at position 0 says so, if it is let."""
    r = reader()
    with torch.no_grad():
        r.network.head.output.weight.zero_()  # type: ignore[union-attr, operator]
        r.network.head.output.bias.zero_()  # type: ignore[union-attr, operator]
    even = r.answer("Who?", "Foxes sleep.")  # all places alike: one token as likely as none
    assert even.text and even.score == pytest.approx(
        1 / (1 + len(TOKENIZERS["wordpiece"].plain(["Foxes sleep."])[0])) ** 2
    )
    assert r.answer("Who?", "Foxes sleep.", no_answer=True).text == even.text
    strong = reader(position="none", n_segments=0)
    cls = TOKENIZERS["wordpiece"].id_of("[CLS]")
    with torch.no_grad():
        seen = strong.network(collate(strong.cut([("Who?", "Foxes sleep.")])[0], strong.config)).hidden[0]
        strong.network.head.output.weight.copy_((seen[0] - seen[1:].mean(0)).expand(2, -1) * 20)  # type: ignore[union-attr, operator]
    assert cls is not None and strong.answer("Who?", "Foxes sleep.", no_answer=True)[0] == ""
    assert strong.answer("Who?", "Foxes sleep.").text


def test_windows_find_what_the_whole_finds_where_words_do_not_look_around() -> None:
    """Without attention a token's scores are its own, so the best token of a long text is the best of its windows."""
    one, two = (reader(position="none", n_segments=0, max_length=most) for most in (24, 512))
    for network in (one.network, two.network):
        for block in network.stack.blocks:  # type: ignore[union-attr]
            torch.nn.init.zeros_(block.attention.layer.output.weight)
        with torch.no_grad():  # first and last token by the same score
            network.head.output.weight[1] = network.head.output.weight[0]  # type: ignore[union-attr, index]
    assert len(one.cut([(QUESTION, CONTEXT)])[0]) > 2 and len(two.cut([(QUESTION, CONTEXT)])[0]) == 1
    assert one.answer(QUESTION, CONTEXT, max_answer=1).text == two.answer(QUESTION, CONTEXT, max_answer=1).text


def test_as_hugging_face_answers(tmp_path: Path) -> None:
    """BertForQuestionAnswering in a folder of its own: our answer is the best span of its logits."""
    tokenizer = TOKENIZERS["wordpiece"]
    torch.manual_seed(1)
    theirs = hf.BertForQuestionAnswering(hf.BertConfig(
        vocab_size=tokenizer.size, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40,
        max_position_embeddings=80, initializer_range=0.5)).eval()  # fmt: skip
    theirs.save_pretrained(tmp_path)
    fast = hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend)
    fast.save_pretrained(tmp_path)
    model = qkv.load(tmp_path, "cpu")
    for question in (QUESTION, "Why?", "Who waits, and how?"):
        found = model.answer(question, CONTEXT, max_answer=8)
        given = fast(question, CONTEXT, return_offsets_mapping=True, return_token_type_ids=True, return_tensors="pt")
        context = [i for i, side in enumerate(given.sequence_ids()) if side == 1]
        with torch.no_grad():
            said = theirs(given.input_ids, token_type_ids=given.token_type_ids)
        starts, ends = said.start_logits[0], said.end_logits[0]
        _, i, j = max((float(starts[i] + ends[j]), i, j) for i in context for j in context if i <= j < i + 8)
        offsets = given.offset_mapping[0].tolist()
        assert (found.start, found.end) == (offsets[i][0], offsets[j][1])
        places = [0, *context]
        p = starts[places].softmax(0)[places.index(i)] * ends[places].softmax(0)[places.index(j)]
        assert found.score == pytest.approx(float(p), abs=1e-5)


@needs_compiler  # bits in any batch are the kernels'
def test_several_questions_about_one_text() -> None:
    r = reader()
    model = qkv.Model(r.config, r.network, TOKENIZERS["wordpiece"], "cpu")
    assert model.answer([QUESTION, "Why?"], CONTEXT) == [model.answer(QUESTION, CONTEXT), model.answer("Why?", CONTEXT)]
    with pytest.raises(QkvError, match="2 questions about 1 contexts"):
        model.answer([QUESTION, "Why?"], [CONTEXT])


def test_wrong_models_are_said() -> None:
    c = config(head="tags")
    with pytest.raises(QkvError, match='task = "answering"'):
        QuestionAnswerer(c, build(c), TOKENIZERS["wordpiece"])
    with pytest.raises(QkvError, match="no room"):
        ContextCutter(config(), TOKENIZERS["wordpiece"], 4)


# --- learning


def test_answers_are_placed_mended_or_dropped() -> None:
    text = "a fox and a dog"
    assert answer_span(text, "dog", "12") == (12, 15)
    assert answer_span(text, " dog ", "11") == (12, 15)
    assert answer_span(text, "dog", "3") == (12, 15)  # only one place can be meant
    assert answer_span(text, "dog", "-7") == answer_span(text, "dog", "nine") == (12, 15)
    assert answer_span(text, "", "-1") is None
    assert isinstance(answer_span(text, "a", "3"), Unusable)  # there are several
    assert isinstance(answer_span(text, "cat", "0"), Unusable)


def task(tmp_path: Path, rows: list[tuple[str, str, str, int]], **fields: Any) -> AnsweringTask:
    names = ("question", "context", "answer", "start")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    table = CorpusConfig(table=str(tmp_path / "a.jsonl"), columns=names)
    data = DataConfig(train=(table,), valid=table, test=table, tokenizer="wordpiece", vocab_size=120, **fields)
    recipe = Recipe(task="answering", model=config(), data=data)
    AnsweringTask.possible(recipe)
    words = AnsweringTask.prepare(recipe, lambda _: None)
    return AnsweringTask(recipe, AnsweringTask.fitted(recipe, words), words)


@pytest.mark.parametrize("most", [14, 18, 200])
def test_targets_are_the_tokens_of_the_answer(tmp_path: Path, most: int) -> None:
    """In every window that holds it whole the target is the answer, in all others position 0."""
    answer = "12,000 lazy dogs"
    t = task(tmp_path, [("Who?", CONTEXT, answer, CONTEXT.index(answer))], max_length=most)
    examples = t.encode([("Who?", CONTEXT, answer, str(CONTEXT.index(answer)))])
    targets = t.collate(examples).targets
    assert targets is not None and targets.shape == (len(examples), 2)
    wanted = t.tokenizer.plain([answer])[0]
    held = 0
    for window, (first, last) in zip(examples, targets.tolist(), strict=True):
        ids = list(window.ids)
        inside = any(ids[i : i + len(wanted)] == wanted for i in range(window.first, len(ids)))
        held += inside
        assert (ids[first : last + 1] == wanted) if inside else (first, last) == (0, 0)
    assert held >= 1 and (most == 200) == (len(examples) == 1)


def test_an_answer_that_is_not_there_is_counted(tmp_path: Path) -> None:
    rows = [("Who?", "a fox and a dog", "a fox", 0), ("Who?", "a fox and a dog", "", -1)]
    t = task(tmp_path, rows)
    assert t.unanswered and "--no-answer" in t.use("folder")[0]
    found = t.encode([("Who?", "a fox", "a cat", "0"), ("Who?", "a fox", "fox", "0"), ("Who?", "a fox", "", "-1")])
    assert len(found) == 2 and t.dropped.total() == 1
    assert found[0].target[0] > 0 and found[1].target == (0, 0)


def test_what_cannot_answer_is_said_at_once() -> None:
    data = DataConfig(train=(CorpusConfig(grammar=5),), valid=CorpusConfig(grammar=5))
    with pytest.raises(ConfigError, match="head = 'span'"):
        AnsweringTask.possible(Recipe(task="answering", model=config(head="tags"), data=data))
    with pytest.raises(ConfigError, match=r"\[data\]"):
        AnsweringTask.possible(Recipe(task="answering", model=config()))


def test_of_several_right_answers_the_best_counts() -> None:
    """SQuAD's dev set has what several people said; to be like one of them is enough."""
    record = ("Who?", "the old king slept", "the old king", "0", "king", "the king")
    asked = [AnswerSpan(text, 1.0, 0, 0) for text in ("king", "old king", "slept")]
    best = [{s.name: s.value for s in scores([one], [record])} for one in asked]
    assert best == [{"f1": 100, "exact": 100}, {"f1": 100, "exact": 100}, {"f1": 0, "exact": 0}]
    first = {s.name: s.value for s in scores(asked[:1], [record[:4]])}
    assert first == {"f1": pytest.approx(200 / 3), "exact": 0}
    assert scores([AnswerSpan("", 1.0, 0, 0)], [("Who?", "text", "", "-1")])[1].value == 100


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """The recipe `answers` with fewer updates and short texts, run as `qkv train` runs it."""
    from qkv.commands.train import train_recipe

    folder = tmp_path_factory.mktemp("answers") / "run"
    changes = ["train.steps=200", "train.warmup=30", "train.evaluate_every=100", "data.train=[{grammar=3000}]",
               "data.valid={grammar=40}", "data.test={grammar=100}", "data.batch_tokens=1000", "model.d_model=64",
               "model.d_ff=128", "model.n_layers=2"]  # fmt: skip
    return SimpleNamespace(folder=folder, run=train_recipe("answers", changes, folder, None, 1))


def test_a_small_model_learns_to_answer(trained: SimpleNamespace) -> None:
    """Where a third of the text is a guess, much more than half of the words are right."""
    f1, exact = trained.run.results["test"]["scores"]
    assert (f1["name"], exact["name"]) == ("f1", "exact") and f1["value"] >= 60 and exact["value"] >= 45
    rows = [json.loads(line) for line in (trained.folder / ANSWERED).read_text().splitlines()]
    same = sum(row["found"].lower() in map(str.lower, row["answers"]) for row in rows)
    assert len(rows) == 100 and 100 * same / len(rows) <= exact["value"] + 1e-6


# --- the command


def test_questions_in_answers_out(trained: SimpleNamespace, run: Run, tmp_path: Path) -> None:
    text = "The old man sleeps.\nI eat a pear."
    (tmp_path / "text.txt").write_text(text + "\n")
    model = qkv.load(trained.folder, "cpu")
    expected = model.answer("Who sleeps?", text)
    code, out, _ = run("answer", trained.folder, "Who sleeps?", "--context", tmp_path / "text.txt")
    assert code == 0 and out.rstrip("\n") == " ".join(expected.text.split())
    code, out, _ = run("answer", trained.folder, "Who sleeps?", "--context", "-", "--json", given=text)
    assert code == 0 and json.loads(out) == pytest.approx(expected._asdict())
    questions = "".join(json.dumps({"question": q, "context": text}) + "\n" for q in ("Who sleeps?", "What do I eat?"))
    code, out, _ = run("answer", trained.folder, given=questions + "\n")
    found = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and len(found) == 2 and found[0]["text"] == expected.text
    (tmp_path / "q.jsonl").write_text(questions)
    assert run("answer", trained.folder, tmp_path / "q.jsonl")[:2] == (0, out)


def test_bad_input_is_one_line_and_exit_code_2(trained: SimpleNamespace, run: Run, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("The old man sleeps.")
    good = json.dumps({"question": "Who?", "context": "A man."}) + "\n"
    for bad in ("nothing\n", '{"question": "Who?"}\n', '{"question": 1, "context": "a"}\n', "[" * 5000 + "\n"):
        code, _, err = run("answer", trained.folder, given=good + bad)
        assert code == 2 and "line 2" in err and len(err.splitlines()) == 1
    code, _, err = run("answer", trained.folder, "--context", tmp_path / "text.txt")
    assert code == 2 and "question" in err
    code, _, err = run("answer", trained.folder, "Who?", "--context", tmp_path / "none.txt")
    assert code == 2 and "none.txt" in err
    code, _, err = run("answer", trained.folder, "Who sleeps?")
    assert code == 2 and "--context" in err
    (tmp_path / "bad.txt").write_bytes(b"fine\n\xff\xfe\n")
    code, _, err = run("answer", trained.folder, "Who?", "--context", tmp_path / "bad.txt")
    assert code == 2 and "bad.txt is not UTF-8" in err
    c = config(head="tags")
    ours.save(tmp_path / "tags", c, build(c), TOKENIZERS["wordpiece"])
    code, _, err = run("answer", tmp_path / "tags", given=good)
    assert code == 2 and 'task = "answering"' in err
