"""Serving: LibreTranslate's API, OpenAI's and our own say what the models say, to clients that were written by others."""

from __future__ import annotations

import base64
import html
import io
import json
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from served import TEXTS, all_models, model, served

pytest.importorskip("fastapi")
from starlette.testclient import TestClient

from qkv.batch import Batch
from qkv.generate.search import greedy
from qkv.look.look import Look
from qkv.look.result import plain
from qkv.serve.api import sentences
from qkv.serve.api.languages import detect_language
from qkv.serve.api.markup import Markup
from qkv.serve.scheduling.served_model import ServedModel


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with served(all_models()) as found:
        yield found


@pytest.fixture(scope="module")
def models(client: TestClient) -> dict[str, ServedModel]:
    return {one.name: one for one in client.service.models}  # type: ignore[attr-defined]


def post(client: TestClient, path: str, **body: object) -> dict:
    reply = client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


# --- LibreTranslate


def test_translations_are_the_models(client: TestClient, models: dict[str, ServedModel]) -> None:
    found = post(client, "/translate", q=TEXTS[:4], source="en", target="de")
    assert found["translatedText"] == models["en-de"].model.translate(TEXTS[:4])
    one = post(client, "/translate", q=TEXTS[1], source="en", target="de", alternatives=2)
    n_best = [each.text for each in models["en-de"].model.translate([TEXTS[1]], n_best=3)[0].n_best]
    assert [one["translatedText"], *one["alternatives"]] == list(dict.fromkeys(n_best))


def test_a_text_of_several_sentences_is_translated_one_by_one(
    client: TestClient, models: dict[str, ServedModel]
) -> None:
    text = "the dog runs. A man sleeps.\n\n  two women sit"
    found = post(client, "/translate", q=text, source="en", target="de")["translatedText"]
    first, second, third = models["en-de"].model.translate(["the dog runs.", "A man sleeps.", "two women sit"])
    assert found == f"{first} {second}\n\n  {third}"


def test_what_has_no_words_stays_as_it_is(client: TestClient, models: dict[str, ServedModel]) -> None:
    (first,) = models["en-de"].model.translate(["the dog runs."])
    texts = ["42", "...", "the dog runs.\n1.5 - 3", ""]
    found = post(client, "/translate", q=texts, source="en", target="de", alternatives=1)["translatedText"]
    assert found == ["42", "...", f"{first}\n1.5 - 3", ""]


def test_sentences_are_split_and_joined_again() -> None:
    text = 'He met Dr. Smith at 3.5 km. "Why?" he asked. So what!  über\n\nEnde. Ärger'
    pieces = sentences.split(text)
    assert pieces[::2] == ["He met Dr. Smith at 3.5 km.", '"Why?" he asked.', "So what!  über", "Ende.", "Ärger"]
    assert sentences.join(pieces, pieces[::2]) == text


def test_of_html_only_the_prose_is_translated(client: TestClient, models: dict[str, ServedModel]) -> None:
    page = '<!DOCTYPE html><p class="x">the dog\nruns<br/>a man &amp; dog</p><code>the dog</code><script>a<b</script>&nbsp; '
    found = post(client, "/translate", q=page, source="en", target="de", format="html")["translatedText"]
    parts = models["en-de"].model.translate(["the dog runs", "a man & dog"])
    first, second = [part.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") for part in parts]
    assert found == (
        f'<!DOCTYPE html><p class="x">{first}<br/>{second}</p><code>the dog</code><script>a<b</script>&nbsp; '
    )
    kept = '<p>one <span class="a notranslate">two <i>three</i></span> four<!-- five --></p>'
    runs = Markup(kept).runs()
    assert [run.prose() for run in runs] == [["one"], ["four"]]
    assert [run.with_prose(run.prose()) for run in runs] == ["one ", " four"]


def test_inline_tags_go_with_their_words(client: TestClient, models: dict[str, ServedModel]) -> None:
    page = "<p> ein <a href='x'>sehr <b>rotes</b></a>, <i>Auto</i>! </p>"
    (run,) = Markup(page).runs()
    assert run.text == "ein sehr rotes, Auto!"
    ordered = run.with_text("a very red, car!", [(0, 0), (1, 1), (2, 2), (3, 3)])
    assert ordered == " a <a href='x'>very <b>red</b></a>, <i>car</i>! "
    turned = run.with_text("car a & very red,", [(3, 0), (0, 1), (1, 3), (2, 4)])
    assert turned == " <i>car</i> a &amp; <a href='x'>very <b>red</b></a>, "
    assert run.with_text("a very red,", [(0, 0), (1, 1), (2, 2)]) is None  # nothing is left of <i>
    assert run.with_text("very car red", [(1, 0), (3, 1), (2, 2)]) is None  # <i> would be within <a>
    assert Markup("<b>a <i>dog</b> runs</i>").runs()[0].with_text("x y z", [(0, 0), (1, 1), (2, 2)]) is None
    edges = Markup("<p>\xa0ein <b>Auto</b>\xa0</p>").runs()[0]
    assert edges.with_text("\xa0a car\xa0", [(0, 0), (1, 1)]) == "\xa0a <b>car</b>\xa0"
    bar = "".join(
        f"<a>the dog runs over it</a> <a>{n}</a> " for n in range(20)
    )  # no sentence that fits: it is cut at its tags
    found = post(client, "/translate", q=f"<nav>{bar}</nav>", source="en", target="de", format="html")["translatedText"]
    assert found.count("<a>") == found.count("</a>") == 40
    words = ["the", "dog", "runs"]
    translator = models["en-de"]
    (whole,) = translator.model.translate(["the dog runs"], n_best=2)
    linked = translator.align([("the dog runs", whole.tokens)])[0][0][0]
    words[linked] = f"<b>{words[linked]}</b>"
    found = post(client, "/translate", q=" ".join(words), source="en", target="de", format="html")["translatedText"]
    assert found.count("<b>") == found.count("</b>") == 1
    assert html.unescape(found.replace("<b>", "").replace("</b>", "")) == whole.text


def test_languages_are_known_and_guessed(client: TestClient) -> None:
    listed = {one["code"]: one for one in client.get("/languages").json()}
    assert listed["en"] == {"code": "en", "name": "English", "targets": ["de"]} and listed["de"]["targets"] == ["en"]
    german = "Der Hund läuft nicht mit dem Mann in das Haus."
    assert client.post("/detect", data={"q": german}).json()[0]["language"] == "de"
    found = post(client, "/translate", q=german, source="auto", target="en")
    assert found["detectedLanguage"]["language"] == "de" and found["detectedLanguage"]["confidence"] > 50
    assert detect_language("Это русский текст", ["en", "ru", "de"])[0][0] == "ru"
    assert detect_language("12345", ["en", "de"]) == [("en", 0.0), ("de", 0.0)]


# --- OpenAI


def test_completions_are_what_the_model_writes(client: TestClient, models: dict[str, ServedModel]) -> None:
    lm = models["lm"].model
    found = post(client, "/v1/completions", model="lm", prompt=[TEXTS[0], TEXTS[1]], max_tokens=8, temperature=0)
    for choice, text in zip(found["choices"], TEXTS, strict=False):
        assert choice["text"] == "".join(lm.generate(text, 8))
    assert found["usage"]["prompt_tokens"] == sum(len(lm.encode(text)) for text in TEXTS[:2])
    ids = post(client, "/v1/completions", model="lm", prompt=lm.encode(TEXTS[0]), max_tokens=8, temperature=0)
    assert ids["choices"][0]["text"] == found["choices"][0]["text"]


def test_seeds_choices_and_stop_strings(client: TestClient, models: dict[str, ServedModel]) -> None:
    asked = {"model": "lm", "prompt": TEXTS[0], "max_tokens": 12, "temperature": 1.5, "seed": 7}
    three = post(client, "/v1/completions", **asked, n=3)["choices"]
    assert len({choice["text"] for choice in three}) == 3
    again = post(client, "/v1/completions", **asked)["choices"][0]
    assert again == three[0]
    stop = again["text"][3:6]
    cut = post(client, "/v1/completions", **asked, stop=[stop, "zzz"])["choices"][0]
    assert cut["text"] == again["text"][: again["text"].find(stop)] and cut["finish_reason"] == "stop"


def test_log_probabilities_also_of_the_prompt(client: TestClient, models: dict[str, ServedModel]) -> None:
    lm = models["lm"].model
    found = post(
        client, "/v1/completions", model="lm", prompt=TEXTS[0], max_tokens=4, temperature=0, logprobs=3, echo=True
    )
    (choice,) = found["choices"]
    told, ids = choice["logprobs"], lm.encode(TEXTS[0])
    assert choice["text"].startswith(TEXTS[0]) and len(told["tokens"]) == len(told["token_logprobs"])
    table = lm.logits([ids])[0].log_softmax(-1)
    assert told["token_logprobs"][0] is None
    wanted = [table[at, token].item() for at, token in enumerate(ids[1:])]
    assert told["token_logprobs"][1 : len(ids)] == pytest.approx(wanted, abs=1e-4)
    assert told["token_logprobs"][len(ids)] == pytest.approx(table[-1].max().item(), abs=1e-4)
    assert len(told["top_logprobs"][len(ids)]) == 3


def test_vectors_are_the_models(client: TestClient, models: dict[str, ServedModel]) -> None:
    found = post(client, "/v1/embeddings", model="words", input=TEXTS[:3], encoding_format="base64")
    vectors = [struct.unpack("<32f", base64.b64decode(one["embedding"])) for one in found["data"]]
    torch.testing.assert_close(torch.tensor(vectors), models["words"].model.embed(TEXTS[:3]), atol=1e-6, rtol=1e-5)


# --- our own


def test_generate_shows_what_could_have_been_and_goes_on_from_there(
    client: TestClient, models: dict[str, ServedModel]
) -> None:
    for name in ("lm", "en-de"):
        found = post(client, "/api/generate", model=name, prompt=TEXTS[0], max_tokens=6, alternatives=4)
        tokens = found["tokens"]
        assert all(
            token["id"] == token["alternatives"][0]["id"] and len(token["alternatives"]) == 4 for token in tokens
        )
        chances = [[each["probability"] for each in token["alternatives"]] for token in tokens]
        assert all(own == sorted(own, reverse=True) for own in chances)
        prefix = [token["id"] for token in tokens[:2]]
        rest = post(client, "/api/generate", model=name, prompt=TEXTS[0], max_tokens=6, prefix=prefix, alternatives=4)
        same = len(tokens) - 2
        assert [token["id"] for token in rest["tokens"]][:same] == [token["id"] for token in tokens[2:]]
        other = [*prefix[:1], tokens[1]["alternatives"][1]["id"]]
        turned = post(client, "/api/generate", model=name, prompt=TEXTS[0], max_tokens=3, prefix=other)
        c, own = models[name].config, models[name].model
        source = torch.tensor([models[name].prompt_ids(TEXTS[0])])
        start = torch.tensor([[*([1] if name == "en-de" else own.encode(TEXTS[0])), *other]])
        batch = Batch(start, source=source if name == "en-de" else None)
        wanted = greedy(own.network, batch, 3, c.eos_ids, models[name].processor)[0]
        assert [token["id"] for token in turned["tokens"]] == [token for token in wanted if token != 2]


def test_streams_say_the_same(client: TestClient) -> None:
    asked = {"model": "lm", "prompt": TEXTS[1], "max_tokens": 10, "temperature": 1.0, "seed": 5, "alternatives": 2}
    whole = post(client, "/api/generate", **asked)
    lines = client.post("/api/generate", json=asked | {"stream": True}).text.split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    assert "".join(event.get("text", "") for event in events) == whole["text"]
    assert [token for event in events for token in event.get("tokens", [])] == whole["tokens"]
    assert events[-1] == {"finish": whole["finish"]}


def test_translations_with_tokens_and_alignments(client: TestClient, models: dict[str, ServedModel]) -> None:
    found = post(client, "/api/translate", model="en-de", texts=TEXTS[:2], n_best=2, alignments=True, prefix="the")
    wanted = models["en-de"].model.translate(TEXTS[:2], n_best=2, alignments=True, prefix="the")
    for one, own in zip(found["results"], wanted, strict=True):
        assert one["text"] == own.text and one["tokens"] == own.tokens
        assert one["alignment"] == [list(link) for link in own.alignment or []]
        assert [each["text"] for each in one["n_best"]] == [each.text for each in own.n_best]


def test_other_tasks_answer_as_the_library_does(client: TestClient, models: dict[str, ServedModel]) -> None:
    texts = TEXTS[:3]
    own = {name: one.model for name, one in models.items()}
    classes = post(client, "/api/classify", model="classes", texts=[texts[0], [texts[1], texts[2]]])["results"]
    assert [one["label"] for one in classes] == [
        a.label for a in own["classes"].classify([texts[0], (texts[1], texts[2])])
    ]
    tagged = post(client, "/api/tag", texts=texts)["results"]
    assert [[w["tag"] for w in s] for s in tagged] == [[w.tag for w in s] for s in own["tags"].tag(texts)]
    gap = "the [MASK] runs"
    filled = post(client, "/api/fill", texts=gap, top_k=3)["results"][0]
    assert [guess["word"] for guess in filled["gaps"][0]] == [
        guess.word for guess in own["words"].fill([gap], 3)[0].gaps[0]
    ]
    answer = post(client, "/api/answer", question="who runs?", context=texts[2])
    assert (answer["start"], answer["end"]) == own["spans"].answer("who runs?", texts[2])[2:]
    short = post(client, "/api/summarize", texts=texts)["results"]
    assert [one["text"] for one in short] == [one.text for one in own["short"].summarize(texts)]


def test_pictures(client: TestClient, models: dict[str, ServedModel]) -> None:
    from PIL import Image

    picture = Image.new("RGB", (20, 16), (200, 30, 90))
    data = io.BytesIO()
    picture.save(data, "PNG")
    found = post(client, "/api/classify", model="eye", images=[base64.b64encode(data.getvalue()).decode()])["results"]
    assert found[0]["label"] == models["eye"].model.classify([picture])[0].label


def test_looking_inside_says_what_the_library_says(client: TestClient, models: dict[str, ServedModel]) -> None:
    for name, kind in (("lm", "self"), ("en-de", "cross"), ("classes", "self")):
        own, asked = models[name].model.look(TEXTS[1]), {"model": name, "text": TEXTS[1]}
        told = post(client, "/api/look/answers", **asked)
        assert told["tokens"] == own.tokens and told["source"] == own.source
        assert (
            told["answers"]["words"] == own.answers().words
            and {"kind": kind, "layer": 1, "heads": 4, "weighs": True, "walks": True} in told["sites"]
        )
        found = post(client, "/api/look/attention", **asked, layer=1, heads=[2], kind=kind)
        torch.testing.assert_close(
            torch.tensor(found["weights"]), own.attention(1, [2], kind).weights, atol=1e-5, rtol=0
        )
        walked = post(client, "/api/look/walk", **asked, layer=1, head=2, kind=kind)
        assert walked["columns"] == found["columns"] and len(walked["query"][0]) == 8
        torch.testing.assert_close(torch.tensor([walked["weights"]]), torch.tensor(found["weights"]), atol=2e-6, rtol=0)


ROUTES: dict[str, tuple[dict[str, Any], Callable[[Look, str], Any]]] = {
    "lens": ({"top_k": 3, "columns": [1, 0]}, lambda look, kind: look.lens(3, [1, 0])),
    "heads": ({"kind": None}, lambda look, kind: look.heads(kind)),
    "rollout": ({"kind": None}, lambda look, kind: look.rollout(kind)),
    "residual": ({}, lambda look, kind: look.residual()),
    "taps": ({}, lambda look, kind: {"taps": look.taps()}),
    "effects": ({"kind": None, "layer": 1}, lambda look, kind: look.effect_of_heads(None, kind, 1)),
    "attribution": ({"method": "occlusion"}, lambda look, kind: look.attribution("occlusion")),
    "positions": ({"length": 9}, lambda look, kind: look.positions(9)),
}
"""Route -> what is asked, and what the library gives; "kind" is filled in."""


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("name", "kind"), [("lm", "self"), ("en-de", "encoder"), ("classes", "self")])
def test_a_look_route_gives_what_the_library_gives(
    route: str, name: str, kind: str, client: TestClient, models: dict[str, ServedModel]
) -> None:
    given, own = ROUTES[route]
    body = {"model": name} | ({} if route == "positions" else {"text": TEXTS[1]})
    found = post(client, f"/api/look/{route}", **body | given | ({"kind": kind} if "kind" in given else {}))
    with torch.enable_grad():
        expected = plain(own(models[name].model.look(TEXTS[1]), kind))
    assert found.pop("model") == name and found.keys() >= expected.keys()
    numbers = [alike(found[key], value) for key, value in expected.items()]
    assert sum(numbers) >= 3


def alike(a: Any, b: Any) -> int:
    """Compare nested lists and objects, numbers to rounding; return how many numbers there were."""
    if isinstance(b, dict):
        assert a.keys() == b.keys()
        return sum(alike(a[key], b[key]) for key in b)
    if isinstance(b, list):
        assert len(a) == len(b)
        return sum(map(alike, a, b))
    assert a == (pytest.approx(b, abs=1e-5, rel=1e-4) if isinstance(b, float) else b)
    return isinstance(b, int | float)


def test_heads_are_switched_off_for_one_question_only(client: TestClient, models: dict[str, ServedModel]) -> None:
    """What the model writes changes, and is the same as ever for everybody else, also at the same time."""
    plain = post(client, "/api/translate", model="en-de", texts=TEXTS[0], beam=1)["results"][0]["text"]
    heads = [[layer, head] for layer in range(2) for head in range(4)]
    body = {"model": "en-de", "text": TEXTS[0], "heads": heads, "kind": "cross"}
    with ThreadPoolExecutor(4) as pool:
        off = pool.submit(post, client, "/api/look/ablation", **body)
        others = [pool.submit(post, client, "/api/translate", model="en-de", texts=TEXTS[0], beam=1) for _ in range(3)]
        assert {other.result()["results"][0]["text"] for other in others} == {plain}
    found = off.result()
    assert found["before"]["text"] != found["after"]["text"]
    assert found["before"]["answers"]["probabilities"] != found["after"]["answers"]["probabilities"]
    again = post(client, "/api/look/ablation", **(body | {"heads": []}))
    assert again["before"] == again["after"] == found["before"]


def test_both_apis_translate_every_sentence(client: TestClient) -> None:
    """A text of several, joined as it was; /translate gives the same."""
    sentences = ["A man sleeps.", "The dog runs."]
    text = f"{sentences[0]} {sentences[1]}\n42"
    each = post(client, "/api/translate", model="en-de", texts=sentences, n_best=2)["results"]
    (whole,) = post(client, "/api/translate", model="en-de", texts=text, n_best=2, alignments=True)["results"]
    assert whole["text"] == f"{each[0]['text']} {each[1]['text']}\n42"
    assert whole["tokens"] == each[0]["tokens"] + each[1]["tokens"] and len(whole["n_best"]) == 2
    assert {source for source, _ in whole["alignment"]} <= set(range(7)) and whole["alignment"][-1][
        0
    ] == 6  # "42" is itself
    assert post(client, "/translate", q=text, source="en", target="de")["translatedText"] == whole["text"]
    split = post(client, "/api/sentences", text=text)["sentences"]
    assert [(one["text"], one["translated"]) for one in split] == [*((one, True) for one in sentences), ("42", False)]
    assert "".join(one["text"] + one["space"] for one in split) == text


def test_switching_off_computes_what_is_asked_for_alone(client: TestClient, models: dict[str, ServedModel]) -> None:
    """One pass for the numbers of each side, the text only where it is wanted, and a layer's heads without the others."""
    body = {"model": "lm", "text": TEXTS[0], "heads": [[0, 0], [0, 1]]}
    passes: list[int] = []
    handle = models["lm"].model.network.register_forward_pre_hook(lambda *_: passes.append(1))
    numbers = post(client, "/api/look/ablation", **body, max_tokens=0)
    assert len(passes) == 2
    same = post(client, "/api/look/ablation", **(body | {"heads": []}), max_tokens=0)
    assert len(passes) == 3 and same["before"] == same["after"] == numbers["before"]
    handle.remove()
    whole = post(client, "/api/look/ablation", **body, max_tokens=5)
    assert numbers["after"] == whole["after"] | {"text": None}
    texts = [post(client, "/api/look/generate", **(body | {"heads": off}), max_tokens=5) for off in ([], body["heads"])]
    assert [one["text"] for one in texts] == [whole["before"]["text"], whole["after"]["text"]]
    asked = {"model": "lm", "text": TEXTS[0], "position": 1}
    every, last = (post(client, "/api/look/effects", **asked, **more) for more in ({}, {"layer": 1}))
    assert last["layers"] == [1] and last["alone"][0] == pytest.approx(every["alone"][1], abs=1e-5)


def test_what_heads_do_is_asked_at_any_token(client: TestClient, models: dict[str, ServedModel]) -> None:
    """How likely each token is, and what each head does for it: as the library says at that place."""
    for name, kind in (("lm", "self"), ("en-de", "cross")):
        look, asked = models[name].model.look(TEXTS[0]), {"model": name, "text": TEXTS[0]}
        expected = post(client, "/api/look/ablation", **asked, heads=[[0, 1]], kind=kind)["after"]["expected"]
        assert [one["token"] for one in expected] == look.tokens[1:]
        with look.without([(0, 1)], kind=kind):
            everything = look.answers(1, 10_000)
        chances = dict(zip(everything.words, everything.probabilities.tolist(), strict=True))
        near = [p for word, p in chances.items() if word.strip() == look.tokens[2].strip()]
        assert any(abs(p - expected[1]["probability"]) < 1e-5 for p in near)
        told = post(client, "/api/look/effects", **asked, kind=kind, position=1)["alone"]
        own = look.effect_of_heads(look.target(1, answer=int(look.batch.inputs[0, 2])), kind).alone
        torch.testing.assert_close(torch.tensor(told), own, atol=1e-4, rtol=1e-5)


def test_a_model_without_answers_can_be_looked_into() -> None:
    with served([ServedModel("vectors", model("bert-base", head="none", max_length=64))]) as client:
        found = post(client, "/api/look/answers", text=TEXTS[1])
        assert found["answers"] is None and found["sites"]
        assert client.get("/api/models").json()["models"][0]["attention"] == ["self"]


def test_patching_and_words(client: TestClient, models: dict[str, ServedModel]) -> None:
    own, texts = models["lm"].model, ["a man rides a bicycle", "A man sleeps."]
    told = [
        post(client, "/api/look/patch", model="lm", text="the dog runs", other="the man runs", what="attention"),
        post(client, "/api/look/neighbours", model="lm", word="dog", top_k=3),
        post(client, "/api/look/contexts", model="lm", word="man", texts=texts, layer=0),
    ]
    with torch.enable_grad():
        expected = [own.look("the dog runs").patch(own.look("the man runs"), None, "attention"),
                    own.neighbours("dog", 3), own.contexts("man", texts, 0)]  # fmt: skip
    for found, wanted in zip(told, expected, strict=True):
        assert alike({key: value for key, value in found.items() if key != "model"}, plain(wanted)) > 2


def test_models_say_what_they_can(client: TestClient) -> None:
    found = {one["name"]: one for one in client.get("/api/models").json()["models"]}
    can = {name: [each for each in one["can"] if each not in ("embed", "look")] for name, one in found.items()}
    assert can == {
        "en-de": ["generate", "translate"], "de-en": ["generate", "translate"], "lm": ["generate", "chat"],
        "short": ["generate", "summarize"], "classes": ["classify"], "tags": ["tag"], "words": ["fill"], "spans": ["answer"],
        "eye": ["classify"],
    }  # fmt: skip
    assert all(("embed" in one["can"]) == (name != "eye") and "look" in one["can"] for name, one in found.items())
    assert found["lm"]["layers"] == 2 and found["lm"]["heads"] == 4 and found["lm"]["family"] == "decoder"


def test_documentation_and_metrics_need_nothing_from_elsewhere(client: TestClient) -> None:
    post(client, "/translate", q=TEXTS[0], source="en", target="de")
    post(client, "/v1/completions", model="lm", prompt=TEXTS[0], max_tokens=2)
    page = client.get("/docs")
    assert "POST /v1/chat/completions" in page.text and "http://" not in page.text and "https://" not in page.text
    policy = page.headers["content-security-policy"]
    assert (
        "default-src 'none'" in policy
        and "unsafe" not in policy
        and page.headers["x-content-type-options"] == "nosniff"
    )
    text = client.get("/metrics").text
    assert 'qkv_requests_total{route="/translate",status="200"}' in text and 'qkv_tokens_total{model="lm"}' in text
    assert client.get("/").status_code == 200
