"""Looking inside: maps equal the readable path's, the lens ends at the logits, the taps are documented; for every preset."""

from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from qkv.batch import Batch
from qkv.config import ModelConfig
from qkv.errors import QkvError
from qkv.look import attention, taps
from qkv.look.attention import attention_maps, select_sites, sites, weights_between
from qkv.look.heads import head_statistics
from qkv.look.lens import lens, vectors
from qkv.look.residual_stream import hidden_states, layer_outputs, points, residual, stream
from qkv.look.rollout import rollout
from qkv.look.target import find_target, probabilities, probabilities_at
from qkv.look.walk import walk
from qkv.models.build import build
from qkv.models.example import example
from qkv.parts.attention import Attention
from qkv.parts.linear_attention import Linear
from qkv.parts.masks import Mask
from qkv.parts.softmax import repeat_heads
from qkv.parts.tap import edit, record
from qkv.presets import PRESETS, tiny

ROOT = Path(__file__).parent.parent


def randomised(c: ModelConfig, seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    network = build(c).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return network


def architectures() -> list[str]:
    """Presets that differ in more than their sizes."""
    seen: dict[str, str] = {}
    for name in PRESETS:
        seen.setdefault(tiny(name).model_dump_json(), name)
    return sorted(seen.values())


def padded(c: ModelConfig) -> Batch:
    """Two rows, one of them padded on the left where there are words: positions must follow."""
    batch = example(c, rows=2, draw=torch.Generator().manual_seed(1))
    if c.image_size is not None:
        return batch
    ids = batch.inputs if batch.source is None else batch.source
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[1, :2] = False
    return Batch(batch.inputs, mask if batch.source is None else None, None, batch.source, None if batch.source is None else mask,
                 batch.segments, images=batch.images)  # fmt: skip


WITHOUT_WEIGHTS = ("linformer", "compressed", "gated-linear")


def readable(network: torch.nn.Module, batch: Batch, site: attention.Site) -> torch.Tensor | None:
    """The weights that the readable path forms, or, of a linear mixer, None."""
    module = network.get_submodule(site.name)
    name = f"{site.name}.mixer.tap_weights" if isinstance(module, Attention) else f"{site.name}.tap_weights"
    if isinstance(module, Attention) and isinstance(module.mixer, Linear):
        return None
    with record(network, [name]) as kept, torch.no_grad():
        network(batch)
    return kept[name]


@pytest.mark.parametrize("name", architectures())
def test_maps_are_those_of_the_readable_path(name: str) -> None:
    c = tiny(name)
    network, batch = randomised(c), padded(c)
    if not sites(network):
        with pytest.raises(QkvError, match=r"^this model has no attention$"):
            select_sites(network)
        return
    for site in sites(network):
        if c.mixer[site.layer % len(c.mixer)] in WITHOUT_WEIGHTS and site.kind != "cross":
            with pytest.raises(QkvError, match="no attention weights"):
                attention_maps(network, batch, site.layer, site.kind)
            continue
        found = attention_maps(network, batch, site.layer, site.kind)
        wanted = readable(network, batch, site)
        if wanted is None:  # a linear mixer: what its formula implies gives what it gives
            with record(network, [f"{site.name}.tap_value", f"{site.name}.tap_mixed"]) as kept, torch.no_grad():
                network(batch)
            mixed = found @ repeat_heads(kept[f"{site.name}.tap_value"], site.heads)
            real = slice(None) if batch.mask is None else batch.mask[:, None, :, None]
            torch.testing.assert_close(mixed * real, kept[f"{site.name}.tap_mixed"] * real, atol=1e-5, rtol=1e-4)
            continue
        torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)
        rows, heads = [found.size(2) - 1, 0], [site.heads - 1]
        some = attention_maps(network, batch, site.layer, site.kind, heads, rows)
        torch.testing.assert_close(some, wanted[:, heads][:, :, rows], atol=1e-6, rtol=0)


VARIANTS: dict[str, dict[str, object]] = {
    "bilinear": {"score": "bilinear"},
    "low-rank": {"score": "low-rank", "score_rank": 3},
    "additive": {"score": "additive"},
    "shaw": {"position": "relative", "relative_distance": 3},
    "shaw per head": {"position": "relative", "relative_distance": 3, "relative_per_head": True},
    "alibi": {"position": "alibi"},
    "rotary, grouped": {"position": "rotary", "n_kv_heads": 2},
    "grouped t5": {"position": "t5", "relative_buckets": 8, "n_kv_heads": 2},
    "window": {"mixer": "window", "window": 2, "n_global": 1},
    "shared": {"share_layers": True},
}


@pytest.mark.parametrize("family", ["encoder", "decoder", "encoder-decoder"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_maps_of_every_part_one_head_and_few_rows_at_a_time(
    family: str, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = ModelConfig(family=family, head="masked" if family == "encoder" else "vocabulary", vocab_size=60, d_model=32,
                    n_layers=2, n_heads=4, d_ff=48, **VARIANTS[variant])  # fmt: skip
    network, batch = randomised(c), padded(c)
    monkeypatch.setattr(attention, "BUDGET", 8)  # a row or so at a time
    for site in sites(network):
        wanted = readable(network, batch, site)
        for head in range(site.heads):
            found = attention_maps(network, batch, site.layer, site.kind, [head])
            torch.testing.assert_close(found, wanted[:, [head]], atol=1e-6, rtol=0)


def test_layers_that_are_one_block_are_told_apart() -> None:
    c = ModelConfig(
        family="encoder", head="masked", vocab_size=60, d_model=32, n_layers=3, n_heads=4, d_ff=48, share_layers=True
    )
    network, batch = randomised(c), example(c)
    assert [site.layer for site in sites(network)] == [0, 1, 2]
    first, last = attention_maps(network, batch, 0), attention_maps(network, batch, 2)
    assert (first - last).abs().max() > 1e-3
    cut = dict.fromkeys([f"stack.blocks.1.{part}.tap_out" for part in ("attention", "feedforward")], torch.zeros_like)
    with edit(network, cut), torch.no_grad():
        without = network(batch).logits
    with torch.no_grad():
        block, mask = network.stack.blocks[0], Mask(batch.inputs.size(1))
        x = network.embed(batch.inputs, mask)
        y, _ = block(x, mask)
        y = block.feedforward.after(block.attention.after(y))  # layer 1 adds nothing: its norms alone
        y, _ = block(y, mask)
        torch.testing.assert_close(without, network.head(network.stack.norm(y)))


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that is made within it."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        for one in out if isinstance(out, tuple | list) else [out]:
            if isinstance(one, torch.Tensor) and one._base is None:
                self.size = max(self.size, one.numel())
        return out


@pytest.mark.parametrize("mixer", ["softmax", "window", "linear"])
def test_a_few_rows_of_a_long_text_need_no_table_of_all_pairs(mixer: str) -> None:
    length, c = 8192, ModelConfig(family="decoder", vocab_size=50, d_model=8, n_layers=1, n_heads=2, d_ff=8,
                                  position="none" if mixer == "linear" else "rotary", mixer=mixer, window=64,
                                  max_length=8192)  # fmt: skip
    network, batch = randomised(c), Batch(torch.randint(50, (1, length)))
    with Largest() as seen:
        found = attention_maps(network, batch, 0, heads=[1], rows=[0, 4000, length - 1])
    assert found.shape == (1, 1, 3, length) and torch.allclose(found.sum(-1), torch.ones(()))
    assert seen.size < length * 600, "the table of all pairs has 8192 columns"


def test_a_wrong_layer_head_row_or_kind_is_said() -> None:
    c = tiny("transformer-base")
    network, batch = randomised(c), example(c)
    for wrong in ({"layer": 9}, {"layer": 0, "heads": [7]}, {"layer": 0, "rows": [99]}, {"layer": 0, "kind": "self"}):
        with pytest.raises(QkvError):
            attention_maps(network, batch, **wrong)


def test_no_head_and_no_row_are_nothing_to_look_at() -> None:
    c = tiny("gpt2")
    network, batch = randomised(c), example(c)
    for wrong in ({"heads": []}, {"rows": []}):
        with pytest.raises(QkvError, match="is empty"):
            attention_maps(network, batch, 0, **wrong)


def test_of_a_hybrid_only_the_layers_with_weights_are_shown() -> None:
    """Window, compressed, window, compressed: maps of 0 and 2, the last of them by default; all four can be switched off."""
    c = ModelConfig(family="decoder", vocab_size=60, d_model=32, n_layers=4, n_heads=4, d_ff=48, position="rotary",
                    mixer=["window", "compressed"], window=3, compression=2)  # fmt: skip
    network, batch = randomised(c), Batch(torch.randint(60, (1, 9)))
    assert [site.weighs for site in sites(network)] == [True, False, True, False]
    assert not any(site.walks for site in sites(network)) and all(s.walks for s in sites(randomised(tiny("gpt2"))))
    assert torch.equal(attention_maps(network, batch, -1), attention_maps(network, batch, 2))
    assert torch.equal(attention_maps(network, batch, -2), attention_maps(network, batch, 0))
    assert head_statistics(network, batch).layers == [0, 2] and weights_between(network, batch, 3, [0]).size(0) == 2
    first, second = ((attention_maps(network, batch, layer).mean(1) + torch.eye(9)) / 2 for layer in (0, 2))
    torch.testing.assert_close(rollout(network, batch), second @ first)
    assert [site.layer for site in select_sites(network)] == [0, 1, 2, 3]
    with pytest.raises(QkvError, match="no attention weights"):
        attention_maps(network, batch, 1)


@pytest.mark.parametrize(
    "variant", ["scaled", "t5", "bilinear", "low-rank", "additive", "shaw", "alibi", "rotary, grouped"]
)
def test_a_walk_tells_how_its_numbers_come_about(variant: str) -> None:
    """scores = the score of q and k, times the scale, and the bias; mixed = weights on values, and the value's bias."""
    fields = VARIANTS | {"scaled": {}, "t5": {"position": "t5", "relative_buckets": 8, "score": "dot"}}
    c = ModelConfig(family="decoder", vocab_size=60, d_model=32, n_layers=2, n_heads=4, d_ff=48, **fields[variant])
    network, batch = randomised(c), Batch(torch.randint(60, (1, 7)))
    found = walk(network, batch, 1, 2)
    kinds = {"bilinear", "low-rank", "additive"}
    assert found.score == (variant if variant in kinds else "dot")
    assert found.scale == pytest.approx(1.0 if variant in kinds | {"t5"} else 8**-0.5)
    if found.score == "dot":
        added = 0 if found.bias is None else found.bias
        query, key = (found.query, found.key) if found.angles is None else (found.rotated_query, found.rotated_key)
        torch.testing.assert_close(found.scores, query @ key.T * found.scale + added, atol=1e-5, rtol=1e-4)
    assert (found.angles is not None) == variant.startswith("rotary")
    assert (found.bias is not None) == (variant in ("t5", "shaw", "alibi"))
    assert (found.value_bias is not None) == (variant == "shaw")
    of_values = 0 if found.value_bias is None else found.value_bias
    torch.testing.assert_close(found.mixed, found.weights @ found.value + of_values, atol=1e-5, rtol=1e-4)


def test_looks_at_is_a_corner_of_the_maps() -> None:
    c = tiny("bert-base")
    network, batch = randomised(c), example(c, rows=1)
    table = weights_between(network, batch, 3, [1, 5])
    for layer in range(2):
        torch.testing.assert_close(table[layer], attention_maps(network, batch, layer)[0, :, 3, [1, 5]])


# --- the stream and the lens

HEADS_WITHOUT_ANSWERS = ("none", "pooled")


@pytest.mark.parametrize("name", architectures())
def test_the_lens_ends_at_the_logits(name: str) -> None:
    c = tiny(name)
    network, batch = randomised(c), padded(c)
    if c.head in HEADS_WITHOUT_ANSWERS:
        with pytest.raises(QkvError, match="vectors"):
            lens(network, batch, [], str)
        return
    with torch.no_grad():
        found = [(label, network.head(x, batch.mask)) for label, x in vectors(network, batch)]
        assert torch.equal(found[-1][1], network(batch).logits)
        chance = probabilities(network.head, network(batch).logits)[0]  # (T, n) or (n,)
    assert len({label for label, _ in found}) == len(found) >= 2
    assert (found[0][1] - found[-1][1]).abs().max() > 1e-3
    shown = lens(network, batch.rows(slice(0, 1)), ["x"] * found[0][1].size(1), str, k=2)
    assert len(shown.words) == len(found)
    torch.testing.assert_close(shown.final[-1], shown.probabilities[-1, :, 0])
    torch.testing.assert_close(shown.probabilities[-1, :, 0], chance.view(-1, chance.size(-1)).amax(-1))
    assert (shown.to_json()["entropy"][0][0] or 0) >= 0


def test_the_lens_never_holds_the_words_of_all_tokens() -> None:
    """Some rows at a time, which is the same as all at once."""
    length, words = 150, 4000
    c = ModelConfig(family="decoder", vocab_size=words, d_model=8, n_layers=2, n_heads=2, d_ff=8, tie="none")
    network, batch = randomised(c), Batch(torch.randint(words, (1, length)))
    with Largest() as seen:
        shown = lens(network, batch, ["x"] * length, str, k=3)
    assert seen.size <= 64 * words < length * words
    with torch.no_grad():
        *_, (_, first), _ = vectors(network, batch)
        chance = network.head(first)[0].softmax(-1)  # (T, V) at the last point but one
        answers = network(batch).logits[0].argmax(-1, keepdim=True)
    torch.testing.assert_close(shown.probabilities[-2], chance.topk(3).values)
    torch.testing.assert_close(shown.final[-2], chance.gather(1, answers)[:, 0])
    torch.testing.assert_close(shown.entropy[-2], -(chance * chance.log()).sum(-1), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("head", ["vocabulary", "span", "classes"])
def test_columns_of_the_lens_are_computed_alone(head: str) -> None:
    """They equal those of the whole table, and the head reads one vector for each point of each of them."""
    family, more = ("decoder", {}) if head == "vocabulary" else ("encoder", {"n_classes": 3})
    c = ModelConfig(family=family, head=head, vocab_size=50, d_model=16, n_layers=2, n_heads=2, d_ff=16, **more)
    network, batch, names = randomised(c), Batch(torch.randint(50, (1, 20))), [str(i) for i in range(20)]
    whole, rows = lens(network, batch, names, str, k=2), []
    handle = network.head.register_forward_hook(lambda _, given, __: rows.append(given[0][..., 0].numel()))
    some = lens(network, batch, names, str, k=2, columns=[3, -1])
    handle.remove()
    own = [0] if head == "classes" else [3, 19]
    assert some.tokens == [whole.tokens[i] for i in own] and some.columns == ([] if head == "classes" else own)
    assert some.words == [[row[i] for i in own] for row in whole.words]
    for name in ("probabilities", "final", "entropy"):
        torch.testing.assert_close(getattr(some, name), getattr(whole, name)[:, own])
    if head == "vocabulary":
        assert sum(rows) == (len(whole.points) + 1) * len(own)  # the last point first, for the final answers
    if head != "classes":
        with pytest.raises(QkvError, match="no token 20"):
            lens(network, batch, names, str, columns=[20])


HEADS_OF_TOKENS: dict[str, dict[str, object]] = {
    "replaced": {"head": "replaced"},
    "span": {"head": "span"},
    "tags": {"head": "tags", "n_classes": 4},
    "classes": {"head": "classes", "n_classes": 3},
    "regression": {"head": "classes", "n_classes": 1},
}


@pytest.mark.parametrize("kind", HEADS_OF_TOKENS)
def test_probabilities_are_those_of_the_head(kind: str) -> None:
    """What is one choice adds up to 1: two answers of ELECTRA, the places of a span; a score stays a score."""
    c = ModelConfig(family="encoder", vocab_size=60, d_model=32, n_layers=1, n_heads=4, d_ff=48, **HEADS_OF_TOKENS[kind])  # fmt: skip
    network, batch = randomised(c), Batch(torch.randint(60, (1, 100)))
    with torch.no_grad():
        output = network(batch)
        found = probabilities(network.head, output.logits)
    if kind == "regression":
        assert torch.equal(found, output.logits)
    else:
        summed = found.sum(1 if kind == "span" else -1)
        torch.testing.assert_close(summed, torch.ones_like(summed))
    if kind == "replaced":
        torch.testing.assert_close(found[..., 1], output.logits.sigmoid())
        sure = int(output.logits[0].abs().argmax())
        ask = find_target(network, batch, sure)
        assert ask.answer == int(output.logits[0, sure] > 0)
    whole = kind in ("classes", "regression")
    shown = lens(network, batch, ["x"] * 100, str, k=9)
    assert shown.probabilities.shape[1:] == (1 if whole else 100, found.size(-1))
    for place in [None] if whole else [0, 70]:
        own = probabilities_at(output, place)[0].sort(descending=True).values
        torch.testing.assert_close(shown.probabilities[-1, place or 0], own)


@pytest.mark.parametrize("name", ["gpt2", "palm-8b", "transformer-base", "lstm-lm"])
def test_the_residual_stream_in_numbers(name: str) -> None:
    c = tiny(name)
    network, batch = randomised(c), example(c)
    found = residual(network, batch, ["x"] * batch.inputs.size(1))
    vectors_there = stream(network, batch, points(network))
    assert len(found.points) == len(vectors_there)
    before, after = vectors_there[0][0], vectors_there[1][0]
    torch.testing.assert_close(found.norms[1], after.norm(dim=-1))
    torch.testing.assert_close(found.turned[1] * found.norms[0] * found.norms[1], (before * after).sum(-1))
    torch.testing.assert_close(found.turned[0], torch.ones_like(found.turned[0]))


@pytest.mark.parametrize("name", ["gpt2", "bert-base", "palm-8b", "t5-small", "lstm-lm", "mamba-130m"])
def test_layers_are_the_points_of_the_stream(name: str) -> None:
    c = tiny(name)
    network, batch = randomised(c), example(c)
    blocks = stream(network, batch, points(network, blocks=True))
    with torch.no_grad():
        found = layer_outputs(network, batch)
        assert len(found) == len(blocks) == (2 if c.recurrent else 3)
        for one, other in zip(found[:-1], blocks[:-1], strict=True):
            assert torch.equal(one, other)
        assert torch.equal(found[-1], network(batch).hidden)


@pytest.mark.parametrize("name", ["lstm-lm", "gru-lm", "rnnsearch", "lstm-seq2seq"])
def test_hidden_states_over_time(name: str) -> None:
    c = tiny(name)
    network, batch = randomised(c), example(c)
    states = hidden_states(network, batch)
    assert states["hidden"].shape == (c.decoder_layers, 3, batch.inputs.size(1), c.d_model)
    with torch.no_grad():
        hidden = network(batch).hidden
    torch.testing.assert_close(states["hidden"][-1], hidden, atol=1e-5, rtol=1e-4)
    assert ("cell" in states) == (c.recurrent == "lstm")


# --- taps


def test_the_page_of_taps_is_up_to_date() -> None:
    assert (ROOT / "docs/taps.md").read_text() == taps.table(), "python -m qkv.look.taps > docs/taps.md"


def test_every_tap_of_every_preset_is_explained() -> None:
    for name in architectures():
        c = tiny(name)
        network, batch = randomised(c), example(c)
        found = taps.taps(network, batch)
        assert {tap.rpartition(".")[2] for tap in found} <= taps.MEANING.keys()
        assert all(shape[0] == 3 for shape in found.values())
