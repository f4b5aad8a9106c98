"""How requests are read and how answers are told: forms, lists, keys, sentences, HTML, tokens with their probabilities."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi")
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from served import TEXTS, all_models, language_model, model, served, tokenizer
from starlette.testclient import TestClient

from qkv.generate.detokenize import detokenize
from qkv.generate.sampling import SamplingParams, make_generators, sample_tokens
from qkv.generate.sequence import GeneratedToken
from qkv.serve.api import inspection_requests, libretranslate, native, native_tasks, openai, sentences
from qkv.serve.api.logprobs import TokenFormatter, chat_logprobs, completion_logprobs
from qkv.serve.api.markup import Markup, ProseRun
from qkv.serve.api.service import RequestContext
from qkv.serve.scheduling.served_model import ServedModel
from qkv.text.train import train_tokenizer


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with served(all_models()) as found:
        yield found


# --- choosing


@pytest.mark.parametrize("tiny", [5e-324, 1e-50, 1e-40, 1e-30, 1e-6])
def test_however_small_a_number_the_best_token_stays(tiny: float) -> None:
    logits = torch.tensor([[0.5, 2.0, -1.0], [float("-inf"), 0.0, 3.0]])
    for how in (
        SamplingParams(tiny),
        SamplingParams(1.0, top_p=tiny),
        SamplingParams(tiny, top_k=2, top_p=tiny, min_p=tiny),
    ):
        assert sample_tokens(logits, how, make_generators(1, 2)).tolist() == [1, 2]


def test_scores_that_are_no_numbers_still_choose_a_token_of_the_vocabulary() -> None:
    assert (
        0
        <= sample_tokens(torch.full((1, 3), float("nan")), SamplingParams(1.0, top_p=0.5), make_generators(1, 1)).item()
        < 3
    )


# --- texts


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text(alphabet="aB.!? \n\t\"'", max_size=30))
def test_sentences_keep_everything_between_them(text: str) -> None:
    found = sentences.split(text)
    assert "".join(found) == text and len(found) % 2 == 1
    assert not any("\n" in sentence.strip() for sentence in found[::2])


def test_long_spaces_are_read_in_one_go() -> None:
    """Beginning anew at each of them would take minutes."""
    gap = " " * 400_000
    assert sentences.split(f"a{gap}b") == [f"a{gap}b"] and sentences.split(f"a{gap}\nb") == ["a", f"{gap}\n", "b"]
    filler = model("bert-base", head="masked", max_length=64).looker().filler
    assert filler is not None and filler.read(f"the{gap}[MASK] runs") == filler.read("the [MASK] runs")
    assert filler.read(f"the{gap}dog")[-1:] == filler.read("the dog")[-1:]


BITS = ["<p>", "</P>", '<a href="?a=1&b=2">', "</a >", "&amp;", "R&D", "&&", "&", "<", ">", "two words", "\n", "\r\n", "<!--", "-->",
        "<![CDATA[", "]]>", "<script>", "</script>", "<br/>", "<?x", "<!", "&#1", "é", "</", "<code>", "</code>", "\0",
        "<![foo z", "<![if x]>"]  # fmt: skip


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(BITS), max_size=12).map("".join))
def test_a_page_is_cut_and_not_written_anew(page: str) -> None:
    assert "".join(part if isinstance(part, str) else part.raw for part in Markup(page).parts) == page


INLINE = ["<b>", "</b>", "<i class=x>", "</i>", "ein ", "rotes, ", "Auto! ", " ", "&lt;\n"]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(INLINE), max_size=14).map("".join))
def test_tags_stay_where_every_word_is_its_own_translation(page: str) -> None:
    for run in Markup(page).runs():
        same = run.with_text(run.text, [(n, n) for n in range(len(run.text.split()))])
        if same is None:
            elements = run.elements()
            assert elements is None or any(not run.text[one.begin : one.end].strip(" ") for one in elements)
            continue
        (again,) = Markup(same).runs()
        assert again.text == run.text
        assert around(again) == around(run)


def test_many_words_in_many_tags_are_placed_at_once() -> None:
    """Looking for each link among all words of each element would take minutes."""
    count = 4900
    (run,) = Markup("<b>" * 90 + "a " * count + "</b>" * 90).runs()
    found = run.with_text(run.text, [(n, n) for n in range(count)])
    assert found is not None and found.startswith("<b>" * 90 + "a")


def around(run: ProseRun) -> list[tuple[str, list[str]]]:
    """The tags of a run, and the words within each."""
    return [(one.opening, run.text[one.begin : one.end].split()) for one in run.elements() or ()]


@pytest.mark.parametrize(
    ("page", "prose"),
    [
        ("<p>R&D at AT&T</P>", ["R&D at AT&T"]),
        ("<code>a&b c&&d</code><b>x</b >", ["x"]),
        ('<a href="?a=1&b=2">see</a> <svg><![CDATA[ x < y ]]></svg>', ["see"]),
        ("a &lt; b<!-- c&d --><?php e ?>", ["a < b"]),
    ],
)
def test_markup_stays_and_prose_is_found(page: str, prose: list[str]) -> None:
    found = Markup(page)
    assert [text for run in found.runs() for text in run.prose()] == prose
    upper = "".join(part if isinstance(part, str) else part.with_prose([text.upper() for text in part.prose()])
                    for part in found.parts)  # fmt: skip
    again = Markup(upper)
    assert [text for run in again.runs() for text in run.prose()] == [text.upper() for text in prose]
    assert [part for part in found.parts if isinstance(part, str)] == [
        part for part in again.parts if isinstance(part, str)
    ]


# --- tokens with their probabilities


def test_tokens_are_told_as_they_stand_in_the_text() -> None:
    """Behind the prompt, part of a character by its bytes, a special token as none of the text."""
    words = train_tokenizer(TEXTS * 20, "byte-bpe", 300)
    ids = [*words.encode(" runs über den Zaun", special=False), 2, *words.encode(" 😀 dog", special=False)]
    steps = [GeneratedToken(token, -1.0, []) for token in ids]
    before = words.encode("the dog", special=False)
    text = "".join(detokenize(ids, words, before))
    reader = TokenFormatter(words, before)
    told = [
        completion_logprobs(reader, steps[at : at + 3], 0) for at in range(0, len(steps), 3)
    ]  # as a stream tells them
    offsets = [offset for some in told for offset in some["text_offset"]]
    tokens = [token for some in told for token in some["tokens"]]
    special = {at for at, token in enumerate(ids) if token == 2}
    for at, token in enumerate(tokens):
        if at not in special and not token.startswith("bytes:"):
            assert text[offsets[at] :].startswith(token)
    assert offsets == sorted(offsets) and offsets[0] == 0 and any(token.startswith("bytes:") for token in tokens)
    records = chat_logprobs(TokenFormatter(words, before), steps)["content"]
    spelled = bytes(byte for record in records for byte in record["bytes"] or ())
    assert spelled.decode() == text and [at for at, one in enumerate(records) if one["bytes"] is None] == sorted(
        special
    )


def test_log_probabilities_of_a_stream_are_those_of_the_whole(client: TestClient) -> None:
    asked = {
        "model": "lm",
        "prompt": TEXTS[:2],
        "max_tokens": 9,
        "temperature": 2.0,
        "seed": 4,
        "logprobs": 2,
        "echo": True,
    }
    whole = client.post("/v1/completions", json=asked | {"n": 2}).json()["choices"]
    lines = client.post("/v1/completions", json=asked | {"n": 2, "stream": True}).text.split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    chunks = [event["choices"][0] for event in events]
    special = tokenizer().backend.get_added_tokens_decoder()
    for index, choice in enumerate(whole):
        own = [chunk for chunk in chunks if chunk["index"] == index]
        assert "".join(chunk["text"] for chunk in own) == choice["text"]
        for column in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
            assert [each for chunk in own for each in chunk["logprobs"][column]] == choice["logprobs"][column]
        told = choice["logprobs"]
        for token, offset, top in zip(told["tokens"], told["text_offset"], told["top_logprobs"], strict=True):
            assert top is None or token in top
            assert tokenizer().id_of(token) in special or choice["text"][offset:].startswith(token)


def test_a_prompt_is_checked_before_its_probabilities_are_computed(client: TestClient) -> None:
    lm = next(one for one in client.service.models if one.name == "lm")  # type: ignore[attr-defined]
    read: list[int] = []
    lm.prompt_steps = lambda ids, top: read.append(len(ids))
    try:
        for prompt in ([5] * 200, [10**6], ["the dog", "word " * 1000]):
            body = {"model": "lm", "prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 1}
            assert client.post("/v1/completions", json=body).status_code == 400
        assert read == []
    finally:
        del lm.prompt_steps


# --- requests


REQUESTS = [value for part in (native, native_tasks, openai, libretranslate, inspection_requests) for value in vars(part).values()
            if isinstance(value, type) and issubclass(value, BaseModel) and value is not BaseModel]  # fmt: skip


@pytest.mark.parametrize("request_type", REQUESTS, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_a_million_mistakes_are_a_few_errors(request_type: type[BaseModel]) -> None:
    many: list[Any] = [
        [{}] * 500,
        [[{}] * 20] * 50,
        [{"role": "user", "content": [{}] * 500}],
        {str(i): {} for i in range(500)},
    ]
    bodies = [{name: wrong} for name in request_type.model_fields for wrong in many] + [
        {f"x{i}": 1 for i in range(500)}
    ]
    for body in bodies:
        try:
            request_type.model_validate(body)
        except ValidationError as error:
            assert error.error_count() < 20


def test_keys_are_asked_for_before_anything_else_is_checked() -> None:
    with served(all_models()[:1], keys=("good-key",)) as client:
        for path in ("/translate", "/detect", "/v1/completions", "/api/tag"):
            assert client.post(path, json={"q": [1, 2, 3]}).status_code == 401
            assert client.post(path, json=[1]).status_code == 401
            wrong = client.post(path, json={}, headers={"Authorization": "Bearer good-key"})
            assert wrong.status_code == 400
        assert client.post("/translate", json={"q": [1], "api_key": "bad-key"}).status_code == 403


def test_forms_of_every_kind_say_the_same(client: TestClient) -> None:
    fields = {"q": "the dog runs", "source": "en", "target": "de"}
    wanted = client.post("/translate", json=fields).json()
    assert wanted["translatedText"]
    for how in ({"data": fields}, {"params": fields}, {"files": {name: (None, value) for name, value in fields.items()}},
                {"params": {"target": "de"}, "data": {"q": fields["q"], "source": "en"}}):  # fmt: skip
        reply = client.post("/translate", **how)
        assert reply.status_code == 200 and reply.json() == wanted, reply.text
    several = client.post("/translate", files=[("q", (None, text)) for text in TEXTS[:2]] + [("target", (None, "de"))])
    assert len(several.json()["translatedText"]) == 2
    assert client.post("/translate", content=b"x", headers={"Content-Type": "multipart/form-data"}).status_code == 400


def test_what_is_in_the_target_language_stays(client: TestClient) -> None:
    german = "Der Hund läuft nicht mit dem Mann in das Haus."
    same = client.post("/translate", json={"q": german, "source": "de", "target": "de"}).json()
    assert same == {"translatedText": german}
    auto = client.post("/translate", json={"q": german, "source": "auto", "target": "de"}).json()
    assert auto["translatedText"] == german and auto["detectedLanguage"]["language"] == "de"
    assert client.post("/translate", json={"q": "a", "source": "xx", "target": "xx"}).status_code == 400
    assert [one["confidence"] for one in client.post("/detect", json={"q": "12345"}).json()] == [0]


def test_token_ids_are_embedded_as_what_they_spell(client: TestClient) -> None:
    words, body = tokenizer(), {"model": "words", "encoding_format": None}
    ids = [words.plain([text])[0] for text in TEXTS[:2]]
    wanted = client.post("/v1/embeddings", json=body | {"input": TEXTS[:2]}).json()["data"]
    assert client.post("/v1/embeddings", json=body | {"input": ids}).json()["data"] == wanted
    assert client.post("/v1/embeddings", json=body | {"input": ids[0]}).json()["data"] == wanted[:1]
    assert client.post("/v1/embeddings", json=body | {"input": [10**6]}).status_code == 400


def test_stop_strings_and_prefixes_are_bounded(client: TestClient) -> None:
    body = {"model": "lm", "prompt": "the dog", "max_tokens": 2}
    for path, change in (("/v1/completions", {"stop": "a" * 201}), ("/api/generate", {"stop": ["a" * 201]}),
                         ("/api/generate", {"model": "en-de", "prefix": [5] * 2000})):  # fmt: skip
        reply = client.post(path, json=body | change)
        assert reply.status_code == 400 and "at most" in reply.text


def test_the_time_of_a_request_is_counted_from_its_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes two rounds has no more time than what takes one."""
    from qkv.serve.http.limits import Limits

    with served([ServedModel("lm", language_model())], limits=Limits(seconds=50)) as client:
        seen: list[float] = []
        remaining = RequestContext.remaining
        monkeypatch.setattr(RequestContext, "remaining", lambda own: seen.append(remaining(own)) or seen[-1])
        body = {"model": "lm", "prompt": "the dog", "max_tokens": 2, "echo": True, "logprobs": 1}
        assert client.post("/v1/completions", json=body).status_code == 200
        assert len(seen) >= 2 and seen[0] < 50 and seen == sorted(seen, reverse=True)
