"""Pictures of what look/ finds, pages and photographs of them, and `qkv look`."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from test_look_words import TEXTS, make

import qkv
from qkv.data.grammar import Grammar
from qkv.errors import QkvError
from qkv.look import plots
from qkv.look.probe import probe

Run = Callable[..., tuple[int, str, str]]


def test_every_result_has_a_picture_and_strange_tokens_are_shown_as_they_are() -> None:
    pytest.importorskip("plotly")
    model = make("transformer-base")
    look = model.look("a man </script> rides", "a dog")
    results = [look.attention(), look.attention(head=1), look.lens(), look.attribution("gradient", [0, 1]), look.answers(), look.heads(),
               look.rollout(), look.positions(8), look.effect_of_heads(), look.patch(look, what="heads"), look.looks_at(0, [1, 2]),
               model.neighbours("man"), model.looker().alignment_errors([Grammar(0).pair(0)])]  # fmt: skip
    results += [look.walk(), look.residual(), look.residual(source=True), look.positions(8, source=True)]
    results += [
        probe(torch.randn(8, 4), ["a", "b"] * 4),
        make("bert-base", head="tags", n_classes=3).look("a").everywhere(),
    ]
    for one in results:
        assert one.figure().to_dict()["data"]
    effect = look.effect_of_heads()
    lost = torch.tensor(effect.figure().to_dict()["data"][0]["z"])
    torch.testing.assert_close(lost, effect.whole - effect.alone)
    assert effect.word == look.answers().words[0] and look.walk().rows == look.sides("cross")[0]
    assert "plotly" in results[4]._repr_html_()
    assert make("bert-base").contexts("man", TEXTS[:1] * 2).figure().to_dict()["data"]
    page = plots.page("<b>title", {"attention": results[0], "lens": results[2]})
    assert page.count("</html>") == 1 and "<h1>&lt;b&gt;title" in page
    assert "&lt;s&gt;" in json.dumps(results[3].figure().to_dict(), default=str)
    assert "src=" not in page.split("</head>")[0] and page.count("<h2>") == 2


def test_the_command_writes_a_page(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    make("transformer-base").save(tmp_path / "model")
    out = tmp_path / "seen.html"
    code, said, _ = run("look", tmp_path / "model", "the dog runs", "--target", "a man", "--out", out)
    assert code == 0 and "attention, lens, attribution" in said and out.read_text().startswith("<!doctype html>")
    asked = ["look", tmp_path / "model", "the dog runs", "--target", "a"]
    code, said, _ = run(*asked, *"--what attention --layer 0 --kind encoder --json".split())
    model = qkv.load(tmp_path / "model")
    wanted = model.look("the dog runs", "a").attention(0, kind="encoder")
    found = json.loads(said)["attention"]
    assert code == 0 and found["rows"] == wanted.rows
    torch.testing.assert_close(torch.tensor(found["weights"]), wanted.weights)
    for arguments in (["--layer", "9", "-w", "attention"], ["-w", "patch"], ["--out", "x.pdf"], ["-w", "attribution", "--method", "x"],
                      ["-w", "attention", "--kind", "self"]):  # fmt: skip
        code, _, problem = run(*asked, *arguments)
        assert code == 2 and problem.startswith("error: ") and problem.count("\n") == 1
    code, said, _ = run(*asked, *"--what walk --what residual --what answers --position 0 --head 1 --json".split())
    found = json.loads(said)
    assert (
        code == 0
        and found["walk"]["head"] == 1
        and found["answers"]["at"] == "<s>"
        and len(found["residual"]["points"]) == 7
    )
    if not any(map(shutil.which, plots.BROWSERS)):
        code, _, problem = run(*asked, "-w", "answers", "--out", out, "--png", tmp_path / "x.png")
        assert code == 2 and "browser" in problem


def test_a_png_has_room_for_all_pictures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    look = make("gpt2").look("the dog runs")
    found = {"attention": look.attention(), "answers": look.answers(k=20), "lens": look.lens()}
    width, height = plots.room(found)
    layouts = [one.figure().layout for one in found.values()]
    assert width > max(one.width for one in layouts) and height > sum(one.height for one in layouts) + 3 * 60

    def hangs(command: list[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(command, 1)

    monkeypatch.setattr(plots.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(plots.subprocess, "run", hangs)
    with pytest.raises(QkvError, match="no picture"):
        plots.png("<p>", tmp_path / "x.png")


def test_without_plotly_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    result = make("gpt2").look("the dog").answers()
    with pytest.raises(QkvError, match=r"pip install \"qkv\[look\]\""):
        result.figure()
    assert result._repr_html_() is None
