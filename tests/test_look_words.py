"""Looking with words: head statistics, rollout, positions, neighbours, probes, alignments and `model.look`."""

import json
from typing import Any

import pytest
import torch

from qkv.api import Model
from qkv.batch import Batch
from qkv.config import ModelConfig
from qkv.data.grammar import Grammar
from qkv.errors import QkvError
from qkv.generate import alignment
from qkv.look import alignment_error as aligned
from qkv.look.attention import attention_maps
from qkv.look.embedding_space import nearest, positions
from qkv.look.heads import STATISTICS, head_statistics
from qkv.look.probe import contexts, probe
from qkv.look.rollout import patch_grid, rollout
from qkv.models.build import build
from qkv.models.example import example
from qkv.presets import tiny
from qkv.text.train import train_tokenizer

TEXTS = ["a man rides a bicycle", "the dog runs", "two women sit in the park, and a child plays", "a man sleeps."]


def joined(tokens: list[str]) -> str:
    """The text of displayed tokens."""
    return "".join(tokens).replace("␣", " ").strip()


def make(name: str, special: tuple[str, ...] = (), **fields: object) -> Model:
    torch.manual_seed(3)
    tokenizer = train_tokenizer(TEXTS * 20, "bpe", 90, special=list(special))
    c = tiny(name).changed(
        vocab_size=tokenizer.size, target_vocab_size=None, pad_id=0, bos_id=1, eos_id=2, start_id=None, **fields
    )
    network = build(c)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    return Model(c, network, tokenizer, "cpu")


# --- heads


@pytest.mark.parametrize("name", ["gpt2", "bert-base", "transformer-base"])
def test_statistics_are_means_of_the_maps(name: str) -> None:
    c = tiny(name)
    torch.manual_seed(0)
    once = torch.randint(60, (2, 6), generator=torch.Generator().manual_seed(0))
    network, batch = build(c).eval(), Batch(torch.cat([once, once], 1))  # random tokens twice: what shows induction
    if c.family == "encoder-decoder":
        batch = Batch(batch.inputs, source=example(c, rows=2).source)
    found = head_statistics(network, batch)
    length, kind = batch.inputs.size(1), "decoder" if c.family == "encoder-decoder" else None
    w = attention_maps(network, batch, 1, kind).double()  # (B, H, T, T)
    steps = torch.arange(length) - torch.arange(length)[:, None]
    wanted = {
        "previous": w.diagonal(-1, 2, 3).mean((0, 2)),
        "next": w.diagonal(1, 2, 3).mean((0, 2)),
        "itself": w.diagonal(0, 2, 3).mean((0, 2)),
        "first": w[:, :, 1:, 0].mean((0, 2)),
        "last": w[:, :, :-1, -1].mean((0, 2)),
        "distance": (w * steps.abs()).sum(-1).mean((0, 2)),
        "entropy": -(w * w.clamp(min=1e-300).log()).sum(-1).mean((0, 2)),
    }
    for statistic, value in wanted.items():
        torch.testing.assert_close(found.statistics[statistic][1].double(), value, atol=1e-6, rtol=1e-5, msg=statistic)
    if len(set(batch.inputs[0, :6].tolist()) | set(batch.inputs[1, :6].tolist())) == 12:  # no word by chance again
        followed = torch.stack([w[:, :, t, t - 5] for t in range(6, 12)], -1).mean((0, 2))
        torch.testing.assert_close(found.statistics["induction"][1].double(), followed, atol=1e-6, rtol=1e-5)
    assert set(found.statistics) == set(STATISTICS) and found.best("entropy")[0] in found.layers


def test_statistics_ask_only_where_there_is_something_to_see() -> None:
    c = tiny("gpt2")
    network = build(c).eval()
    once = head_statistics(network, Batch(torch.arange(8)[None]))
    assert "induction" not in once.statistics and "same" not in once.statistics
    image = head_statistics(build(tiny("vit-b16")).eval(), example(tiny("vit-b16")))
    assert "previous" in image.statistics and "same" not in image.statistics
    with pytest.raises(QkvError, match="padding"):
        head_statistics(network, Batch(torch.zeros(1, 4).long(), torch.tensor([[True, True, True, False]])))


# --- rollout, positions, neighbours, probes


def test_rollout_is_the_product_of_the_layers() -> None:
    c = tiny("vit-b16")
    torch.manual_seed(0)
    network, batch = build(c).eval(), example(c)
    found, eye = rollout(network, batch), torch.eye(5)
    first, second = ((attention_maps(network, batch, layer).mean(1) + eye) / 2 for layer in range(2))
    torch.testing.assert_close(found, second @ first)
    torch.testing.assert_close(found.sum(-1), torch.ones(3, 5))
    grid = patch_grid(found[0])
    assert grid.shape == (2, 2) and grid.sum() == pytest.approx(1)
    assert grid[0, 1] / grid[1, 0] == pytest.approx(float(found[0, 0, 2] / found[0, 0, 3]))
    causal = rollout(build(tiny("gpt2")).eval(), example(tiny("gpt2")))
    assert causal.triu(1).abs().max() == 0


SCHEMES = [
    ("sinusoidal", {}), ("learned", {}), ("rotary", {}), ("alibi", {}), ("t5", {"relative_buckets": 8}), ("relative", {}),
    ("relative", {"relative_per_head": True}),
]  # fmt: skip


@pytest.mark.parametrize(("scheme", "fields"), SCHEMES)
def test_positions_of_every_scheme(scheme: str, fields: dict[str, Any]) -> None:
    c = ModelConfig(family="decoder", vocab_size=20, d_model=16, n_layers=1, n_heads=2, d_ff=8, position=scheme, max_length=40,
                    relative_distance=6, **fields)  # fmt: skip
    found = positions(build(c).eval(), 50)
    assert found.scheme == scheme
    same = found.similarity.diagonal()
    if scheme in ("sinusoidal", "rotary", "learned", "relative"):
        torch.testing.assert_close(same, torch.ones_like(same))
        torch.testing.assert_close(found.similarity, found.similarity.T)
    if scheme in ("sinusoidal", "rotary", "alibi", "t5"):  # they tell distances, not places (claims C9, C10)
        torch.testing.assert_close(found.similarity[1:, 1:], found.similarity[:-1, :-1], atol=1e-5, rtol=1e-4)
    assert len(found.similarity) == {"learned": 40, "relative": 13}.get(scheme, 50)


def test_a_model_without_positions_says_so() -> None:
    with pytest.raises(QkvError, match="no position encoding"):
        positions(build(tiny("lstm-lm")).eval())


def test_the_nearest_is_the_one_that_points_the_same_way() -> None:
    torch.manual_seed(0)
    table = torch.randn(50, 8)
    table[17] = 3 * table[4] + 0.01 * torch.randn(8)
    near, cosines = nearest(table, table[4], 3)
    assert near.tolist()[:2] == [4, 17] and bool((cosines.diff() <= 0).all())


def test_a_probe_finds_what_is_there_and_nothing_where_is_nothing() -> None:
    torch.manual_seed(0)
    labels = ["fruit", "company"] * 20
    noise = torch.randn(40, 16)
    sense = torch.tensor([[1.0 if label == "fruit" else -1.0] for label in labels])
    told = noise + 4 * sense * torch.nn.functional.normalize(torch.randn(16), dim=0)
    assert probe(told, labels).accuracy > 0.95 and probe(told, labels).chance == 0.5
    assert probe(noise, labels).accuracy < 0.75
    with pytest.raises(QkvError):
        probe(noise, ["one"] * 40)


def test_leaving_one_out_is_what_it_says() -> None:
    """The closed form equals a fit without the example, done the long way."""
    torch.manual_seed(1)
    x, labels = torch.randn(12, 5), ["a", "b", "c"] * 4
    found = probe(x, labels, strength=0.7)
    scaled = torch.cat([x / x.square().mean().sqrt(), torch.ones(12, 1)], 1).double()
    y = torch.tensor([[float(label == name) for name in "abc"] for label in labels]).double()
    for i in range(12):
        rest = [j for j in range(12) if j != i]
        penalty = 0.7 * scaled.size(1) / 12 * torch.eye(6).double()
        weights = torch.linalg.solve(scaled[rest].T @ scaled[rest] + penalty, scaled[rest].T @ y[rest])
        assert found.answers[i] == "abc"[int((scaled[i] @ weights).argmax())]


def test_contexts_compare_each_with_each_and_with_the_word_alone() -> None:
    vectors = torch.tensor([[1.0, 0], [0, 2], [3, 0]])
    found = contexts("apple", ["a", "b", "c"], vectors, torch.tensor([1.0, 0]))
    assert found.cosines[0, 2] == 1 and found.cosines[0, 1] == 0 and found.static.tolist() == [1, 0, 1]


# --- alignments


def test_the_error_rate_of_known_links() -> None:
    """Word 2 of the target has two tokens; source word 2 is chosen by none and goes to the one that looks at it most."""
    source, target = [0, 1, 1, 2, None], [0, 1, 1, 2, None]
    weights = torch.zeros(5, 5)
    weights[0, 0] = weights[3, 1] = 1.0
    weights[1, 1] = weights[2, 2] = 0.6
    weights[1, 3] = 0.4
    assert alignment.links(weights, source, target) == [(0, 0), (1, 1), (1, 2), (2, 1)]
    assert aligned.links is alignment.links  # what `translate --alignments` emits


def test_words_of_the_grammar_are_found_in_its_text() -> None:
    grammar, tokenizer = Grammar(1), train_tokenizer(TEXTS * 20, "bpe", 90)
    for number in range(40):
        pair = grammar.pair(number)
        one = aligned.align_pair(pair, tokenizer, tokenizer, 1, 2)
        for text, tokens, spans in (
            (pair.source, pair.english, aligned.word_spans(pair.source, [t.text for t in pair.english])),
            (pair.target, pair.german, aligned.word_spans(pair.target, [t.text for t in pair.german])),
        ):
            assert [text[b:e].lower() for b, e in spans] == [t.text.lower() for t in tokens]
        marks = {i for i, t in enumerate(pair.english) if t.tag == "PUNCT"}
        assert {w for w in one.source if w is not None} == set(range(len(pair.english))) - marks
        assert one.batch.source.size(1) == len(one.source) and one.batch.inputs.size(1) == len(one.target)
        assert one.gold <= set(pair.alignment)


def test_a_network_that_looks_at_the_right_word_has_no_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    grammar, model = Grammar(2), make("transformer-base")
    pairs = [grammar.pair(n) for n in range(5)]
    found = model.looker().alignment_errors(pairs)
    assert found.rates.shape == (2, 4) and 0.2 < found.best[2] < 1 and found.sentences == 5
    made = iter([aligned.align_pair(p, model.tokenizer, model.tokenizer, 1, 2) for p in pairs])

    def gold(network: object, batch: Batch, own: object) -> list[torch.Tensor]:
        one, table = next(made), torch.zeros(1, batch.inputs.size(1), batch.source.size(1))
        for t, word in enumerate(one.target):
            for s, other in enumerate(one.source):
                table[0, t, s] = float((other, word) in one.gold)
        return [table, table, table]

    monkeypatch.setattr(aligned, "cross_attention", gold)
    right = model.looker().alignment_errors(pairs)
    assert right.mean < 0.12  # one link a word: where two stand for two, some are missing
    with pytest.raises(QkvError, match="encoder-decoder"):
        make("gpt2").looker().alignment_errors(pairs)


# --- model.look


@pytest.mark.parametrize("name", ["gpt2", "bert-base", "transformer-base", "rnnsearch", "gru-lm", "t5-small"])
def test_look_gives_every_view_with_names(name: str) -> None:
    model = make(name)
    look = model.look("a man rides a bicycle")
    assert "".join(look.source or look.tokens).replace("␣", "").startswith("amanrides")
    if name == "gru-lm":
        with pytest.raises(QkvError, match="no attention"):
            look.attention()
    else:
        found = look.attention(0, head=0)
        assert found.weights.shape == (1, len(found.rows), len(found.columns))
        torch.testing.assert_close(found.weights.sum(-1), torch.ones(1, len(found.rows)))
        assert json.loads(json.dumps(found.to_json()))["rows"] == found.rows
    assert len(look.lens().tokens) == len(look.tokens)
    at = 0 if name == "bert-base" else None  # it guesses hidden words, and here none is hidden
    answers = look.answers(at, k=3)
    assert len(answers.words) == 3 and answers.probabilities[0] == answers.probabilities.max()
    scores = look.attribution("gradient", None if at is None else [at])
    assert scores.scores.shape == (1, len(look.source) + len(look.tokens)) and scores.answers == [answers.words[0]]
    assert len(look.hidden()[-1]) == len(look.tokens)


def test_an_encoder_decoder_looks_at_its_own_translation_or_at_another() -> None:
    model = make("transformer-base")
    text = "a man rides a bicycle"
    own = model.look(text)
    assert joined(own.tokens[1:]) == model.translate([text], beam=1)[0].strip()
    given = model.look(text, "the dog runs")
    assert joined(given.tokens[1:]) == "the dog runs" and given.source == own.source
    assert given.attention(kind="cross").columns == given.source
    assert given.attention(kind="encoder").rows == given.source
    with pytest.raises(QkvError, match="encoder-decoder"):
        make("gpt2").look("a", "b")


def test_what_a_task_reads_is_looked_at() -> None:
    """A gap by any name, asked about where it is; words as the tagger cuts them; two texts with their segments."""
    words = make("bert-base", ("<mask>",), head="masked")
    for gap in ("<mask>", "[MASK]"):
        text = f"a man {gap} a bicycle"
        look, guess = words.look(text), words.fill([text], 3)[0].gaps[0]
        assert look.tokens[look.place] == "<mask>" == look.answers().at
        assert look.answers(k=3).probabilities.tolist() == pytest.approx([one.probability for one in guess], abs=1e-6)
        assert look.answers(0, 3).at == look.tokens[0] != "<mask>"
    tags = make("bert-base", head="tags", n_classes=3)
    look, tagged = tags.look("the dog!runs"), tags.tag(["the dog!runs"])[0]
    everywhere = look.token_answers(1)
    best = everywhere.probabilities[:, 0].tolist()
    assert len(everywhere.words) == len(look.tokens) == len(best)
    assert [any(abs(p - one.probability) < 1e-6 for p in best) for one in tagged] == [True] * 4
    assert look.answers(k=1).words == [tagged[0].tag]
    pairs, two = make("bert-base", head="classes", n_classes=3), ("the dog runs", "a man sleeps.")
    for look in (pairs.look(two[0], pair=two[1]), pairs.look(two)):
        said = dict(zip(look.answers().words, look.answers().probabilities.tolist(), strict=True))
        assert said == pytest.approx(pairs.classify([two])[0].probabilities, abs=1e-6)
        assert look.batch.segments.unique().tolist() == [0, 1]
    reader = make("bert-base", head="span")
    look, answer = reader.look(TEXTS[0], pair="who rides?"), reader.answer("who rides?", TEXTS[0])
    assert torch.equal(look.batch.inputs, reader.look(("who rides?", TEXTS[0])).batch.inputs)
    assert joined(look.tokens[look.place :]).startswith(TEXTS[0]) and answer.text in TEXTS[0]
    for wrong in (words, make("gpt2"), make("transformer-base")):
        with pytest.raises(QkvError, match="one text"):
            wrong.look(*two[:1], pair=two[1])


def test_a_regression_has_a_score() -> None:
    model = make("bert-base", head="classes", n_classes=1)
    look, score = model.look("the dog runs"), model.classify(["the dog runs"])[0].score
    found, lens, effect = look.answers(), look.lens(), look.effect_of_heads()
    assert found.words == ["score"] and {found.measure, lens.measure, effect.measure} == {"score"}
    assert found.probabilities.tolist() == pytest.approx([score], abs=1e-6)
    assert float(lens.final[-1, 0]) == pytest.approx(score, abs=1e-5)
    classes = make("bert-base", head="classes", n_classes=2).look("the dog runs")
    assert (classes.answers().measure, classes.lens().measure) == ("probability", "probability")
    assert classes.effect_of_heads().measure == "logit"


def test_a_text_without_a_mask_token_needs_a_position() -> None:
    look = make("bert-base", ("<mask>",), head="masked").look("a man rides a bicycle")
    for ask in (look.answers, look.attribution, look.effect_of_heads, lambda: look.patch(look)):
        with pytest.raises(QkvError, match=r"put <mask> in place of a word, or .*--position"):
            ask()
    assert look.answers(-1).at == look.tokens[-1] and look.attribution("gradient", [1]).scores.size(0) == 1
    assert look.patch(look, position=2).columns == look.tokens and look.attention().rows == look.tokens
    with pytest.raises(QkvError, match="no mask token: choose a token"):  # and it has no name for one
        make("bert-base").look("a man rides a bicycle").answers()


def test_a_decoder_is_looked_at_while_it_writes_its_summary() -> None:
    """text </s> <s> summary, as in training; the summary is its own greedy one, or another."""
    model, text = make("gpt2", max_length=96), "two women sit in the park, and a child plays"
    looker = model.looker()
    own, read = looker.look(text, summary=True), len(model.words().plain([text])[0])
    assert own.tokens[read : read + 2] == ["</s>", "<s>"] and own.first == read + 1
    summary = model.summarize([text], beam=1)[0].text
    assert joined(own.tokens[own.first + 1 :]) == summary.strip() != ""
    given = looker.look(text, "the dog runs", summary=True)
    assert joined(given.tokens[given.first + 1 :]) == "the dog runs" and given.first == own.first
    assert looker.look(text).first == 0 and looker.look(text).tokens == own.tokens[:read]
    opened = own.batch.inputs[0, : own.first + 1].tolist()
    assert torch.equal(model.look(opened, "the dog runs").batch.inputs, given.batch.inputs)
    whole, lens = given.lens(), given.lens().since(given.first)
    assert lens.tokens == given.tokens[given.first :] and lens.words[-1] == whole.words[-1][given.first :]
    assert torch.equal(lens.final, whole.final[:, given.first :]) and lens.probabilities.size(1) == len(lens.tokens)
    full = looker.look(" ".join([text] * 9), summary=True)  # cut, and with room for a summary
    assert full.first == 96 // 2 and len(full.tokens) <= 96


def test_a_picture_is_looked_at() -> None:
    torch.manual_seed(0)
    c = tiny("vit-b16")
    model = Model(c, build(c), device="cpu")
    look = model.look(torch.randn(3, 16, 16))
    assert look.tokens == ["[class]", "0,0", "0,1", "1,0", "1,1"]
    assert look.rollout().grid.shape == (2, 2) and look.attention(0).weights.shape == (4, 5, 5)
    with pytest.raises(QkvError):
        look.attribution(blank=-3) if c.head == "classes" else look.target()


def test_patching_a_word_and_switching_off_by_name() -> None:
    model = make("gpt2")
    one = model.look("a man sleeps.")
    other = model.look([7, *one.batch.inputs[0, :-1].tolist()])
    found = one.patch(other)
    assert found.columns == one.tokens and found.carried[-1, -1] == pytest.approx(1, abs=1e-3)
    before = one.answers().probabilities
    with one.without([(0, 1)], mean_of=other) as cut:
        assert (cut.answers().probabilities - before).abs().max() > 1e-6
    assert torch.equal(one.answers().probabilities, before)


def test_what_is_off_is_off_in_the_fast_copy_too() -> None:
    model, texts = make("transformer-base"), TEXTS[:3]
    before = model.translate(texts, scores=True)
    with model.look(TEXTS[0], "a").without(layers=[0, 1]):
        off = model.translate(texts, scores=True)
        plain = model.translate(texts, scores=True, fast=False)
        assert model.packed() is model.network
    assert [one.log_prob for one in off] == [one.log_prob for one in plain] != [one.log_prob for one in before]
    again = model.translate(texts, scores=True)
    assert [one.log_prob for one in again] == [one.log_prob for one in before]


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe", "wordpiece", "unigram", "characters"])
def test_a_word_is_the_same_with_spaces_around_it_and_says_its_pieces(kind: str) -> None:
    torch.manual_seed(0)
    tokenizer = train_tokenizer(TEXTS * 20, kind, 300)
    c = tiny("gpt2").changed(vocab_size=tokenizer.size, pad_id=0, bos_id=1, eos_id=2)
    model = Model(c, build(c), tokenizer, "cpu")
    found = model.neighbours("dog", 4)
    for word in (" dog", "dog ", " dog  "):
        assert model.neighbours(word, 4).to_json() == found.to_json()
    assert joined(found.pieces).replace("##", "") == "dog" and found.word == "dog"
    assert kind != "characters" or found.pieces == ["d", "o", "g"]
    several = model.neighbours("parkdog", 4)
    assert len(several.pieces) > 1 and set(several.pieces).isdisjoint(several.words)
    for nothing in ("", "  ") if kind == "byte-bpe" else ("☃☃", "  "):
        with pytest.raises(QkvError, match="not in this vocabulary"):
            model.neighbours(nothing)


def test_a_word_among_words() -> None:
    model = make("bert-base")
    found = model.neighbours("man", 4)
    assert len(found.words) == 4 and bool((found.cosines.diff() <= 0).all())
    texts = ["a man rides a bicycle", "a man rides a bicycle", "the park, and a man"]
    table = model.contexts("man", texts)
    assert table.cosines[0, 1] == pytest.approx(1, abs=1e-5) and table.cosines[0, 2] < 0.999
    with pytest.raises(QkvError, match="does not contain"):
        model.contexts("horse", texts)
    assert torch.equal(model.contexts(" Man ", texts).cosines, table.cosines)  # found where it is written small
    with pytest.raises(QkvError, match="no layer 9: they go from 0, the embeddings, to 2"):
        model.contexts("man", texts, 9)
    with pytest.raises(QkvError, match="does not contain"):
        model.contexts("man", ["two women sit"])  # within another word it is none


@pytest.mark.parametrize("name", ["bert-base", "gpt2", "transformer-base", "albert-base"])
def test_a_static_vector_knows_no_place(name: str) -> None:
    """At layer 0 a word differs from itself only by where it stands: by nothing, once no position is added."""
    model = make(name)
    texts = ["the dog runs", "a man runs and the dog runs"]
    looker = model.looker()
    embed = model.network.get_submodule("source" if name == "transformer-base" else "embed")
    assert looker.contexts("dog", texts, 0).static.max() < 1 - 1e-4
    embed.position = None
    if embed.segments is not None:
        embed.segments = None
    found = looker.contexts("dog", texts, 0)
    torch.testing.assert_close(found.static, torch.ones(2))
    torch.testing.assert_close(found.cosines, torch.ones(2, 2))
