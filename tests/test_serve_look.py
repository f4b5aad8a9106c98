"""Looking inside over HTTP: what a stranger may ask, and that the server asks the network about what the task reads."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from served import TEXTS, all_models, model, served

pytest.importorskip("fastapi")
from starlette.testclient import TestClient

from qkv.api import Model
from qkv.serve.api.inspection import INTEGRALS
from qkv.serve.http.limits import Limits
from qkv.serve.scheduling.served_model import ServedModel


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    gated = model("gpt2", mixer=["softmax", "gated-linear"], position="none", attention_dropout=0.0, max_length=96)
    summary = ServedModel("letter", model("gpt2", max_length=96), "summary")
    with served([*all_models(), summary, ServedModel("hybrid", gated)]) as found:
        yield found


@pytest.fixture(scope="module")
def models(client: TestClient) -> dict[str, Model]:
    return {one.name: one.model for one in client.service.models}  # type: ignore[attr-defined]


def post(client: TestClient, what: str, **body: object) -> dict:
    reply = client.post(f"/api/look/{what}", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def refused(client: TestClient, what: str, **body: object) -> str:
    reply = client.post(f"/api/look/{what}", json=body)
    assert reply.status_code == 400, (reply.status_code, reply.text)
    return reply.json()["error"]


def png(colour: tuple[int, int, int]) -> str:
    from PIL import Image

    data = io.BytesIO()
    Image.new("RGB", (16, 16), colour).save(data, "PNG")
    return base64.b64encode(data.getvalue()).decode()


# --- what strangers may ask


def test_no_file_of_the_server_is_opened(client: TestClient, tmp_path: Path) -> None:
    """A text is the name of a file to a model of pictures: a client's never gets there."""
    (tmp_path / "there.png").write_bytes(base64.b64decode(png((9, 9, 9))))
    asked = {"model": "eye", "image": png((200, 30, 90))}
    for path in (tmp_path / "there.png", tmp_path / "missing.png", "/etc/passwd"):
        assert "other_image" in refused(client, "patch", **asked, other=str(path))
        assert "base64" in refused(client, "answers", model="eye", text=str(path))
    assert "base64" in refused(client, "patch", **asked)
    found = post(client, "patch", **asked, other_image=png((0, 250, 10)))
    assert len(found["values"]) == len(found["places"])
    assert "give a text" in refused(client, "patch", model="lm", text="the dog runs")


def test_nothing_is_no_list(client: TestClient) -> None:
    for lists in ({"heads": []}, {"rows": []}):
        assert "is empty" in refused(client, "attention", model="lm", text=TEXTS[1], **lists)
    assert "is empty" in refused(client, "attribution", model="lm", text=TEXTS[1], positions=[])


def test_answers_are_explained_once_each(client: TestClient) -> None:
    asked = {"model": "lm", "text": " ".join(TEXTS[:3]), "method": "gradient"}
    tokens = post(client, "answers", model="lm", text=asked["text"])["tokens"]
    every = list(range(len(tokens)))
    assert len(every) > INTEGRALS
    found = post(client, "attribution", **asked, positions=[*every, *every, -1] * 10)
    assert len(found["scores"]) == len(every)
    assert "at most" in refused(client, "attribution", **asked | {"method": "integrated"}, positions=every)


# --- what is asked of the network


def test_the_word_that_stands_there_is_measured(client: TestClient, models: dict[str, Model]) -> None:
    """And not what the model would have said; at the end of the text, what it would say."""
    for name, kind in (("lm", "self"), ("en-de", "cross")):
        look = models[name].look(TEXTS[0])
        ids = look.batch.inputs[0].tolist()
        for position in (0, 2, -1):
            told = post(client, "effects", model=name, text=TEXTS[0], kind=kind, position=position)
            answer = ids[position + 1] if position >= 0 else look.target(-1).answer
            assert told["word"] == look.name(answer)
            with torch.no_grad():
                whole = look.network(look.batch).logits[0, position, answer]
            assert told["whole"] == pytest.approx(float(whole), abs=1e-4)


def test_layers_without_weights_are_told_apart(client: TestClient) -> None:
    told = {one["name"]: one for one in client.get("/api/models").json()["models"]}
    assert told["hybrid"]["attention"] == ["self"]
    sites = post(client, "answers", model="hybrid", text=TEXTS[1])["sites"]
    assert [(site["weighs"], site["walks"]) for site in sites] == [(True, True), (False, False)]
    assert post(client, "attention", model="hybrid", text=TEXTS[1])["layer"] == 0
    assert post(client, "heads", model="hybrid", text=TEXTS[1])["layers"] == [0]
    assert len(post(client, "effects", model="hybrid", text=TEXTS[1])["alone"]) == 2


def test_a_gap_is_asked_about_where_it_is(client: TestClient, models: dict[str, Model]) -> None:
    told = {one["name"]: one for one in client.get("/api/models").json()["models"]}
    assert told["words"]["mask"] == "<mask>" and told["lm"]["mask"] is None
    for gap in ("<mask>", "[MASK]"):
        text = f"a man {gap} a bicycle"
        found = post(client, "answers", model="words", text=text, top_k=5)
        assert found["tokens"][found["place"]] == "<mask>"
        guesses = models["words"].fill([text])[0].gaps[0]
        assert found["answers"]["probabilities"] == pytest.approx([p for _, p in guesses], abs=1e-5)
        off = post(client, "ablation", model="words", text=text, heads=[], top_k=5)
        assert off["before"]["answers"] == found["answers"]
        first = post(client, "ablation", model="words", text=text, heads=[], top_k=5, position=0)
        assert first["before"]["answers"]["probabilities"] != found["answers"]["probabilities"]


def test_pairs_are_read_as_their_task_reads_them(client: TestClient, models: dict[str, Model]) -> None:
    pair = {"text": TEXTS[1], "pair": TEXTS[3]}
    found = post(client, "answers", model="classes", **pair)
    said = models["classes"].classify([(TEXTS[1], TEXTS[3])])[0]
    chances = dict(zip(found["answers"]["words"], found["answers"]["probabilities"], strict=True))
    assert chances == pytest.approx(said.probabilities, abs=1e-5)
    alone = post(client, "answers", model="classes", text=TEXTS[1])
    assert len(alone["tokens"]) < len(found["tokens"])
    asked = post(client, "answers", model="spans", text=TEXTS[0], pair="who rides?")
    shown = "".join(asked["tokens"])
    assert shown.index("who") < shown.index("man")  # the question comes first, and is asked about the text
    assert "one text" in refused(client, "answers", model="lm", **pair)
    told = {one["name"]: one for one in client.get("/api/models").json()["models"]}
    assert told["spans"]["pairs"] and not told["lm"]["pairs"]


def test_as_many_texts_are_asked_for_as_the_model_was_trained_on() -> None:
    pairs, single = (
        ServedModel(str(two), model("bert-base", head="classes", max_length=64), pairs=two) for two in (True, False)
    )
    with served([pairs, single]) as client:
        for own, wrong in ((pairs, "the dog"), (single, ["the dog", "a man"])):
            reply = client.post("/api/classify", json={"model": own.name, "texts": [wrong]})
            assert reply.status_code == 400 and own.name in reply.json()["error"]
        post(client, "answers", model="True", text="the dog", pair="a man")
        post(client, "answers", model="False", text="the dog")
        assert "two texts" in refused(client, "answers", model="True", text="the dog")
        assert "one text" in refused(client, "answers", model="False", text="the dog", pair="a man")


def test_names_of_tokens_are_counted_as_the_text_that_they_are() -> None:
    translator = ServedModel("en-de", model("transformer-base", max_length=80), "translation", ("en", "de"))
    with served([translator], limits=Limits(looked=40)) as client:
        assert "at most 40" in refused(client, "answers", text="</s>" * 30)  # 30 names, and over 40 tokens
        assert post(client, "answers", text="the dog")["tokens"]


def test_a_score_is_no_probability() -> None:
    regression = ServedModel("grade", model("bert-base", head="classes", n_classes=1, max_length=64))
    with served([regression]) as client:
        (told,) = client.get("/api/models").json()["models"]
        assert told["scores"]
        (said,) = client.post("/api/classify", json={"texts": ["the dog"]}).json()["results"]
        found = post(client, "answers", text="the dog")["answers"]
        assert found["probabilities"] == pytest.approx([said["score"]], abs=1e-5)


def test_a_model_that_fills_gaps_is_not_asked_where_there_is_none(client: TestClient) -> None:
    assert post(client, "answers", model="words", text="the dog runs")["answers"] is None
    assert post(client, "answers", model="words", text="the dog runs", position=1)["answers"]["words"]


def test_a_message_is_looked_at_as_the_assistant_reads_it(client: TestClient, models: dict[str, Model]) -> None:
    lm = models["lm"]
    wanted = lm.look(lm.prompt_ids("the dog", chat=True))
    assert post(client, "answers", model="lm", text="the dog", chat=True)["tokens"] == wanted.tokens
    assert wanted.tokens != lm.look("the dog").tokens
    assert "cannot chat" in refused(client, "answers", model="en-de", text="the dog", chat=True)


def test_a_decoder_goes_on_with_a_summary(client: TestClient, models: dict[str, Model]) -> None:
    """Behind the text come its end and the token that opens a summary, as in training: greedy writing is a beam of one."""
    letter = models["letter"]
    asked = {"model": "letter", "prompt": TEXTS[0], "max_tokens": 12, "temperature": 0}
    written = client.post("/api/generate", json=asked).json()
    assert written["prompt_tokens"] == len(letter.words().plain([TEXTS[0]])[0]) + 2
    summary = letter.summarize([TEXTS[0]], beam=1, max_length=12, no_repeat_ngram=0)[0]
    assert written["text"] == summary.text
    looked = post(client, "answers", model="letter", text=TEXTS[0])["tokens"]
    opening = written["prompt_tokens"] - 1
    assert looked[opening] == "<s>" and len(looked) > opening + 1  # what it writes is looked at too
    given = post(client, "answers", model="letter", text=TEXTS[0], target=TEXTS[3])["tokens"]
    assert (
        given[: opening + 1] == looked[: opening + 1]
        and "".join(given[opening + 1 :]).replace("␣", " ").strip() == TEXTS[3]
    )
    itself = post(client, "ablation", model="letter", text=TEXTS[0], heads=[])["before"]["text"]
    own = letter.look(TEXTS[0], summary=True).batch.inputs
    assert own is not None and itself == letter.target_words().decode(own[0, opening + 1 :].tolist())
    said = post(client, "ablation", model="letter", text=TEXTS[0], target=TEXTS[3], heads=[])
    assert said["before"] == said["after"]
    assert [one["token"] for one in said["before"]["expected"]] == given[opening + 1 :]
    assert [one["position"] for one in said["before"]["expected"]] == list(range(opening, len(given) - 1))


def test_what_the_model_writes_obeys_the_rules_of_search() -> None:
    """Neither padding nor the token that opens a target, however likely they are."""
    one = model("transformer-base", max_length=80)
    with torch.no_grad():
        head = one.network.head
        head.bias = torch.nn.Parameter(torch.zeros(one.config.target_size))
        head.bias[[0, 1]] = 1e3  # <pad>, <s>
    with served([ServedModel("odd", one, "translation", ("en", "de"))]) as client:
        own = one.look(TEXTS[1])
        assert not {0, 1} & set(own.batch.inputs[0, 1:].tolist())
        said = one.translate([TEXTS[1]], beam=1)[0]
        assert post(client, "ablation", text=TEXTS[1], heads=[])["before"]["text"] == said


def test_a_walk_and_the_stream_over_http(client: TestClient, models: dict[str, Model]) -> None:
    found = post(client, "walk", model="lm", text=TEXTS[1], layer=1, head=2)
    assert found["score"] == "dot" and found["bias"] is None and found["value_bias"] is None
    assert found["scale"] == pytest.approx(8**-0.5, abs=1e-5)
    stream = post(client, "residual", model="lm", text=TEXTS[1])
    own = models["lm"].look(TEXTS[1]).residual()
    torch.testing.assert_close(torch.tensor(stream["norms"]), own.norms, atol=1e-4, rtol=1e-4)
    source = post(client, "positions", model="en-de", length=8, source=True)
    assert len(source["table"]) == 8
