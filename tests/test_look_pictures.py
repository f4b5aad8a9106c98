"""Pictures of what look/ finds, pages and photographs of them, and `qkv look`."""

import html
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from test_look_words import TEXTS, make

import qkv
from qkv.config.usage import Usage
from qkv.data.grammar import Grammar
from qkv.errors import QkvError
from qkv.look import report
from qkv.look.probe import probe

Run = Callable[..., tuple[int, str, str]]


def test_every_result_has_a_picture_and_strange_tokens_are_shown_as_they_are() -> None:
    pytest.importorskip("plotly")
    model = make("transformer-base")
    look = model.look("a man </script> rides", "a dog")
    results = [look.attention(), look.attention(head=1), look.lens(), look.attribution("gradient", [0, 1]), look.answers(), look.heads(),
               look.rollout(), look.positions(8), look.effect_of_heads(), look.patch(look, what="heads"), look.attention_to(0, [1, 2]),
               model.neighbours("man"), model.looker().alignment_errors([Grammar(0).pair(0)])]  # fmt: skip
    results += [look.walk(), look.residual(), look.residual(source=True), look.positions(8, source=True)]
    results += [
        probe(torch.randn(8, 4), ["a", "b"] * 4),
        make("bert-base", head="tags", n_classes=3).look("a").token_answers(),
    ]
    for one in results:
        assert one.figure().to_dict()["data"]
    effect = look.effect_of_heads()
    lost = torch.tensor(effect.figure().to_dict()["data"][0]["z"])
    torch.testing.assert_close(lost, effect.whole - effect.alone)
    assert effect.word == look.answers().words[0] and look.walk().rows == look.sides("cross")[0]
    assert "plotly" in results[4]._repr_html_()
    assert make("bert-base").contexts("man", TEXTS[:1] * 2).figure().to_dict()["data"]
    assert "&lt;s&gt;" in json.dumps(results[3].figure().to_dict(), default=str)


def test_the_report_explains_every_result_and_needs_nothing_else() -> None:
    """One h1; of each result a heading, a sentence and the numbers of its picture. No plotly, no address, few bytes."""
    model = make("transformer-base")
    look = model.look("a man </script> rides", "a dog")
    results = {"attention": look.attention(), "lens": look.lens(), "attribution": look.attribution("integrated"), "answers": look.answers(),
               "heads": look.heads(), "rollout": look.rollout(), "positions": look.positions(8), "effect": look.effect_of_heads(),
               "patch": look.patch(look), "walk": look.walk(), "residual": look.residual(), "neighbours": model.neighbours("man"),
               "pull": look.attention_to(0, [1]), "alignment": model.looker().alignment_errors([Grammar(0).pair(0)]),
               "probe": probe(torch.randn(8, 4), ["a", "b"] * 4), "contexts": make("bert-base").contexts("man", TEXTS[:1] * 2),
               "tags": make("bert-base", head="tags", n_classes=3).look("a").token_answers()}  # fmt: skip
    page = report.page(["<b>title", "second"], results)
    assert (
        page.count("</html>") == page.count("<h1>") == 1 and "<h1>&lt;b&gt;title</h1><p class=text>second</p>" in page
    )
    assert "src=" not in page and "http" not in page and "plotly" not in page and len(page) < 100_000
    said = [one.explain() for one in results.values()]
    assert len(set(said)) == len(said) and all(one.endswith(".") and one in html.unescape(page) for one in said)
    drawn = re.findall(r'<script type="application/json">(.*?)</script>', page)
    assert len(drawn) == len(results) == page.count("<section>")
    weights = json.loads(drawn[0])["panels"]["head 1"]
    torch.testing.assert_close(torch.tensor(weights), results["attention"].weights[1], atol=1e-4, rtol=1e-3)
    assert html.escape(results["patch"].note) in page and "color-scheme: light dark" in page
    assert f"{abs(float(results['attribution'].gap[0])):.2g} of" in results["attribution"].explain()


@pytest.mark.skipif(not any(map(shutil.which, report.BROWSERS)), reason="no browser")
def test_the_report_is_drawn_by_its_script(tmp_path: Path) -> None:
    """A cell for every weight, bars for the answers, and a photograph as large as the page."""
    look = make("gpt2").look("the dog runs")
    found = {"attention": look.attention(), "answers": look.answers(k=7), "lens": look.lens()}
    (tmp_path / "look.html").write_text(report.page(["the dog runs"], found))
    browser = next(name for name in report.BROWSERS if shutil.which(name))
    dom = report.run_browser(browser, "--dump-dom", (tmp_path / "look.html").as_uri())
    size = len(look.tokens)
    assert dom.count('style="--share') == size * size + size * len(found["lens"].points) and dom.count("<option") == 5
    assert dom.count('<tr><th scope="row"') == size + 7 + len(found["lens"].points)
    assert report.page_size(dom)[1] > 800
    report.png((tmp_path / "look.html").read_text(), tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 10_000


def test_pictures_name_attention_and_sublayers_as_the_page_does() -> None:
    look = make("transformer-base").look("a man rides", "a dog")
    assert look.attention(1, 0, "encoder").picture().title == "encoder self-attention, layer 1"
    assert look.walk(1, 0, "cross").picture().title.startswith("cross-attention, layer 1, head 0")
    assert make("gpt2").look("a dog").attention(0).picture().title == "self-attention, layer 0"
    for result in (look.lens(), look.residual()):
        shown = [row.partition(" ")[2] for row in result.picture().rows if row[0].isdigit()]
        assert set(shown) == {"attention", "cross-attention", "feed-forward"}
        assert "1 cross" in result.points  # the JSON keeps the short names


def test_titles_and_words_have_room_and_nothing_lies_over_them() -> None:
    """A letter is 7 pixels wide or more: so is its share of a cell, and a title ends before its picture does."""
    pytest.importorskip("plotly")
    model = make("transformer-base")
    look = model.look("a man rides", "a dog")
    lens, long = look.lens(), "incomprehensibilities"
    lens.words[0][1][0] = long
    results = [lens, look.attention(), look.attribution("gradient"), look.heads(), look.answers(), look.walk(), look.patch(look),
               model.neighbours("bicycleman"), make("bert-base").contexts("man", TEXTS[:1] * 2)]  # fmt: skip
    for one in results:
        layout, data = (one.figure().to_dict()[name] for name in ("layout", "data"))
        assert 7 * len(layout["title"]["text"]) + 15 < layout["width"] and "<br>" not in layout["title"]["text"]
        if data[0].get("text") and data[0]["type"] == "heatmap":
            cell = (layout["width"] - layout["margin"]["l"] - layout["margin"]["r"]) / len(data[0]["z"][0])
            words = [word for row in data[0]["customdata"] for word in row]
            assert cell >= 7 * max(map(len, words)) and data[0]["textfont"]["size"] >= 12
        for menu in layout.get("updatemenus", ()):  # between title and columns, from the left edge of the table on
            assert (menu["x"], menu["xanchor"]) == (0, "left") and layout["margin"]["t"] >= menu["pad"]["b"] + 44 + 40
            assert layout["width"] - layout["margin"]["l"] >= 7 * max(len(one["label"]) for one in menu["buttons"])
    assert long in results[0].figure().to_dict()["data"][0]["text"][0]
    many = (
        model.look([5] * 400, "a").attention(0, 0, "encoder").figure().layout
    )  # of many tokens names still stand apart
    assert (many.width - many.margin.l - many.margin.r) / 401 > 14


def test_what_is_said_of_a_regression() -> None:
    """Its score, in every picture: no probability, and no per cent of anything."""
    pytest.importorskip("plotly")
    model = make("bert-base", head="classes", n_classes=1)
    look, score = model.look("the dog runs"), model.classify(["the dog runs"])[0].score
    results = {
        "answers": look.answers(),
        "lens": look.lens(),
        "effect": look.effect_of_heads(),
        "attribution": look.attribution("gradient"),
    }
    for one in results.values():
        layout = one.figure().to_dict()["layout"]
        assert "score" in layout["title"]["text"]
        said = json.dumps([layout["title"], layout["xaxis"], layout["yaxis"]])
        assert not any(word in said for word in ("probab", "likel", "answer", "%", "logit"))
    assert f"{score:.3f}" in results["answers"].figure().layout.title.text
    assert results["lens"].figure().data[0].text[-1][0] == f"{score:.2f}"
    bar = results["answers"].figure()
    assert min(bar.layout.xaxis.range) <= 0 <= max(bar.layout.xaxis.range) and list(bar.data[0].text) == [
        f"{score:.3g}"
    ]
    page = report.page(["the dog runs"], results)
    assert "<h2>Score</h2>" in page and "<h2>Predictions</h2>" not in page
    assert not any(word in one.explain() for one in results.values() for word in ("probab", "likel", "logit"))


def test_the_command_writes_a_page(run: Run, tmp_path: Path) -> None:
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
    if not any(map(shutil.which, report.BROWSERS)):
        code, _, problem = run(*asked, "-w", "answers", "--out", out, "--png", tmp_path / "x.png")
        assert code == 2 and "browser" in problem


def test_the_page_shows_both_texts(run: Run, tmp_path: Path) -> None:
    make("bert-base", head="classes", n_classes=1).save(tmp_path / "model")
    out = tmp_path / "seen.html"
    code, _, _ = run("look", tmp_path / "model", "the dog runs", "--pair", "a man <sleeps>", "--out", out)
    page = out.read_text()
    assert (
        code == 0 and "<h1>the dog runs</h1><p class=text>a man &lt;sleeps&gt;</p>" in page and "<h2>Score</h2>" in page
    )


def test_what_is_left_out_is_said_in_a_line(run: Run, tmp_path: Path) -> None:
    make("gru-lm").save(tmp_path / "gru")
    make("bert-base", ("<mask>",), head="masked").save(tmp_path / "masked")
    code, said, problem = run("look", tmp_path / "gru", "the dog runs", "--json")
    assert code == 0 and list(json.loads(said)) == ["lens", "attribution", "answers"]
    assert problem == "left out: attention (this model has no attention)\n"
    code, said, problem = run("look", tmp_path / "masked", "the dog runs", "--json")
    assert code == 0 and list(json.loads(said)) == ["attention", "lens"] and problem.count("\n") == 1
    assert problem.startswith("left out: attribution, answers (") and "<mask>" in problem and "--position" in problem
    code, said, problem = run("look", tmp_path / "masked", "the <mask> runs", "--json")
    assert code == 0 and len(json.loads(said)) == 4 and not problem
    code, said, problem = run("look", tmp_path / "masked", "the dog runs", "--position", "1", "--json")
    assert code == 0 and len(json.loads(said)) == 4 and not problem
    for what in ("answers", "attribution", "effect"):
        code, _, problem = run("look", tmp_path / "masked", "the dog runs", "--what", what, "--json")
        assert code == 2 and "<mask>" in problem
    code, _, problem = run("look", tmp_path / "masked", " ")
    assert code == 2 and "the text is empty" in problem


def test_the_summary_of_a_decoder_is_looked_at(run: Run, tmp_path: Path) -> None:
    """Its folder says that it writes summaries: the rows are the summary's words, the columns text and summary."""
    model, text = make("gpt2", max_length=96), "two women sit in the park"
    model.usage = Usage(task="summary")
    model.save(tmp_path / "best")
    wanted = model.looker().look(text, "the dog", summary=True)
    code, said, _ = run("look", tmp_path / "best", text, "--target", "the dog", "--json")
    found = json.loads(said)
    written = wanted.tokens[wanted.first :]
    assert code == 0 and found["attention"]["rows"] == written == found["lens"]["tokens"] and written[0] == "<s>"
    assert found["attention"]["columns"] == wanted.tokens == found["attribution"]["tokens"]
    assert len(found["attribution"]["answers"]) == len(written)
    torch.testing.assert_close(
        torch.tensor(found["attention"]["weights"]), wanted.attention().weights[:, wanted.first :]
    )
    model.usage = Usage(task="language")
    model.save(tmp_path / "best")
    code, _, problem = run("look", tmp_path / "best", text, "--target", "the dog", "--json")
    assert code == 2 and "has a target" in problem


def test_a_word_in_two_texts(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    model, texts = make("bert-base"), ["a man rides a bicycle", "the park, and a man"]
    model.save(tmp_path / "model")
    asked = ["look", tmp_path / "model", texts[0], "--what", "contexts"]
    code, said, _ = run(*asked, "--word", "man", "--other", texts[1], "--layer", "1", "--json")
    wanted = model.contexts("man", texts, 1)
    assert code == 0 and json.loads(said)["contexts"]["texts"] == texts
    torch.testing.assert_close(torch.tensor(json.loads(said)["contexts"]["cosines"]), wanted.cosines)
    drawn = wanted.figure().data[0]
    assert torch.equal(torch.tensor(drawn.z)[:, 2], wanted.static) and drawn.text[0][1] == f"{wanted.cosines[0, 1]:.2f}"
    code, _, _ = run(*asked, "--word", "man", "--other", texts[1], "--out", tmp_path / "x.html")
    assert code == 0 and f"<p class=text>other: {texts[1]}</p>" in (tmp_path / "x.html").read_text()
    for arguments in (["--word", "man"], ["--other", texts[1]], ["--word", "dog", "--other", texts[1]]):
        code, _, problem = run(*asked, *arguments)
        assert code == 2 and problem.count("\n") == 1


def test_a_browser_that_hangs_ends_with_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def hangs(command: list[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(command, 1)

    monkeypatch.setattr(report.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(report.subprocess, "run", hangs)
    with pytest.raises(QkvError, match="no screenshot"):
        report.png("<p>", tmp_path / "x.png")


def test_without_plotly_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    result = make("gpt2").look("the dog").answers()
    with pytest.raises(QkvError, match=r"pip install \"qkv\[look\]\""):
        result.figure()
    assert result._repr_html_() is None
