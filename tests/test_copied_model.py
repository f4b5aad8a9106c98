"""The task travels with the model: best/ copied to another place, without its run, does all that the run could.

Every verb that applies, the methods of `qkv.load` and a server's answers are compared with those of the run's own folder.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import Run
from served import TEXTS, language_model, served

import qkv
from qkv.config.usage import DecodingDefaults, Usage
from qkv.convert.folder import SEALED, read_usage
from qkv.convert.manifest import seal
from qkv.errors import FileError, QkvError
from qkv.serve.scheduling.served_model import load_for_serving
from qkv.train.rescore import task_name

SMALL = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 32, "max_length": 128, "dropout": 0.0}
STEPS = {"steps": 6, "evaluate_every": 3, "save_every": 6, "warmup": 1, "learning_rate": 0.03}
GRAMMAR = {
    "train": [{"grammar": 80}],
    "valid": {"grammar": 6},
    "test": {"grammar": 6},
    "vocab_size": 200,
    "max_length": 40,
}
SEARCH = {"beam": 3, "length_penalty": 0.3, "length_formula": "gnmt", "max_length": 9}
"""Far from the defaults, so that a model that forgot them answers otherwise."""
TEXT, SECOND = "The old man sees a dog.", "A woman sleeps."


def recipe(task: str, model: dict[str, Any], data: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"task": task, "model": {**SMALL, **model}, "data": {**GRAMMAR, **(data or {})}, "train": STEPS, **more}


def train(kind: str, place: Path) -> Path:
    """A tiny run of each kind."""
    seq2seq: dict[str, Any] = {"family": "encoder-decoder"}
    if kind == "translator":
        languages = {"source": "en", "target": "gsw"}
        made = recipe("translation", seq2seq, languages, decode={**SEARCH, "extra_length": 4})
    elif kind == "tagger":
        made = recipe("tagging", {"family": "encoder", "head": "tags"}, {"tokenizer": "wordpiece"})
    elif kind == "pairs":
        rows = [f"{TEXT}\t{SECOND}\tno", f"{TEXT}\t{TEXT}\tyes", f"{SECOND}\t{TEXT}\tno", f"{SECOND}\t{SECOND}\tyes"]
        (place / "pairs.tsv").write_text("\n".join(["one\ttwo\tsame", *rows]) + "\n")
        table = {"table": str(place / "pairs.tsv"), "columns": ["one", "two", "same"]}
        data = {"train": [table], "valid": table, "test": table}
        made = recipe("classification", {"family": "encoder", "head": "classes"}, data)
    elif kind == "summariser":
        made = recipe("summary", seq2seq, {"target_length": 10}, decode=SEARCH)
    elif kind == "decoder summariser":
        made = recipe("summary", {"family": "decoder"}, {"target_length": 10}, decode=SEARCH)
    elif kind == "captioner":
        shapes = {"train": [{"shapes": 40}], "valid": {"shapes": 4}, "test": {"shapes": 4}}
        pictures = {**seq2seq, "image_size": 16, "patch_size": 8, "n_channels": 3}
        made = recipe("captions", pictures, shapes, decode=SEARCH)
    elif kind == "conversation":
        made = recipe("conversation", {"family": "decoder"}, {"max_length": 100})
    else:
        language_model().save(place / "base")
        text = {"train": [{"text": " ".join(TEXTS)}], "valid": {"text": TEXTS[0]}, "test": {"text": TEXTS[1]}}
        data = {**text, "max_length": 32, "batch_tokens": 64}
        made = {"task": "language", "model": {}, "data": data, "train": STEPS, "tune": {"start": str(place / "base")}}
    return qkv.train(made, place / "run", quiet=True).folder


@pytest.fixture(
    scope="module",
    params=["translator", "tagger", "pairs", "summariser", "decoder summariser", "captioner", "conversation", "chat"],
)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Path]:
    """Kind, folder of a run, and its best/ copied elsewhere."""
    place = tmp_path_factory.mktemp(request.param.replace(" ", "-"))
    folder = train(request.param, place)
    copy = tmp_path_factory.mktemp("elsewhere") / "my-model"
    shutil.copytree(folder / "best", copy)
    return request.param, folder, copy


def picture(place: Path) -> Path:
    from PIL import Image

    Image.new("RGB", (16, 16), (200, 30, 30)).save(place / "red.png")
    return place / "red.png"


def verbs(kind: str, place: Path) -> list[tuple[str, ...]]:
    """Commands that apply to a kind of model; MODEL is its folder, and a last `<text` its standard input."""
    (place / "lines.txt").write_text(f"{TEXT}\n{SECOND}\n")
    (place / "lines.de").write_text("Der alte Mann.\nEine Frau.\n")
    (place / "table.tsv").write_text(f"gsw\tother\ten\nx\ty\t{TEXT}\n")
    lines, table = str(place / "lines.txt"), str(place / "table.tsv")
    shared = [("params", "MODEL")]
    text = [*shared, ("embed", "MODEL", lines), ("look", "MODEL", TEXT, "--json")]
    pairs = ("--data", lines, "--data", str(place / "lines.de"))
    if kind == "translator":
        evaluate = [("evaluate", "MODEL", *pairs), ("evaluate", "MODEL", "--data", table, "--columns", "en,gsw")]
        return [
            *text,
            ("translate", "MODEL", lines, "--json"),
            ("translate", "MODEL", table),
            ("generate", "MODEL", TEXT),
            *evaluate,
        ]
    if kind == "tagger":
        (place / "tags.conll").write_text("The\tDET\nman\tNOUN\n")
        return [*text, ("tag", "MODEL", lines), ("evaluate", "MODEL", "--data", str(place / "tags.conll"))]
    if kind == "pairs":
        new = place / "new.tsv"
        new.write_text(f"one\tsame\ttwo\n{TEXT}\tyes\t{TEXT}\n{SECOND}\tno\t{TEXT}\n")
        (place / "pairs.txt").write_text(f"{TEXT}\t{SECOND}\n")
        look = ("look", "MODEL", TEXT, "--pair", SECOND, "--json")
        return [
            *text[:-1],
            look,
            ("classify", "MODEL", str(place / "pairs.txt")),
            ("evaluate", "MODEL", "--data", str(new)),
        ]
    if kind in ("summariser", "decoder summariser"):
        found = [
            *text,
            ("summarize", "MODEL", lines, "--json"),
            ("generate", "MODEL", TEXT),
            ("evaluate", "MODEL", *pairs),
        ]
        return [one for one in found if kind == "summariser" or one[0] != "generate"]
    if kind == "captioner":
        red = str(picture(place))
        (place / "captions.tsv").write_text(f"path\tcaption\n{red}\ta red square\n")
        evaluate = ("evaluate", "MODEL", "--data", str(place / "captions.tsv"), "--columns", "path,caption")
        return [*shared, ("describe", "MODEL", red, "--json"), ("look", "MODEL", red, "--json"), evaluate]
    (place / "new.txt").write_text("the dog runs and a man sleeps\n")
    talk = [{"role": "user", "content": TEXT}, {"role": "assistant", "content": SECOND}]
    (place / "talk.jsonl").write_text(json.dumps({"messages": talk}) + "\n")
    new = str(place / ("talk.jsonl" if kind == "conversation" else "new.txt"))
    chat = [
        ("chat", "MODEL", "--max-new-tokens", "8", "--json", f"<{TEXTS[0]}\n"),
        ("generate", "MODEL", TEXTS[0], "--chat"),
    ]
    return [*text, *chat, ("generate", "MODEL", TEXTS[0]), ("evaluate", "MODEL", "--data", new)]


def test_every_verb_does_the_same(trained: tuple[str, Path, Path], run: Run, tmp_path: Path) -> None:
    kind, folder, copy = trained
    for command in verbs(kind, tmp_path):
        given = command[-1][1:] if command[-1].startswith("<") else None
        words = command if given is None else command[:-1]
        asked = [
            [str(model) if word == "MODEL" else word for word in words] for model in (folder, folder / "best", copy)
        ]
        run_, best, copied = (run(*one, given=given) for one in asked)
        assert run_[0] == 0, (command, run_[2])
        assert run_[1].replace(str(folder), "MODEL") == copied[1].replace(str(copy), "MODEL"), command
        assert best[:2] == run_[:2] or command[0] == "params", command


def test_an_opened_model_answers_alike(trained: tuple[str, Path, Path], tmp_path: Path) -> None:
    kind, folder, copy = trained
    one, other = qkv.load(folder, device="cpu"), qkv.load(copy, device="cpu")
    assert repr(one) == repr(other) and one.usage == other.usage and one.task is not None
    other.save(tmp_path / "saved")
    other.export(tmp_path / "ours", "qkv")
    other.export(tmp_path / "ours" / "again", "qkv")
    for path in ("saved", "ours", "ours/again"):
        assert read_usage(tmp_path / path) == one.usage  # what is saved again says the same
    if kind == "translator":
        own = one.translate([TEXT], beam=3, length_penalty=0.3, length_formula="gnmt", max_length=9)
        assert one.languages == ("en", "gsw") and one.translate([TEXT]) == other.translate([TEXT]) == own
        assert one.translate([TEXT], scores=True, beam=1, max_length=60) == other.translate(
            [TEXT], scores=True, beam=1, max_length=60
        )
    elif "summariser" in kind:
        assert one.summarize([TEXT]) == other.summarize([TEXT])
        assert len(one.summarize([TEXT])[0].tokens) <= 9
        assert one.look(TEXT).tokens == other.look(TEXT).tokens
    elif kind == "captioner":
        found = other.describe([picture(tmp_path)])
        assert one.describe([picture(tmp_path)]) == found and len(found[0].tokens) <= 9
        assert found == one.describe(
            [picture(tmp_path)], beam=3, length_penalty=0.3, length_formula="gnmt", max_length=9
        )
    elif kind == "pairs":
        assert one.usage.pairs and one.classify([(TEXT, SECOND)]) == other.classify([(TEXT, SECOND)])
    elif kind == "tagger":
        assert one.tag([TEXT]) == other.tag([TEXT])
    else:
        assert one.chat([{"role": "user", "content": TEXTS[0]}], max_new_tokens=8) == other.chat(
            [{"role": "user", "content": TEXTS[0]}], max_new_tokens=8
        )


def test_a_server_answers_alike(trained: tuple[str, Path, Path], tmp_path: Path) -> None:
    kind, folder, copy = trained
    with served(
        [load_for_serving(path, device="cpu", name=name) for name, path in (("run", folder), ("copy", copy))]
    ) as client:
        told = [{**one, "name": ""} for one in client.get("/api/models").json()["models"]]
        assert told[0] == told[1]
        about = told[0]
        able = {"translator": "translate", "tagger": "tag", "pairs": "classify", "summariser": "summarize",
                "decoder summariser": "summarize", "captioner": "describe", "chat": "chat", "conversation": "chat"}  # fmt: skip
        assert able[kind] in about["can"] and about["pairs"] is (kind == "pairs")
        assert (about["source"], about["target"]) == (("en", "gsw") if kind == "translator" else (None, None))
        shown = ("translator", "tagger", "summariser", "decoder summariser", "conversation")
        assert bool(about["examples"]) is (kind in shown)
        assert about["data"] == {"pairs": "pairs.tsv", "captioner": "shapes", "chat": "text"}.get(kind, "grammar")
        for path, fields in requests(kind, tmp_path):
            run_, copied = (client.post(path, json={"model": name, **fields}) for name in ("run", "copy"))
            assert run_.status_code == 200, run_.text
            own = dict.fromkeys(("model", "id", "created"))
            assert run_.json() | own == copied.json() | own, path
        if kind == "translator":
            best = client.post("/api/translate", json={"model": "copy", "texts": [TEXT]}).json()["results"][0]["text"]
            assert best == qkv.load(copy, device="cpu").translate([TEXT])[0]  # and as the command does
            asked = {"q": TEXT, "source": "en", "target": "gsw"}
            assert client.post("/translate", json=asked).json()["translatedText"] == best
        if "summariser" in kind:
            best = client.post("/api/summarize", json={"model": "copy", "texts": [TEXT]}).json()["results"][0]["text"]
            assert best == qkv.load(copy, device="cpu").summarize([TEXT])[0].text
        if kind == "pairs":
            assert client.post("/api/classify", json={"model": "copy", "texts": [TEXT]}).status_code == 400


def requests(kind: str, place: Path) -> list[tuple[str, dict[str, Any]]]:
    """Paths and bodies of requests that apply to a kind of model."""
    import base64

    if kind == "captioner":
        image = base64.b64encode(picture(place).read_bytes()).decode()
        return [("/api/describe", {"images": [image]}), ("/api/look/attention", {"image": image})]
    look = {"text": TEXT, **({"pair": SECOND} if kind == "pairs" else {})}
    found: list[tuple[str, dict[str, Any]]] = [("/api/look/attention", look), ("/api/embed", {"texts": [TEXT]})]
    more: dict[str, list[tuple[str, dict[str, Any]]]] = {
        "translator": [("/api/translate", {"texts": [TEXT, SECOND]}), ("/api/generate", {"prompt": TEXT})],
        "tagger": [("/api/tag", {"texts": [TEXT]})],
        "pairs": [("/api/classify", {"texts": [[TEXT, SECOND]]})],
        "summariser": [("/api/summarize", {"texts": [TEXT]}), ("/api/generate", {"prompt": TEXT})],
        "decoder summariser": [("/api/summarize", {"texts": [TEXT]}), ("/api/generate", {"prompt": TEXT})],
        "chat": [("/api/generate", {"prompt": TEXT, "chat": True, "max_tokens": 8}),
                 ("/v1/chat/completions", {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 8, "temperature": 0})],
    }  # fmt: skip
    return found + more["chat" if kind == "conversation" else kind]


# --- other folders


def test_a_folder_of_format_0_1_opens_with_what_it_says(tmp_path: Path) -> None:
    model = qkv.load("example", device="cpu")
    model.save(tmp_path / "old")
    path = tmp_path / "old" / "config.json"
    values = json.loads(path.read_text())
    assert values["format"] == "0.2"
    path.write_text(json.dumps({name: values[name] for name in ("model_type", "qkv_version", "model")}))
    seal(tmp_path / "old", SEALED)
    old = qkv.load(tmp_path / "old", device="cpu")
    assert old.usage == Usage() and old.task is None and old.languages is None
    assert old.translate([TEXTS[3]]) == model.translate([TEXTS[3]])  # beam 4, as ever


def test_training_again_adds_the_usage_to_an_old_run(tmp_path: Path) -> None:
    """A run of format 0.1 that has ended: the same command scores nothing again and completes best/."""
    made = recipe("translation", {"family": "encoder-decoder"}, decode=SEARCH)
    folder = qkv.train(made, tmp_path / "run", quiet=True).folder
    path, usage = folder / "best" / "config.json", read_usage(folder / "best")
    values = json.loads(path.read_text())
    path.write_text(json.dumps({name: values[name] for name in ("model_type", "qkv_version", "model")}))
    seal(folder / "best", SEALED)
    assert qkv.load(folder).usage == Usage() and task_name(folder) == "translation"  # which its recipe says
    weights = (folder / "best" / "model.safetensors").read_bytes()
    qkv.train(made, tmp_path / "run", quiet=True)
    assert read_usage(folder / "best") == usage == qkv.load(folder).usage
    assert usage.decoding.beam == 3 and usage.examples and (folder / "best" / "README.md").exists()
    assert (folder / "best" / "model.safetensors").read_bytes() == weights


@pytest.mark.parametrize(("change", "said"), [
    ({"format": "0.4"}, "reads 0.1, 0.2 and 0.3: update qkv"), ({"usage": {"taks": "translation"}}, "'task'"),
    ({"usage": {"task": "cooking"}}, "usage.task"), ({"usage": []}, "usage"), ({"extra": 1}, "must hold"),
    ({"usage": {"decoding": {"beam": "4"}}}, "usage.decoding.beam"),
])  # fmt: skip
def test_a_wrong_usage_is_refused_in_a_line(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    qkv.load("example", device="cpu").save(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    seal(tmp_path / "model", SEALED)
    with pytest.raises(QkvError, match=said) as problem:
        qkv.load(tmp_path / "model")
    assert "\n" not in str(problem.value)


def test_word_vectors_have_a_loader_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("2 3\ndog 1 2 3\ncat 1 2 4\n")
    with pytest.raises(QkvError, match=r"qkv\.load_vectors\('.*v\.txt'\)"):
        qkv.load(tmp_path / "v.txt")
    vectors = qkv.load_vectors(tmp_path / "v.txt")
    assert vectors.nearest("dog", 1)[0].word == "cat"
    vectors.save(tmp_path / "folder")
    with pytest.raises(QkvError, match="load_vectors"):
        qkv.load(tmp_path / "folder")
    with pytest.raises(FileError):
        qkv.load_vectors(tmp_path / "nothing")


def test_settings_given_come_before_those_of_the_model() -> None:
    own = DecodingDefaults(beam=2, length_penalty=0.0)
    found = own.resolve(beam=(None, 4), length_penalty=(None, 1.0), early=(None, False), max_length=(7, 64))
    assert found == {"beam": 2, "length_penalty": 0.0, "early": False, "max_length": 7}
    assert own.resolve(beam=(5, 4)) == {"beam": 5}
