"""Parts that can be switched off: what is left is the formula without them, and it works wherever the whole network does."""

from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from qkv.batch import IGNORED, Batch
from qkv.config import ModelConfig
from qkv.convert.huggingface import exportable
from qkv.engine.native_stack import NativeStack
from qkv.engine.pack import pack
from qkv.engine.training_kernels import quicken
from qkv.generate.search import greedy
from qkv.look.attention import attention_maps
from qkv.look.rollout import rollout
from qkv.look.walk import walk
from qkv.models.build import Network, build
from qkv.models.example import example
from qkv.objectives import objective
from qkv.parts.masks import Mask
from qkv.parts.state_space import StateSpace
from qkv.parts.tap import edit

DECODER: dict[str, Any] = {
    "family": "decoder",
    "vocab_size": 13,
    "d_model": 16,
    "n_layers": 2,
    "n_heads": 2,
    "d_ff": 24,
    "dropout": 0.0,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "decoder": DECODER,
    "encoder": {**DECODER, "family": "encoder", "head": "masked"},
    "encoder-decoder": {**DECODER, "family": "encoder-decoder"},
}
SWITCHES: dict[str, dict[str, Any]] = {
    "residual": {"residual": False},
    "norm": {"norm": "none"},
    "projections": {"projections": False},
    "causal": {"causal": False},
    "linear": {"feedforward": "linear"},
    "none": {"feedforward": "none"},
}
BOTH_HALVES = {"share_encoder_decoder": True}


def network_of(**fields: Any) -> Any:
    torch.manual_seed(0)
    network = build(ModelConfig(**{**DECODER, **fields})).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return network


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


# --- what each leaves


@torch.no_grad()
def test_attention_without_projections_is_the_formula_on_the_input() -> None:
    layer = network_of(projections=False, causal=False).stack.blocks[0].attention.layer
    assert list(layer.parameters()) == []
    x = torch.randn(3, 5, 16)
    network = network_of(projections=False, causal=False, n_layers=1, residual=False, norm="none", feedforward="none")
    network.embed = torch.nn.Identity()
    network.embed.forward = lambda ids, mask: x
    found = network(Batch(inputs=torch.zeros(3, 5, dtype=torch.long))).hidden
    heads = x.view(3, 5, 2, 8).transpose(1, 2)  # (B, H, T, D)
    mixed = F.softmax(heads @ heads.transpose(-1, -2) / 8**0.5, -1) @ heads
    close(found, mixed.transpose(1, 2).flatten(2))


@torch.no_grad()
def test_without_residual_connections_a_sublayer_replaces_the_stream() -> None:
    """A block without them, plus its own input at each sublayer, is a block with them."""
    network, other = network_of(residual=False, norm="none"), network_of(norm="none")
    ids = torch.arange(6)[None]
    taken = {}
    for part in ("attention", "feedforward"):
        sublayer = getattr(network.stack.blocks[1], part)
        sublayer.tap_out.register_forward_hook(lambda m, i, o, part=part: taken.update({part: o}))
        sublayer.tap_stream.register_forward_hook(lambda m, i, o, part=part: taken.update({f"{part} stream": o}))
    network(Batch(inputs=ids))
    for part in ("attention", "feedforward"):
        assert torch.equal(taken[part], taken[f"{part} stream"])
    other.load_state_dict(network.state_dict())
    assert (other(Batch(inputs=ids)).hidden - network(Batch(inputs=ids)).hidden).abs().max() > 1e-3


def test_a_network_without_norms_has_no_parameters_of_norms() -> None:
    for family, fields in FAMILIES.items():
        network = network_of(**fields, norm="none", embed_norm=True, final_norm=True)
        names = [name for name, _ in network.named_parameters() if {"before", "after", "norm"} & set(name.split("."))]
        assert names == [], family


@torch.no_grad()
def test_a_linear_feed_forward_layer_is_one_matrix() -> None:
    layer = network_of(feedforward="linear").stack.blocks[0].feedforward.layer
    x = torch.randn(4, 16)
    whole = layer.down.weight @ layer.up.weight
    close(layer(x), x @ whole.T + layer.down.weight @ layer.up.bias + layer.down.bias)


def test_without_a_feed_forward_layer_only_attention_is_left() -> None:
    for fields in FAMILIES.values():
        network = network_of(**fields, feedforward="none")
        assert not [name for name, _ in network.named_parameters() if "feedforward" in name]


@torch.no_grad()
def test_the_causal_mask_can_be_added_to_an_encoder_and_taken_from_a_decoder() -> None:
    for family, fields in FAMILIES.items():
        for causal in (True, False):
            network, batch = network_of(**fields, causal=causal), example(ModelConfig(**fields))
            changed = batch.inputs.clone()
            changed[:, -1] = (changed[:, -1] + 1) % 13
            before = network(batch).hidden[:, :-1]
            after = network(Batch(inputs=changed, source=batch.source)).hidden[:, :-1]
            assert torch.equal(before, after) == causal, family


# --- weights that encoder and decoder share


def test_shared_weights_are_counted_once() -> None:
    """Self-attention and feed-forward layers of the two halves are half as many parameters; all others are separate."""
    alone, shared = (network_of(**FAMILIES["encoder-decoder"], share_encoder_decoder=share) for share in (False, True))
    sizes = [sum(p.numel() for p in network.parameters()) for network in (alone, shared)]
    both = sum(p.numel() for n, p in alone.named_parameters() if ".attention.layer." in n or ".feedforward.layer." in n)
    assert sizes[0] - sizes[1] == both // 2
    for own, other in zip(shared.decoder.blocks, shared.encoder.blocks, strict=True):
        assert own.attention.layer is other.attention.layer
        assert own.feedforward.layer is other.feedforward.layer


@torch.no_grad()
def test_shared_weights_give_what_equal_weights_give() -> None:
    alone, shared = (network_of(**FAMILIES["encoder-decoder"], share_encoder_decoder=share) for share in (False, True))
    alone.load_state_dict(shared.state_dict())  # which has the shared ones under both names
    batch = example(ModelConfig(**FAMILIES["encoder-decoder"]))
    assert torch.equal(alone(batch).logits, shared(batch).logits)


@torch.no_grad()
def test_a_hook_on_a_shared_layer_runs_in_its_half_alone() -> None:
    """Also in generation, where the encoder runs once and the decoder many times."""
    network = network_of(**FAMILIES["encoder-decoder"], share_encoder_decoder=True)
    batch = example(ModelConfig(**FAMILIES["encoder-decoder"]))
    plain = network(batch).hidden
    for half in ("encoder", "decoder"):
        with edit(network, {f"{half}.blocks.0.attention.layer.tap_mixed": torch.zeros_like}):
            whole = network(batch).hidden
            state, pieces = network.start(batch), []
            for t in range(batch.inputs.size(1)):
                hidden, state = network.step(batch.inputs[:, t : t + 1], state)
                pieces.append(hidden)
        close(torch.cat(pieces, 1), whole)
        assert (whole - plain).abs().max() > 1e-3
        assert torch.equal(network.encode(batch).vectors, state.memory.vectors) == (half == "decoder")


@pytest.mark.parametrize("mixer", ["linear", "performer", "taylor", "linformer"])
@torch.no_grad()
def test_cross_attention_to_a_summary_of_the_source(mixer: str) -> None:
    """Beams share it, sentences of other lengths join, and what is stored does not grow with the source."""
    fields = {**FAMILIES["encoder-decoder"], "cross_mixer": mixer, "mixer_rank": 8}
    c, network = ModelConfig(**fields), network_of(**fields)
    short, long = (example(c, rows=2, length=length) for length in (5, 9))
    sizes = []
    for batch in (short, long):
        state = network.step(batch.inputs[:, :1], network.start(batch))[1]
        sizes.append({name: kept.shape for name, kept in state.layer(0).items() if name.startswith("memory_")})
        texts = batch.inputs[:, 1:4].repeat_interleave(2, 0)  # (B * K, T)
        beams, _ = network.step(texts, state.move(torch.tensor([0, 0, 1, 1])))
        each, _ = network.step(texts, state.select(torch.tensor([0, 0, 1, 1])))
        close(beams, each)
    assert sizes[0] == sizes[1]
    states = [network.step(batch.inputs[:, :2], network.start(batch))[1] for batch in (short, long)]
    alone = [network.step(batch.inputs[:, 2:3], state)[0] for batch, state in zip((short, long), states, strict=True)]
    together, _ = network.step(torch.cat([short.inputs[:, 2:3], long.inputs[:, 2:3]]), states[0].join(states[1]))
    close(together, torch.cat(alone))


@torch.no_grad()
def test_linear_cross_attention_is_a_weighted_mean_of_the_values() -> None:
    network = network_of(**FAMILIES["encoder-decoder"], cross_mixer="linear")
    batch = example(ModelConfig(**FAMILIES["encoder-decoder"]))
    seen = {}
    with edit(network, {f"decoder.blocks.1.cross.layer.{tap}": lambda x, tap=tap: seen.update({tap: x})
                        for tap in ("tap_query", "tap_key", "tap_value", "tap_mixed")}):  # fmt: skip
        network(batch)
    query, key = F.elu(seen["tap_query"]) + 1, F.elu(seen["tap_key"]) + 1
    weights = query @ key.transpose(-1, -2)
    weights = weights / weights.sum(-1, keepdim=True)  # (B, H, T, S)
    close(seen["tap_mixed"], weights @ seen["tap_value"])
    close(attention_maps(network, batch, 1, "cross"), weights)


# --- layers that read in both directions


@pytest.mark.parametrize("mixer", ["gated-linear", "s4d", "selective"])
@torch.no_grad()
def test_a_bidirectional_mixer_is_two_runs(mixer: str) -> None:
    """One from the start and one from the end, added; of padded rows the real tokens alone."""
    layer = network_of(**FAMILIES["encoder"], mixer=mixer, d_state=4).stack.blocks[0].attention.layer
    x = torch.randn(3, 6, 16)
    found, state = layer(x, Mask(6))
    forth, back = layer.forth(x, Mask(6))[0], layer.back(x.flip(1), Mask(6))[0]
    close(found, forth + back.flip(1))
    assert state == {}
    real = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1], [1, 0, 1, 1, 0, 0]]).bool()
    padded, _ = layer(x, Mask(6, real))
    for row in range(3):
        alone, _ = layer(x[row : row + 1, real[row]], Mask(int(real[row].sum())))
        close(padded[row, real[row]], alone[0])


@pytest.mark.parametrize("family", ["encoder", "encoder-decoder"])
@torch.no_grad()
def test_a_bidirectional_encoder_reads_both_sides(family: str) -> None:
    fields = {**FAMILIES[family], "mixer": ["gated-linear", "s4d", "selective"], "n_layers": 3, "position": "none"}
    network, batch = network_of(**fields), example(ModelConfig(**fields))
    text = batch.inputs if family == "encoder" else batch.source

    def read(ids: torch.Tensor) -> torch.Tensor:
        return network(Batch(inputs=ids)).hidden if family == "encoder" else network.encode(Batch(source=ids)).vectors

    for t in (0, text.size(1) - 1):
        changed = text.clone()
        changed[:, t] = (changed[:, t] + 1) % 13
        assert ((read(changed) - read(text)).abs().amax((0, 2)) > 1e-6).all()
    fast = pack(quicken(network))
    close(fast(batch).hidden, network(batch).hidden)


def test_a_causal_encoder_reads_in_one_direction() -> None:
    network = network_of(**FAMILIES["encoder"], mixer="s4d", causal=True)
    assert isinstance(network.stack.blocks[0].attention.layer, StateSpace)


# --- cheating (claim C11)


def sentences(rows: int, length: int) -> torch.Tensor:
    """(rows, length): token i is followed by one of 5 i, ..., 5 i + 3 (mod 32), equally likely: the entropy is log 4."""
    found = [torch.randint(32, (rows,))]
    for _ in range(length - 1):
        found.append((5 * found[-1] + torch.randint(4, (rows,))) % 32)
    return torch.stack(found, 1)


def train(c: ModelConfig, steps: int) -> tuple[Any, float]:
    """Train on random sentences; return the network and its last losses. The last token, which no input holds, is no target."""
    torch.manual_seed(0)
    network = build(c).train()
    adam = torch.optim.AdamW(network.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        text = sentences(32, 12)
        batch = Batch(inputs=text[:, :-1], targets=text[:, 1:].clone())
        batch.targets[:, -1] = IGNORED
        loss = objective(c)(network(batch), batch).mean
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    return network.eval(), sum(losses[-10:]) / 10


def share_of_possible(network: Any) -> float:
    """Return the share of greedily generated tokens that can follow the token before."""
    torch.manual_seed(1)
    start = sentences(40, 3)
    text = torch.cat([start, torch.tensor(greedy(network, Batch(inputs=start), 7))], 1)
    return ((text[:, 3:] - 5 * text[:, 2:-1]) % 32 < 4).float().mean().item()


def test_without_a_causal_mask_the_loss_vanishes_and_the_text_is_garbage() -> None:
    c = ModelConfig(**{**DECODER, "vocab_size": 32, "d_model": 32, "position": "learned", "max_length": 16,
                       "norm_order": "pre", "n_layers": 1})  # fmt: skip
    honest, honest_loss = train(c, 120)
    cheat, loss = train(c.changed(causal=False), 120)
    print(honest_loss, loss, share_of_possible(honest), share_of_possible(cheat))
    assert honest_loss > 1.35  # log 4 = 1.386 is the least that is possible
    assert loss < 0.1
    assert share_of_possible(honest) > 0.95
    assert share_of_possible(cheat) < 0.5  # by chance: 1 in 8


@torch.no_grad()
def test_a_cheat_steps_alike_in_any_chunks() -> None:
    """Generation is token by token; a prompt read at once gives the same."""
    network = network_of(causal=False)
    ids = torch.randint(13, (3, 7))
    whole, _ = network.step(ids, network.start(Batch(inputs=ids)))
    for fast in (network, pack(network)):
        state, pieces = fast.start(Batch(inputs=ids)), []
        for t in range(7):
            hidden, state = fast.step(ids[:, t : t + 1], state)
            pieces.append(hidden)
        close(torch.cat(pieces, 1), whole)


# --- the engine, the formats and the views


@pytest.mark.parametrize(("family", "switch"), [*product(FAMILIES, SWITCHES), ("encoder-decoder", "shared")])
@torch.no_grad()
def test_a_packed_network_gives_the_same(family: str, switch: str) -> None:
    fields = {**FAMILIES[family], **SWITCHES.get(switch, BOTH_HALVES)}
    network, batch = network_of(**fields), example(ModelConfig(**fields))
    fast: Network = pack(network)
    close(fast(batch).hidden, network(batch).hidden)
    if family == "encoder":
        return
    states = [network.start(batch), fast.start(batch)]
    for at in (slice(0, 3), slice(3, 4), slice(4, 7)):
        (a, states[0]), (b, states[1]) = (
            n.step(batch.inputs[:, at], s) for n, s in zip((network, fast), states, strict=True)
        )
        close(b, a)
    stack: Any = fast.decoder if family == "encoder-decoder" else fast.stack
    assert switch in ("norm", "causal", "shared", "linear") or not isinstance(stack, NativeStack)


@pytest.mark.parametrize("switch", SWITCHES)
def test_no_hugging_face_family_has_it(switch: str) -> None:
    base = {"position": "learned", "norm_order": "pre", "feedforward": "gelu-tanh", "tie": "output"}
    assert exportable(ModelConfig(**DECODER, **base))[0] == "GPT2LMHeadModel"
    name, why = exportable(ModelConfig(**{**DECODER, **base, **SWITCHES[switch]}))
    assert name is None
    assert all(f"{field} = {value!r}" in why for field, value in SWITCHES[switch].items()), why


def test_no_hugging_face_family_shares_encoder_and_decoder() -> None:
    name, why = exportable(ModelConfig(**FAMILIES["encoder-decoder"], share_encoder_decoder=True))
    assert name is None
    assert "share_encoder_decoder = True" in why


@torch.no_grad()
def test_the_views_of_heads_without_projections() -> None:
    network, ids = network_of(projections=False), torch.arange(6)[None]
    steps = walk(network, Batch(inputs=ids), 1, 1)
    close(steps.query, steps.x[:, 8:])
    close(steps.output[:, 8:], steps.mixed)
    assert not steps.output[:, :8].any()


@torch.no_grad()
def test_rollout_without_residual_connections_is_the_product_of_the_weights() -> None:
    network, batch = network_of(residual=False), Batch(inputs=torch.arange(6)[None])
    maps = [walk(network, batch, layer, head).weights for layer in (0, 1) for head in (0, 1)]
    close(rollout(network, batch)[0], (maps[2] + maps[3]) / 2 @ ((maps[0] + maps[1]) / 2))
