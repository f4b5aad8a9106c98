"""Properties of the single parts: scores, positions, norms, feed-forward, masks, attention, embeddings, heads, taps."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from qkv.batch import Batch
from qkv.config import RotaryScaling
from qkv.errors import QkvError
from qkv.models.build import build, skeleton
from qkv.models.example import example
from qkv.parts.attention import Attention
from qkv.parts.embed import Bigrams, PatchEmbed, TokenEmbed
from qkv.parts.feedforward import FeedForward
from qkv.parts.heads import Pick, Pooler, Vocabulary
from qkv.parts.masks import Mask, causal
from qkv.parts.norm import LayerNorm, RMSNorm
from qkv.parts.positions import (
    Alibi,
    Learned,
    Relative,
    Rotary,
    Sinusoidal,
    T5Bias,
    alibi_slopes,
    sinusoids,
    stretch,
)
from qkv.parts.scores import make_score
from qkv.parts.softmax import Softmax
from qkv.parts.state import EncoderOutput, State
from qkv.parts.tap import Tap, record
from qkv.presets import PRESETS, tiny

SCORES = ["dot", "scaled-dot", "bilinear", "low-rank", "additive"]


def heads(t: int, h: int = 2, d: int = 8, b: int = 2, seed: int = 0) -> Tensor:
    return torch.randn(b, h, t, d, generator=torch.Generator().manual_seed(seed))


# --- scores


def test_each_score_is_its_formula() -> None:
    q, k = heads(3), heads(5, seed=1)
    for kind in SCORES:
        score = make_score(kind, 2, 8, rank=3)
        got = score(q, k)
        for h in range(2):
            a, b = q[1, h, 2], k[1, h, 4]
            formula = {
                "dot": lambda: a @ b,
                "scaled-dot": lambda: a @ b / math.sqrt(8),
                "bilinear": lambda: a @ score.weight[h] @ b,
                "low-rank": lambda: (a @ score.left[h]) @ (score.right[h] @ b),
                "additive": lambda: score.weight[h] @ torch.tanh(a + b),
            }[kind]()
            torch.testing.assert_close(got[1, h, 2, 4], formula, msg=kind)


@pytest.mark.parametrize("kind", ["dot", "scaled-dot", "bilinear", "low-rank"])
def test_multiplicative_scores_fold_into_the_query(kind: str) -> None:
    q, k, v = heads(4), heads(4, seed=1), heads(4, seed=2)
    mixer = Softmax(make_score(kind, 2, 8, rank=3))
    assert mixer.can_use_kernel(q)
    fast = mixer(q, k, v, Mask(4, causal=True))
    mixer.fast = False
    torch.testing.assert_close(fast, mixer(q, k, v, Mask(4, causal=True)), atol=1e-6, rtol=1e-5)


def test_low_rank_has_the_rank_it_says() -> None:
    score = make_score("low-rank", 1, 8, rank=3)
    assert torch.linalg.matrix_rank((score.left @ score.right)[0]) == 3


# --- positions


def test_sinusoids_turn_by_an_angle_that_depends_on_the_distance_alone() -> None:
    """Claim C9: P(t + c) = M_c P(t), with the same M_c for every t."""
    table = sinusoids(torch.arange(400), 6, base=100.0).double()
    c = 5
    m = torch.linalg.lstsq(table[:-c], table[c:]).solution
    torch.testing.assert_close(table[:-c] @ m, table[c:], atol=1e-5, rtol=0)
    torch.testing.assert_close(m @ m.T, torch.eye(6).double(), atol=1e-4, rtol=0)


def test_sinusoids_are_the_equation_of_the_paper() -> None:
    """P(t, 2i) = sin(t / base^(2i / width)), P(t, 2i + 1) = cos(the same)."""
    for base in (10_000.0, 100.0):
        for t, row in zip((0, 1, 7, 300), sinusoids(torch.tensor([0, 1, 7, 300]), 6, base).tolist(), strict=True):
            angles = [t / base ** (2 * i / 6) for i in range(3)]
            assert row == pytest.approx([wave(a) for a in angles for wave in (math.sin, math.cos)], abs=1e-6)


def test_sinusoid_layouts_hold_the_same_waves_and_the_base_is_a_setting() -> None:
    t = torch.arange(9)
    interleaved, halves = sinusoids(t, 6), sinusoids(t, 6, layout="halves")
    assert torch.equal(torch.cat([interleaved[:, 0::2], interleaved[:, 1::2]], 1), halves)
    assert not torch.allclose(sinusoids(t, 6, base=100_000.0), interleaved)
    assert torch.equal(Sinusoidal(6).vectors(Mask(1, length=601)), sinusoids(torch.tensor([[600]]), 6))


@pytest.mark.parametrize("interleaved", [True, False])
def test_rotary_scores_depend_on_the_distance_alone(interleaved: bool) -> None:
    """Claim C10: the same pair of vectors, moved together, keeps its score."""
    rotary = Rotary(8, interleaved=interleaved)
    q, k = torch.randn(8), torch.randn(8)
    turned_q = rotary(Mask(40)).rotate(q.expand(1, 1, 40, 8))[0, 0]
    turned_k = rotary(Mask(40)).rotate(k.expand(1, 1, 40, 8))[0, 0]
    scores = turned_q @ turned_k.T  # (40, 40)
    for distance in (0, 3, 11):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-4, rtol=1e-4)
    assert scores.diagonal(3)[0] != scores.diagonal(11)[0]


def test_rotary_layouts_are_the_same_up_to_the_order_of_channels() -> None:
    x = heads(5)
    order = torch.arange(8).view(2, 4).T.flatten()  # neighbours <-> half a head apart
    turned = Rotary(8, interleaved=True)(Mask(5)).rotate(x[..., order])
    torch.testing.assert_close(turned, Rotary(8)(Mask(5)).rotate(x)[..., order])


def test_llama3_stretches_long_wavelengths_only() -> None:
    rates = 500_000.0 ** (-torch.arange(0, 64, 2, dtype=torch.float64) / 64)
    stretched = stretch(
        rates, RotaryScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_length=8192)
    )
    wavelengths = 2 * math.pi / rates
    ratio = rates / stretched
    assert torch.allclose(ratio[wavelengths < 8192 / 4], torch.ones(()).double())
    assert torch.allclose(ratio[wavelengths > 8192], torch.full((), 8.0).double())
    middle = (wavelengths > 8192 / 4) & (wavelengths < 8192)
    assert middle.any() and (ratio[middle] > 1).all() and (ratio[middle] < 8).all()


def test_t5_buckets_are_exact_near_logarithmic_far_and_split_by_direction() -> None:
    distance = torch.arange(-300, 301)
    both, past = T5Bias(2, 32, 128, causal=False), T5Bias(2, 32, 128, causal=True)
    b, p = both.buckets(distance), past.buckets(distance)
    assert b[300 - 7 : 301].tolist() == list(range(7, -1, -1))  # up to 7 back: one bucket each
    assert (b[distance > 0] >= 16).all() and (b[distance <= 0] < 16).all()
    assert b.max() == 31 and b[0] == 15 and (p[distance > 0] == 0).all() and p[0] == 31
    assert (p[:301].diff() <= 0).all()


def test_alibi_slopes_are_the_papers() -> None:
    assert alibi_slopes(8).tolist() == [2.0 ** -(i + 1) for i in range(8)]
    between = [2.0 ** -(i + 0.5) for i in range(4)]  # every second one of sixteen
    assert alibi_slopes(12).tolist() == pytest.approx([*alibi_slopes(8).tolist(), *between])
    bias = Alibi(8)(Mask(4)).score_bias(heads(4, 8), heads(4, 8))
    assert bias[0, 0, 3].tolist() == [-1.5, -1.0, -0.5, -0.0]


@pytest.mark.parametrize("per_head", [False, True])
def test_relative_positions_are_shaws_formula(per_head: bool) -> None:
    relative = Relative(8, 2, scale=8**-0.5, n_heads=2 if per_head else None)
    near_key, near_value = (p[1] if per_head else p for p in (relative.keys, relative.values))  # of head 1
    q, k, v = heads(5), heads(5, seed=1), heads(5, seed=2)
    got = Softmax(make_score("scaled-dot", 2, 8))(q, k, v, Mask(5, causal=True), relative(Mask(5, causal=True)))
    for i in range(5):
        clip = [max(-2, min(2, j - i)) + 2 for j in range(i + 1)]
        scores = torch.stack([q[0, 1, i] @ (k[0, 1, j] + near_key[clip[j]]) for j in range(i + 1)]) / math.sqrt(8)
        w = scores.softmax(0)
        torch.testing.assert_close(got[0, 1, i], sum(w[j] * (v[0, 1, j] + near_value[clip[j]]) for j in range(i + 1)))


def test_learned_positions_end_where_the_table_ends() -> None:
    """Claim C8: there is nothing beyond the trained length."""
    learned = Learned(4, 8, offset=2)
    assert torch.equal(learned.vectors(Mask(4)), learned.table[2:][None])
    with pytest.raises(QkvError, match="5 tokens"):
        learned.vectors(Mask(5))
    left = torch.tensor([[False, False, True, True, True]])
    assert torch.equal(learned.vectors(Mask(5, left))[:, 2:], learned.table[2:5][None])  # three real tokens fit


# --- norms and feed-forward


def test_norms_are_their_formulas() -> None:
    x = torch.randn(2, 3, 8)
    layer, rms = LayerNorm(8, 1e-5), RMSNorm(8, 1e-6)
    for parameter in (layer.weight, layer.bias, rms.weight):
        nn.init.normal_(parameter)
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
    torch.testing.assert_close(layer(x), (x - mean) / (variance + 1e-5).sqrt() * layer.weight + layer.bias)
    torch.testing.assert_close(rms(x), x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * rms.weight)
    assert LayerNorm(8, 1e-5, bias=False).bias is None


@pytest.mark.parametrize(
    ("kind", "gated", "f"),
    [("relu", False, F.relu), ("gelu", False, F.gelu), ("silu", False, F.silu), ("reglu", True, F.relu),
     ("gelu-tanh", False, lambda x: F.gelu(x, approximate="tanh")), ("geglu", True, F.gelu), ("swiglu", True, F.silu),
     ("geglu-tanh", True, lambda x: F.gelu(x, approximate="tanh")), ("bilinear", True, lambda x: x)],
)  # fmt: skip
def test_feedforward_kinds(kind: str, gated: bool, f) -> None:  # noqa: ANN001
    layer, x = FeedForward(8, 16, kind), torch.randn(2, 3, 8)
    inner = f(layer.gate(x)) * layer.up(x) if gated else f(layer.up(x))
    assert (layer.gate is not None) == gated
    torch.testing.assert_close(layer(x), layer.down(inner))


# --- masks


@given(t=st.integers(1, 6), past=st.integers(0, 5))
def test_the_causal_table(t: int, past: int) -> None:
    for i in range(t):
        for j in range(t + past):
            assert causal(t, t + past)[i, j] == (j <= past + i)


@settings(deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.sampled_from(["left", "right"]), st.booleans())
def test_kernel_mask_and_readable_mask_agree_on_real_tokens(lengths: list[int], side: str, is_causal: bool) -> None:
    t = max(lengths)
    steps = torch.arange(t)[None]
    sizes = torch.tensor(lengths)[:, None]
    keys = steps < sizes if side == "right" else steps >= t - sizes
    mask = Mask(t, keys, causal=is_causal)
    x = [heads(t, b=len(lengths), seed=i) for i in range(3)]
    mixer = Softmax(make_score("scaled-dot", 2, 8))
    fast = mixer(*x, mask)
    mixer.fast = False
    slow = mixer(*x, mask)
    assert fast.isfinite().all() and slow.isfinite().all()
    torch.testing.assert_close(fast.transpose(1, 2)[keys], slow.transpose(1, 2)[keys], atol=1e-5, rtol=1e-5)


def test_a_source_of_padding_alone_gives_no_nan() -> None:
    mask = Mask.for_memory(3, EncoderOutput(torch.zeros(2, 2, 16), torch.tensor([[True, False], [False, False]])))
    mixer = Softmax(make_score("scaled-dot", 2, 8))
    for fast in (True, False):
        mixer.fast = fast
        assert mixer(heads(3), heads(2, seed=1), heads(2, seed=2), mask).isfinite().all()


# --- attention


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("position", ["none", "rotary", "t5", "alibi", "relative"])
def test_fast_attention_is_the_readable_one(kv_heads: int, position: str) -> None:
    scheme = {"none": lambda m: None, "rotary": Rotary(8), "t5": T5Bias(4, 8, 16, causal=True), "alibi": Alibi(4),
              "relative": Relative(8, 3, 8**-0.5)}[position]  # fmt: skip
    mixer = Softmax(make_score("scaled-dot", 4, 8))
    attention = Attention(32, 4, kv_heads, 8, mixer)
    x = torch.randn(2, 6, 32)
    mask = Mask(6, torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]]).bool(), causal=True)
    fast, _ = attention(x, mask, scheme(mask))
    mixer.fast = False
    slow, _ = attention(x, mask, scheme(mask))
    torch.testing.assert_close(fast, slow, atol=1e-5, rtol=1e-5)


def test_grouped_heads_are_full_heads_with_repeated_weights() -> None:
    grouped = Attention(32, 4, 2, 8, Softmax(make_score("scaled-dot", 4, 8)))
    full = Attention(32, 4, 4, 8, Softmax(make_score("scaled-dot", 4, 8)))
    full.load_state_dict({
        name: w.unflatten(0, (2, 8)).repeat_interleave(2, 0).flatten(0, 1) if name.split(".")[0] in ("key", "value") else w
        for name, w in grouped.state_dict().items()
    })  # fmt: skip
    x = torch.randn(2, 5, 32)
    torch.testing.assert_close(grouped(x, Mask(5))[0], full(x, Mask(5))[0])


def test_attention_is_torchs_multihead_attention() -> None:
    """An independent implementation with the same weights."""
    ours = Attention(32, 4, 4, 8, Softmax(make_score("scaled-dot", 4, 8)))
    theirs = nn.MultiheadAttention(32, 4, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.query.weight, ours.key.weight, ours.value.weight]))
        theirs.in_proj_bias.copy_(torch.cat([ours.query.bias, ours.key.bias, ours.value.bias]))
        theirs.out_proj.load_state_dict(ours.output.state_dict())
    x, pad = torch.randn(2, 6, 32), torch.tensor([[0, 0, 0, 0, 1, 1], [0] * 6]).bool()
    blocked = ~causal(6, 6)
    expected, _ = theirs(x, x, x, key_padding_mask=pad, attn_mask=blocked)
    got, _ = ours(x, Mask(6, ~pad, causal=True))
    torch.testing.assert_close(got[~pad], expected[~pad], atol=1e-5, rtol=1e-5)


def test_without_positions_order_is_invisible() -> None:
    """Claim C7: permuting the input permutes the output."""
    attention = Attention(16, 2, 2, 8, Softmax(make_score("scaled-dot", 2, 8)))
    x, order = torch.randn(1, 7, 16), torch.randperm(7)
    torch.testing.assert_close(
        attention(x[:, order], Mask(7))[0], attention(x, Mask(7))[0][:, order], atol=1e-5, rtol=1e-5
    )


def test_causal_attention_with_a_tap_gives_exact_weights_and_the_same_output() -> None:
    mixer = Softmax(make_score("scaled-dot", 2, 8))
    attention, x = Attention(16, 2, 2, 8, mixer), torch.randn(2, 5, 16)
    mask = Mask(5, causal=True)
    plain, _ = attention(x, mask)
    with record(attention, ["mixer.tap_weights", "tap_value"]) as seen:
        tapped, _ = attention(x, mask)
    weights = seen["mixer.tap_weights"]
    assert torch.equal(weights.triu(1), torch.zeros_like(weights))
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 5))
    torch.testing.assert_close(tapped, plain, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(
        attention.output((weights @ seen["tap_value"]).transpose(1, 2).flatten(2)), plain, atol=1e-6, rtol=1e-5
    )
    assert not mixer.tap_weights._forward_hooks


def test_a_tap_can_edit() -> None:
    mixer = Softmax(make_score("scaled-dot", 2, 8))
    attention, x = Attention(16, 2, 2, 8, mixer), torch.randn(1, 4, 16)
    handle = attention.tap_mixed.register_forward_hook(lambda m, i, out: out * torch.tensor([0.0, 1.0])[:, None, None])
    off, _ = attention(x, Mask(4))
    handle.remove()
    with torch.no_grad():
        attention.output.weight[:, :8] = 0  # what head 0 writes
    torch.testing.assert_close(off, attention(x, Mask(4))[0])
    assert isinstance(attention.tap_mixed, Tap)


# --- embeddings, heads, state


def test_token_embedding_adds_scales_concatenates() -> None:
    ids, segments = torch.tensor([[3, 1, 4]]), torch.tensor([[0, 1, 1]])
    words = nn.Embedding(9, 8)
    added = TokenEmbed(words, 8, position=Sinusoidal(8), n_segments=2, scale=True)
    expected = words(ids) * math.sqrt(8) + added.segments(segments) + sinusoids(torch.arange(3), 8)
    torch.testing.assert_close(added(ids, Mask(3), segments), expected)
    beside = TokenEmbed(words, 12, position=Sinusoidal(4), concat=True)
    torch.testing.assert_close(beside(ids, Mask(3)), torch.cat([words(ids), sinusoids(torch.arange(3), 4)[None]], -1))


def test_pairs_of_words_have_vectors_of_their_own() -> None:
    """A pair's vector depends on both words and their order, not on padding or on another document in the row."""
    embed = TokenEmbed(nn.Embedding(9, 8), 8, bigrams=Bigrams(10_000, 8), scale=True).eval()
    ids = torch.tensor([[3, 1, 4, 1]])
    torch.testing.assert_close(embed(ids, Mask(4)), embed.tokens(ids) * math.sqrt(8))  # they say nothing at first
    with torch.no_grad():
        embed.bigrams.weight.normal_()
    pairs = (embed(ids, Mask(4)) / math.sqrt(8) - embed.tokens(ids))[0]  # (4, 8): of 3, 31, 14, 41
    assert len({tuple(row.tolist()) for row in pairs.round(decimals=3)}) == 4
    swapped = embed(torch.tensor([[1, 3]]), Mask(2)) / math.sqrt(8) - embed.tokens(torch.tensor([[1, 3]]))
    assert not torch.allclose(swapped[0, 1], pairs[1])  # 13 is not 31
    padded, keys = torch.tensor([[0, 3, 0, 1, 4, 0, 1]]), torch.tensor([[0, 1, 0, 1, 1, 0, 1]]).bool()
    torch.testing.assert_close(embed(padded, Mask(7, keys))[keys], embed(ids, Mask(4))[0])
    packed = embed(torch.cat([ids, ids], 1), Mask(8, documents=torch.tensor([[0] * 4 + [1] * 4])))
    torch.testing.assert_close(packed[0, 4:], packed[0, :4])


def test_patches_are_a_matrix_product_per_patch_with_the_class_vector_first() -> None:
    embed = PatchEmbed(4, 3, 8, position=None)
    nn.init.normal_(embed.cls)
    images = torch.randn(2, 3, 8, 12)
    got = embed(images, Mask(7))
    assert got.shape == (2, 7, 8) and torch.equal(got[:, 0], embed.cls.expand(2, 8))
    patch = images[1, :, 4:8, 8:12].flatten()  # second row, third column: patch 6 of 6
    torch.testing.assert_close(got[1, 6], embed.patches.weight.flatten(1) @ patch + embed.patches.bias)


def test_the_pooled_vector_is_the_first_real_one() -> None:
    x, keys = torch.randn(2, 4, 8), torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1]]).bool()
    assert torch.equal(Pick("first")(x, keys), torch.stack([x[0, 0], x[1, 2]]))
    assert torch.equal(Pick("last")(x, keys), torch.stack([x[0, 1], x[1, 3]]))
    torch.testing.assert_close(Pick("mean")(x, keys), torch.stack([x[0, :2].mean(0), x[1, 2:].mean(0)]))
    pooler = Pooler(8)
    torch.testing.assert_close(pooler(x, keys)[1], pooler(x[1:, 2:])[0])


def test_tied_words_are_one_parameter() -> None:
    words = nn.Embedding(9, 8)
    head = Vocabulary(9, 8, 8, tied=words.weight)
    head(torch.randn(1, 8)).sum().backward()
    assert words.weight.grad is not None and head.weight is words.weight


def test_select_moves_rows_of_everything_a_state_holds() -> None:
    state = State(({"key": torch.arange(3.0)[:, None]},), 2, torch.tensor([[1, 1], [0, 1], [1, 0]]).bool(),
                  EncoderOutput(torch.arange(3.0)[:, None, None], torch.tensor([[True], [True], [False]])))  # fmt: skip
    rows = torch.tensor([2, 0, 2, 1])
    moved = state.select(rows)
    assert torch.equal(moved.layers[0]["key"].flatten(), rows.float()) and torch.equal(moved.keys, state.keys[rows])
    assert torch.equal(moved.memory.vectors.flatten(), rows.float()) and torch.equal(
        moved.memory.mask, state.memory.mask[rows]
    )
    assert moved.length == 2


def test_positions_stay_exact_in_a_half_precision_network() -> None:
    """Rates rounded to bfloat16 would turn position 1000 by another angle altogether."""
    mask = Mask(3000)
    for scheme in (Rotary(64), Sinusoidal(64), Alibi(8)):
        exact, half = scheme(mask), scheme.bfloat16()(mask)
        for name, tensor in vars(exact).items():
            if isinstance(tensor, Tensor):
                assert torch.equal(tensor, vars(half)[name]), (scheme, name)
    network = build(tiny("llama-7b")).bfloat16()
    assert network(Batch(inputs=torch.randint(0, 60, (2, 5)))).logits.dtype == torch.bfloat16


@pytest.mark.parametrize("name", [name for name in PRESETS if tiny(name).recurrent is None])
def test_nothing_is_made_on_another_device_than_the_network(name: str) -> None:
    """The meta device stands for any accelerator: a tensor made on the CPU by the way would meet it and fail."""
    c = tiny(name)
    network = skeleton(c).eval()
    with torch.device("meta"):
        batch = example(c)
    assert network(replace(batch, targets=None)).logits.is_meta
    if c.family != "encoder":
        state = network.start(batch)
        for _ in range(2):
            hidden, state = network.step(batch.inputs[:, :3], state)
        assert hidden.is_meta


@pytest.mark.parametrize("name", PRESETS)
def test_an_outline_has_the_shapes_and_types_of_the_network(name: str) -> None:
    c = tiny(name)
    real, outline = (
        dict([*network.named_parameters(), *network.named_buffers()]) for network in (build(c), skeleton(c))
    )
    assert all(tensor.is_meta for tensor in outline.values())
    assert {key: (t.shape, t.dtype) for key, t in outline.items()} == {
        key: (t.shape, t.dtype) for key, t in real.items()
    }


def test_a_kernel_gets_the_mask_of_a_few_queries_as_a_table() -> None:
    """Their rows of the whole table, in any order; is_causal would align them with the first keys."""
    whole = Mask(5, None, 5, True, torch.device("cpu"))
    for rows in (torch.tensor([2]), torch.tensor([4, 0, 1, 3, 2])):
        table, is_causal = whole.of(rows).kernel
        assert table is not None and not is_causal and whole.of(rows).spans(1) is None
        assert torch.equal(table[0, 0], whole.dense[0, 0, rows])
