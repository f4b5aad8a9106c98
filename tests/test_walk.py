"""The walk through one head: its numbers are the network's, each step follows from those before it, and all heads are the layer."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("fastapi")

from numpy.typing import NDArray
from PIL import Image
from served import model, served
from starlette.testclient import TestClient
from torch import nn

from qkv.api import Model
from qkv.errors import QkvError
from qkv.look.walk import walk
from qkv.models.build import build
from qkv.models.example import example
from qkv.parts.tap import record
from qkv.presets import tiny
from qkv.serve.scheduling.served_model import ServedModel

Numbers = NDArray[np.float64]
TEXT = "two women sit on a bench"
TARGET = "the dog runs, a man sleeps"
NEAR = 1e-5


@pytest.mark.parametrize(
    ("name", "kind", "tap"),
    [
        ("gpt2", None, "stack.blocks.1.attention.tap_out"),
        ("llama2-70b", "self", "stack.blocks.1.attention.tap_out"),
        ("bert-base", None, "stack.blocks.1.attention.tap_out"),
        ("t5-small", "decoder", "decoder.blocks.1.attention.tap_out"),
        ("transformer-base", "cross", "decoder.blocks.1.cross.tap_out"),
        ("vit-b16", None, "stack.blocks.1.attention.tap_out"),
    ],
)
def test_the_heads_add_up_to_the_layer(name: str, kind: str | None, tap: str) -> None:
    torch.manual_seed(0)
    c = tiny(name)
    network, batch = build(c).eval(), example(c, 2)
    steps = [walk(network, batch, 1, head, kind) for head in range(c.n_heads)]
    with record(network, [tap]) as kept, torch.no_grad():
        network(batch)
    layer = network.get_submodule(tap.rpartition(".")[0]).layer
    bias = 0 if layer.output.bias is None else layer.output.bias.detach()
    torch.testing.assert_close(sum(one.output for one in steps) + bias, kept[tap][0], atol=1e-5, rtol=1e-4)
    last = walk(network, batch, -1, -1, kind)
    assert last.layer == 1 and last.head == c.n_heads - 1
    for head, one in enumerate(steps):  # who shares keys and values says so of itself and the others
        assert head in one.shared and all(torch.equal(steps[other].key, one.key) for other in one.shared)
        assert len(one.shared) == c.n_heads // c.kv_heads


def test_what_has_no_softmax_cannot_be_walked_through() -> None:
    c = tiny("performer")
    with pytest.raises(QkvError, match="softmax"):
        walk(build(c).eval(), example(c, 1))


# --- the numbers that the page receives are the network's


TAGS = {"head": "tags", "labels": ("bad", "fair", "good"), "max_length": 64}
MODELS: dict[str, dict[str, Any]] = {
    "transformer-base": {"max_length": 40},
    "t5-small": {},
    "transformer-relative": {"max_length": 40},
    "llama2-70b": {"max_length": 64},
    "roformer": TAGS,
    "palm-8b": {"max_length": 64},
    "bert-base": TAGS,
    "vit-b16": {"labels": ("cat", "dog", "cow")},
    "rnnsearch": {},
    "luong": {},
}
CASES = {
    # name of the model, kind: the attention layer, the norm before it, the stream that it reads
    ("transformer-base", "encoder"): ("encoder.blocks.1.attention.layer", "before", "encoder.blocks.0.feedforward.tap_stream"),
    ("transformer-base", "decoder"): ("decoder.blocks.1.attention.layer", "before", "decoder.blocks.0.feedforward.tap_stream"),
    ("transformer-base", "cross"): ("decoder.blocks.1.cross.layer", "before", "decoder.blocks.1.attention.tap_stream"),
    ("t5-small", "decoder"): ("decoder.blocks.1.attention.layer", "before", "decoder.blocks.0.feedforward.tap_stream"),
    ("transformer-relative", "encoder"): (
        "encoder.blocks.1.attention.layer", "before", "encoder.blocks.0.feedforward.tap_stream",
    ),
    ("llama2-70b", "self"): ("stack.blocks.1.attention.layer", "before", "stack.blocks.0.feedforward.tap_stream"),
    ("roformer", "self"): ("stack.blocks.1.attention.layer", "before", "stack.blocks.0.feedforward.tap_stream"),
    ("palm-8b", "self"): ("stack.blocks.1.attention", "norm", "stack.blocks.0.tap_stream"),
    ("bert-base", "self"): ("stack.blocks.1.attention.layer", "before", "stack.blocks.0.feedforward.tap_stream"),
    ("vit-b16", "self"): ("stack.blocks.1.attention.layer", "before", "stack.blocks.0.feedforward.tap_stream"),
}  # fmt: skip


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with served([ServedModel(name, model(name, **fields)) for name, fields in MODELS.items()]) as found:
        yield found


def asked(client: TestClient, name: str, **more: Any) -> dict[str, Any]:
    """What the page receives of a head."""
    given: dict[str, Any] = {"text": TEXT}
    if name == "vit-b16":
        data = io.BytesIO()
        picture().save(data, "PNG")
        given = {"image": base64.b64encode(data.getvalue()).decode()}
    response = client.post("/api/look/walk", json={"model": name, **given, **more})
    assert response.status_code == 200, response.text
    return response.json()  # type: ignore[no-any-return]


def picture() -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 255, (16, 16, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def near(found: Any, own: Any, what: str) -> None:
    a, b = (np.asarray(x.detach() if isinstance(x, torch.Tensor) else x, dtype=np.float64) for x in (found, own))
    assert a.shape == b.shape, what
    np.testing.assert_allclose(a, b, atol=NEAR, rtol=0, err_msg=what)


def linear(x: Numbers, layer: nn.Linear, rows: slice) -> Numbers:
    """x W^T + b, of some of its outputs."""
    weight, bias = layer.weight.detach().double().numpy()[rows], layer.bias
    return x @ weight.T + (0 if bias is None else bias.detach().double().numpy()[rows])


def normed(x: Numbers, norm: Any) -> Numbers:
    if isinstance(norm, nn.Identity):
        return x
    weight, bias = norm.weight.detach().double().numpy(), getattr(norm, "bias", None)
    x = x if type(norm).__name__ == "RMSNorm" else x - x.mean(-1, keepdims=True)
    scaled = x / np.sqrt((x**2).mean(-1, keepdims=True) + norm.eps) * weight
    return scaled if bias is None else scaled + bias.detach().double().numpy()


def rotated(x: Numbers, angles: Numbers, pairs: str) -> Numbers:
    """Each pair of numbers as a point of the plane, turned by its angle."""
    first, second = (x[:, 0::2], x[:, 1::2]) if pairs == "interleaved" else np.split(x, 2, -1)
    points = (first + 1j * second) * np.exp(1j * angles)
    both = points.real, points.imag
    return np.stack(both, -1).reshape(x.shape) if pairs == "interleaved" else np.concatenate(both, -1)


def compared(found: dict[str, Any]) -> Numbers:
    """Scores (T, S), from queries and keys as they are compared."""
    query, key = (np.array(found[f"rotated_{name}"] or found[name]) for name in ("query", "key"))
    weight = None if found["score_weight"] is None else np.array(found["score_weight"])
    if found["score"] == "additive":
        own = np.tanh(query[:, None] + key[None]) @ weight
    else:
        own = (query if weight is None else query @ weight) @ key.T * found["scale"]
    return own if found["bias"] is None else own + np.array(found["bias"])


def recomputed(found: dict[str, Any]) -> None:
    """Rotation, scores, mask, softmax and mixed values follow from what the JSON has of the steps before them."""
    for name in ("query", "key") if found["angles"] else ():
        near(rotated(np.array(found[name]), np.array(found["angles"]), found["pairs"]), found[f"rotated_{name}"], name)
    near(compared(found), found["scores"], "scores")
    masked = np.where(found["allowed"], np.array(found["scores"], dtype=float), -np.inf)
    powers = np.exp(masked - masked.max(-1, keepdims=True))
    near(powers / powers.sum(-1, keepdims=True), found["weights"], "weights")
    mixed = np.array(found["weights"]) @ np.array(found["value"])
    near(mixed + (0 if found["value_bias"] is None else np.array(found["value_bias"])), found["mixed"], "mixed")


@pytest.mark.parametrize("case", CASES)
def test_every_step_is_the_networks(client: TestClient, case: tuple[str, str]) -> None:
    """Each number of each head, from the stream to the output: recomputed in numpy from the JSON (the learned matrices alone are
    the network's), and the same as what flows through the network, read at its taps."""
    name, kind = case
    place, norm_name, stream = CASES[case]
    own = client.service.find(name, "look").model  # type: ignore[attr-defined]
    network, batch = own.network, look(own, name).batch
    layer, norm = network.get_submodule(place), f"{place.rpartition('.')[0]}.{norm_name}"
    taps = {
        tap: f"{place}.{tap}" for tap in ("query", "key", "value", "tap_query", "tap_key", "tap_value", "tap_mixed")
    }
    taps |= {"x": norm, "stream": stream, "weights": f"{place}.mixer.tap_weights", "layer": place}
    taps |= {"memory": "encoder" if kind == "cross" else norm}
    with record(network, list(taps.values())) as kept, torch.no_grad():
        network(batch)
    flows = {tap: kept[full][0] for tap, full in taps.items()}
    heads, groups, width = flows["tap_query"].size(0), flows["tap_key"].size(0), flows["tap_query"].size(-1)
    assert groups < heads if name in ("llama2-70b", "palm-8b") else groups == heads
    total: Any = 0
    for head in range(heads):
        found = asked(client, name, kind=kind, layer=1, head=head)
        group = head * groups // heads
        assert found["shared"] == [one for one in range(heads) if one * groups // heads == group]
        # what flows
        for part, tap in (("residual", "stream"), ("x", "x"), ("memory", "memory")):
            near(found[part], flows[tap], part)
        for part, number in (("query", head), ("key", group), ("value", group)):
            near(found[part], flows[part].unflatten(-1, (-1, width))[:, number], part)
            turned = found.get(f"rotated_{part}") or found[part]
            near(turned, flows[f"tap_{part}"][number], f"{part} that is compared")
        near(found["weights"], flows["weights"][head], "weights")
        near(found["mixed"], flows["tap_mixed"][head], "mixed")
        # what follows from what
        near(normed(np.array(found["residual"]), network.get_submodule(norm)), found["x"], "x")
        for part, given, number in (("query", "x", head), ("key", "memory", group), ("value", "memory", group)):
            rows = slice(number * width, (number + 1) * width)
            near(linear(np.array(found[given]), getattr(layer, part), rows), found[part], part)
        recomputed(found)
        assert found["biased"] == (layer.query.bias is not None)
        columns = layer.output.weight.detach().double().numpy()[:, head * width : (head + 1) * width]
        near(np.array(found["mixed"]) @ columns.T, found["output"], "output")
        total = total + np.array(found["output"])
        assert (found["angles"] is not None) == (own.config.position.startswith("rotary") and kind == "self")
    bias = 0 if layer.output.bias is None else layer.output.bias.detach().double().numpy()
    np.testing.assert_allclose(total + bias, flows["layer"].double().numpy(), atol=NEAR * heads, rtol=0)


def look(own: Model, name: str) -> Any:
    return own.look(picture() if name == "vit-b16" else TEXT)


def test_equal_tokens_have_equal_keys_until_they_are_rotated(client: TestClient) -> None:
    """k = x W_K knows nothing of positions; the rotation is what tells four equal tokens apart."""
    own = client.service.find("llama2-70b", "look").model  # type: ignore[attr-defined]
    found = own.look([9, 9, 9, 9]).walk(0, 3)
    assert (found.x == found.x[0]).all() and torch.allclose(found.key, found.key[0], atol=1e-6)
    assert torch.equal(found.rotated_key[0], found.key[0])  # at position 0 by an angle of 0
    assert torch.pdist(found.rotated_key).min() > 0.01
    torch.testing.assert_close(found.rotated_key.norm(dim=-1), found.key.norm(dim=-1))


@pytest.mark.parametrize("name", ["rnnsearch", "luong"])
def test_every_step_of_a_recurrent_decoder_is_the_networks(client: TestClient, name: str) -> None:
    """One token after the other: state, query, weights, context and the state that follows."""
    own = client.service.find(name, "look").model  # type: ignore[attr-defined]
    network, batch = own.network, look(own, name).batch
    found = asked(client, name, kind="cross")
    attention = network.decoder.attention
    with torch.no_grad():
        state = network.start(batch)
        steps = []
        for token in batch.inputs.T:
            with record(network, ["decoder.attention.query", "decoder.attention.tap_step", "decoder"]) as kept:
                _, after = network.step(token[:, None], state)
            layers = state.layers or network.decoder.first(kept["decoder"], state.memory)  # before the first token
            hidden = (layers if name == "rnnsearch" else after.layers)[-1][
                "hidden"
            ]  # Bahdanau looks, then moves; Luong moves
            query, weights = (kept[f"decoder.attention.{tap}"] for tap in ("query", "tap_step"))
            steps.append((hidden[0], query[0], weights.flatten(), kept["decoder"][0, 0]))
            state = after
        memory = network.encode(batch).vectors[0]
    states, queries, weights, outputs = map(torch.stack, zip(*steps, strict=True))  # (T, C) twice, (T, S), (T, C)
    flows = {"x": states, "query": queries, "weights": weights, "output": outputs, "memory": memory, "value": memory}
    for part, own_part in (flows | {"key": attention.key(memory), "mixed": weights @ memory}).items():
        near(found[part], own_part, part)
    for part, given in (("query", "x"), ("key", "memory")):
        near(linear(np.array(found[given]), getattr(attention, part), slice(None)), found[part], part)
    recomputed(found)
    assert (found["into"], found["score"]) == (("cell", "additive") if name == "rnnsearch" else ("output", "bilinear"))
    assert found["residual"] is None and found["shared"] == [0]


# --- what rows are called


@pytest.mark.parametrize(("name", "kind"), [("transformer-base", "cross"), ("transformer-base", "decoder"), ("luong", "cross"),
                                            ("rnnsearch", "cross")])  # fmt: skip
def test_a_row_belongs_to_what_was_read_and_not_to_what_is_predicted(client: TestClient, name: str, kind: str) -> None:
    """Another token in place of X changes the vector of the row "after X, predicting Y"; one in place of Y does not."""
    own = client.service.find(name, "look").model  # type: ignore[attr-defined]
    one = own.look(TEXT, TARGET)
    found, tokens = one.walk(-1, 0, kind), [token.strip() for token in one.tokens]
    after, predicting = ([token.strip() for token in some] for some in (found.after, found.predicting))
    assert len(set(tokens)) == len(tokens) and predicting == [*tokens[1:], "(next)"]
    assert found.rows == [f"after {x}, predicting {y}" for x, y in zip(after, predicting, strict=True)]
    assert found.rows == one.attention(-1, 0, kind).rows == asked(client, name, kind=kind, target=TARGET)["rows"]
    for place, token in enumerate(tokens):
        inputs = one.batch.inputs.clone()
        inputs[0, place] = 50 if inputs[0, place] != 50 else 51
        changed = walk(own.network, replace(one.batch, inputs=inputs), -1, 0, kind).x
        moved = [bool((a != b).any()) for a, b in zip(changed, found.x, strict=True)]
        assert not any(moved[row] for row, y in enumerate(predicting) if y == token)
        assert all(moved[row] for row, x in enumerate(after) if x == token)
